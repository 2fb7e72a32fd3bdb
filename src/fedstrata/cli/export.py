"""`fedstrata export`: a trained model for programs that do not know fedstrata."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedstrata.cli.options import AsJson
from fedstrata.cli.predict import Keys, Model
from fedstrata.core.errors import RequestError

if TYPE_CHECKING:
    from fedstrata.runs.saved_model import SavedModel


def export(
    run: Model,
    onnx: Annotated[bool, typer.Option("--onnx", help="ONNX; needs fedstrata[onnx].")] = False,
    torchscript: Annotated[bool, typer.Option("--torchscript", help="For torch.jit.load.")] = False,
    torch_export: Annotated[bool, typer.Option("--torch-export", help="For torch.export.load.")] = False,
    state_dict: Annotated[bool, typer.Option("--state-dict", help="The network's weights, for torch.load.")] = False,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE", help="The file to write; its ending says a form too.")
    ] = None,
    keys: Keys = None,
    as_json: AsJson = False,
) -> None:
    """Export the model of a run, for use without fedstrata."""
    from fedstrata.remote.site.label_names import open_model
    from fedstrata.runs import export as exporting

    asked = dict(zip(exporting.KINDS, (onnx, torchscript, torch_export, state_dict), strict=True))
    chosen = [kind for kind, wanted in asked.items() if wanted]
    if not chosen and out is not None:
        chosen = [kind for kind, ending in exporting.SUFFIXES.items() if ending == out.suffix]
    if len(chosen) != 1:
        endings = ", ".join(f"--{kind} ({exporting.SUFFIXES[kind]})" for kind in asked)
        raise RequestError(f"name one form, or a file with its ending: {endings}")
    (kind,) = chosen
    saved = open_model(run, keys)
    path = out or Path(f"model{exporting.SUFFIXES[kind]}")
    exporting.export(saved, kind, path)
    told = {"kind": kind, "out": str(path), "bytes": path.stat().st_size, "classes": saved.classes}
    told |= {"class_names": saved.class_names} if saved.has_names else {}
    note = _encoded_first(saved) if kind != "state-dict" else None
    told |= {} if note is None else {"takes": note}
    print(json.dumps(told) if as_json else f"{kind}: {path} ({told['bytes']:,} bytes)")
    if note is not None and not as_json:
        print(note)


def _encoded_first(saved: SavedModel) -> str | None:
    """Say what has to be done to a table before it goes in; None: nothing."""
    columns = saved.info.preprocessing.columns
    if all(column.values is None for column in columns):
        return None
    width = sum(column.width for column in columns)
    return (
        f"it takes encoded rows of {width} numbers, not the table with its text: "
        f'fedstrata.Run("{saved.path.parent}").saved.info.preprocessing.encode(table) makes them, of a data frame'
    )
