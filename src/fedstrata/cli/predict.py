"""`fedstrata predict`: what a trained model says of new inputs."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedstrata.cli import completing
from fedstrata.cli.options import AsJson
from fedstrata.core.errors import RequestError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from fedstrata.runs.saved_model import SavedModel

Model = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="Run folder, or a model file such as best.safetensors.",
        readable=False,
        autocompletion=completing.run_folders,
    ),
]
Keys = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="A site's keys: where labels were masked, they open the names of the classes."),
]


def predict(
    run: Model,
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="INPUT...",
            help="CSV, Parquet, .npz, .npy, images or folders of them; several, too.",
            readable=False,
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE", help="Write the predictions to this CSV file.")
    ] = None,
    keys: Keys = None,
    all_classes: Annotated[
        bool,
        typer.Option("--all-classes", help="Also give the probability of every class, not of the likeliest alone."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Predict the labels of raw inputs with the model of a run."""
    from fedstrata.core.storage.files import write_atomically
    from fedstrata.remote.site.label_names import open_model

    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise RequestError(f"-o {out} is a folder, or there is none to write it to; name a file")
    if out is not None and out.exists() and any(one.exists() and out.samefile(one) for one in inputs):
        raise RequestError(f"-o {out} is the input itself, and would take its place; name another file")
    saved = open_model(run, keys)
    if saved.names is None and saved.info.label_directory is not None:
        tell("labels were masked; a site that trained this model names them with --keys")
    x, names = _read(saved, inputs)
    shares = saved.probabilities(x)
    at = shares.argmax(1).tolist()
    labels, sure = [saved.classes[i] for i in at], shares.max(1).tolist()
    called = [saved.class_names[i] for i in at] if saved.has_names else None
    text = _csv(names, labels, sure, called, _by_class(saved, shares) if all_classes else {})
    if out is not None:
        try:
            write_atomically(out, text.encode())
        except OSError as error:
            raise RequestError(f"-o {out} cannot be written: {error}") from None
    if as_json:
        told = {"predictions": labels, "probabilities": sure, "inputs": names, "classes": saved.classes}
        told |= {} if called is None else {"names": called, "class_names": saved.class_names}
        told |= {"by_class": shares.tolist()} if all_classes else {}
        print(json.dumps(told | ({} if out is None else {"out": str(out)})))
    elif out is not None:
        print(f"{len(labels):,} predictions: {out}")
    else:
        print(text, end="")


def tell(note: str) -> None:
    """Say what was done to inputs, beside the answers."""
    print(f"note: {note}", file=sys.stderr)


def _read(saved: SavedModel, inputs: Sequence[Path]) -> tuple[Tensor, list[str]]:
    """Read all samples, and what to call each: by its row or file, and of several inputs by the input too."""
    import torch

    held = [saved.inputs(one) for one in inputs]
    for note in (note for part in held for note in part.notes):
        tell(note)
    if len(inputs) == 1:
        return held[0].x, list(held[0].names)
    names = []
    for path, part in zip(inputs, held, strict=True):
        alone = list(part.names) == [path.name]  # an image
        inside = [str(path / name) if path.is_dir() else f"{path}:{name}" for name in part.names]
        names += [str(path)] if alone else inside
    return torch.cat([part.x for part in held]), names


def _by_class(saved: SavedModel, shares: np.ndarray) -> dict[str, list[float]]:
    """Return a column for each class; one that has a name is called by it."""
    titles = saved.class_names if saved.has_names else saved.classes
    return {f"probability of {title}": shares[:, at].tolist() for at, title in enumerate(titles)}


def _csv(
    names: Sequence[str],
    labels: Sequence[Any],
    sure: Sequence[float],
    called: Sequence[str] | None,
    by_class: Mapping[str, Sequence[float]],
) -> str:
    """Write a line a sample; behind its probability stands what a label is called, where it is called anything else."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["input", "prediction", "probability", *([] if called is None else ["name"]), *by_class])
    for row, (name, label, share) in enumerate(zip(names, labels, sure, strict=True)):
        more = [f"{column[row]:.6f}" for column in by_class.values()]
        table.writerow([name, label, f"{share:.6f}", *([] if called is None else [called[row]]), *more])
    return text.getvalue()
