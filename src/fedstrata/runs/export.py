"""A saved model for programs that do not know fedstrata: ONNX, TorchScript, torch.export, or its weights alone.

All but the weights take raw inputs, as `run.module()` does, and carry what the file says of the model: its classes are
in there.
"""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from fedstrata.core.errors import RequestError
from fedstrata.core.storage.files import write_atomically
from fedstrata.runs.classifier import Classifier
from fedstrata.runs.saved_model import SavedModel

CLASSES, NAMES = "classes.json", "class_names.json"  # what TorchScript and torch.export files call the classes


def export(saved: SavedModel, kind: str, path: Path, model: nn.Module | None = None) -> None:
    """Write a model in a form of `KINDS`; nothing is written if that fails."""
    write = KINDS[kind]
    if kind == "onnx" and (find_spec("onnx") is None or find_spec("onnxscript") is None):
        raise RequestError("ONNX needs onnx and onnxscript; get them with: pip install 'fedstrata[onnx]'")
    if path.is_dir():
        raise RequestError(f"-o {path} is a folder; name a file, such as {path / f'model{SUFFIXES[kind]}'}")
    if not path.parent.is_dir():
        raise RequestError(f"-o {path}: there is no folder {path.parent}")
    content = write(saved, saved.module(model))
    try:
        write_atomically(path, content)
    except OSError as error:
        raise RequestError(f"-o {path} cannot be written: {error}") from None


def example_input(saved: SavedModel) -> Tensor:
    """Return two samples of the kind that the model takes."""
    sample = saved.info.sample
    kind = torch.float32 if saved.info.preprocessing.columns else getattr(torch, sample["dtype"])
    return torch.ones((2, *sample["shape"]), dtype=kind)


def _onnx(saved: SavedModel, module: Classifier) -> bytes:
    batch = {"x": {0: torch.export.Dim("samples")}}
    names: dict[str, Any] = {"input_names": ["x"], "output_names": ["logits"], "dynamic_shapes": batch}
    with _quiet():
        program = torch.onnx.export(module, (example_input(saved),), dynamo=True, verbose=False, **names)
    assert program is not None
    proto = program.model_proto
    for key, value in _about(saved).items():
        entry = proto.metadata_props.add()
        entry.key, entry.value = key, value
    content: bytes = proto.SerializeToString()
    return content


def _about(saved: SavedModel) -> dict[str, str]:
    """Return the metadata of an ONNX file."""
    named = {"class_names": json.dumps(saved.class_names)} if saved.has_names else {}
    return {"classes": json.dumps(saved.classes), **named, "about": saved.info.to_json()}


def _labels(saved: SavedModel) -> dict[str, str]:
    """Return the files that stand beside the model in one of torch's."""
    named = {NAMES: json.dumps(saved.class_names)} if saved.has_names else {}
    return {CLASSES: json.dumps(saved.classes), **named}


def _torchscript(saved: SavedModel, module: Classifier) -> bytes:
    buffer = io.BytesIO()
    with _quiet(), torch.no_grad():
        traced = torch.jit.trace(  # type: ignore[no-untyped-call]
            module, example_input(saved), check_trace=False
        )
        torch.jit.save(traced, buffer, _extra_files=_labels(saved))
    return buffer.getvalue()


def _torch_export(saved: SavedModel, module: Classifier) -> bytes:
    with _quiet(), TemporaryDirectory() as place:
        program = torch.export.export(
            module, (example_input(saved),), dynamic_shapes={"x": {0: torch.export.Dim("samples")}}
        )
        torch.export.save(program, Path(place) / "model.pt2", extra_files=_labels(saved))
        return (Path(place) / "model.pt2").read_bytes()


def _state_dict(saved: SavedModel, module: Classifier) -> bytes:
    buffer = io.BytesIO()
    torch.save(module.network.state_dict(), buffer)
    return buffer.getvalue()


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep exporters from talking: `--json` prints one object, and their warnings are for authors of exporters."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)


KINDS: dict[str, Callable[[SavedModel, Classifier], bytes]] = {
    "onnx": _onnx,
    "torchscript": _torchscript,
    "torch-export": _torch_export,
    "state-dict": _state_dict,
}
SUFFIXES = {"onnx": ".onnx", "torchscript": ".ts", "torch-export": ".pt2", "state-dict": ".pt"}
