"""`fedstrata predict`: what a trained model says of new inputs."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedstrata.cli import completing
from fedstrata.cli.options import AsJson
from fedstrata.core.errors import RequestError

Model = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="Run folder, or a model file such as best.safetensors.",
        autocompletion=completing.run_folders,
    ),
]
Keys = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="A site's keys: where labels were masked, they open the names of the classes."),
]


def predict(
    run: Model,
    inputs: Annotated[Path, typer.Argument(metavar="INPUT", help="CSV, Parquet, .npz, .npy, image or folder of them.")],
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="FILE", help="Write them as CSV.")] = None,
    keys: Keys = None,
    as_json: AsJson = False,
) -> None:
    """Predict the labels of raw inputs with the model of a run."""
    from fedstrata.core.files import write_atomically
    from fedstrata.remote.label_names import open_model

    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise RequestError(f"-o {out} is a folder, or there is none to write it to; name a file")
    if out is not None and out.exists() and inputs.exists() and out.samefile(inputs):
        raise RequestError(f"-o {out} is the input itself, and would take its place; name another file")
    saved = open_model(run, keys)
    if saved.names is None and saved.info.label_directory is not None:
        print("note: labels were masked; a site that trained this model names them with --keys", file=sys.stderr)
    held = saved.inputs(inputs)
    shares = saved.probabilities(held.x)
    labels = [saved.classes[at] for at in shares.argmax(1)]
    sure = shares.max(1).tolist()
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["input", "prediction", "probability"])
    table.writerows([name, label, f"{share:.6f}"] for name, label, share in zip(held.names, labels, sure, strict=True))
    if out is not None:
        try:
            write_atomically(out, text.getvalue().encode())
        except OSError as error:
            raise RequestError(f"-o {out} cannot be written: {error}") from None
    if as_json:
        told = {"predictions": labels, "probabilities": sure, "inputs": list(held.names), "classes": saved.classes}
        print(json.dumps(told | ({} if out is None else {"out": str(out)})))
    elif out is not None:
        print(f"{len(labels):,} predictions: {out}")
    else:
        print(text.getvalue(), end="")
