"""Weights that somebody else trained, as torchvision publishes them, for `model.init`.

Their names differ from ours, and so does the last layer, which was made for other labels: it starts afresh.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedstrata.core.errors import RequestError

PICKLED = (".pt", ".pth", ".bin")
MORE = "Weights only load failed"
INSIDE = ("state_dict", "model_state_dict", "model")  # where training scripts put the weights among other things
WRAPPED = ("module.", "_orig_mod.")  # what DataParallel and torch.compile put before names
OURS = (  # torchvision's names, and those of our models
    (re.compile(r"^layer(\d)\."), lambda found: f"stages.{int(found[1]) - 1}."),
    (re.compile(r"^(fc|classifier)\."), lambda _: "head."),
    (re.compile(r"(denselayer\d+\.(?:norm|conv))\.(\d)\."), lambda found: f"{found[1]}{found[2]}."),  # older files
)
COUNTER = "num_batches_tracked"  # of batch norms: no run depends on it


def read_weights(path: Path, key: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read tensors by name, and what a safetensors file says of them; code that a file may hold is never run."""
    try:
        if path.suffix in PICKLED:
            return _tensors(torch.load(path, map_location="cpu", weights_only=True), key), {}
        with safe_open(path, "pt") as file:
            names = file.keys()
            return {name: file.get_tensor(name) for name in names}, file.metadata() or {}
    except (OSError, SafetensorError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        if said.startswith(MORE):  # torch goes on with how to run the code in it
            said = f"{MORE}, because it holds more than weights; save them with torch.save(module.state_dict(), ...)"
        raise RequestError(f"{key} cannot be read: {said}") from None


def _tensors(loaded: Any, key: str) -> dict[str, Tensor]:
    """Find the weights in what a training script saved."""
    for inside in INSIDE:
        if isinstance(loaded, Mapping) and isinstance(loaded.get(inside), Mapping):
            loaded = loaded[inside]
    if not isinstance(loaded, Mapping) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise RequestError(f"{key} holds no weights; save them with torch.save(module.state_dict(), ...)")
    return {str(name): value for name, value in loaded.items()}


def fit_weights(
    given: Mapping[str, Tensor], needed: Mapping[str, tuple[int, ...]], head: str, key: str
) -> tuple[dict[str, Tensor], str | None]:
    """Return foreign weights under a model's own names, and what to say of its last layer, if that starts afresh.

    `needed`: the shape of every tensor of the model, by name.
    """
    own = {rename(name, needed): tensor for name, tensor in given.items()}
    inside = f"{head}." if head else ""
    fits = {name: name in own and tuple(own[name].shape) == shape for name, shape in needed.items()}
    if strange := [name for name in own if name not in needed and not name.endswith(COUNTER) and not _in(name, inside)]:
        raise RequestError(f"{key} is of another model: it has {_some(strange)}, which this one does not have")
    for name, shape in needed.items():
        if not fits[name] and not _in(name, inside):
            found = f"the file has {tuple(own[name].shape)}" if name in own else "the file has nothing like it"
            hint = ""
            if name in own and shape[2:] == (3, 3) and own[name].shape[2:] == (7, 7):
                hint = '; model.stem = "7x7" has the stem of these weights'
            raise RequestError(f"{key}: {name} needs shape {shape}, {found}{hint}")
    afresh = [name for name in needed if _in(name, inside) and not fits[name]]
    taken = {name: tensor for name, tensor in own.items() if name in needed and not (afresh and _in(name, inside))}
    if not afresh:
        return taken, None
    made_for = next((len(own[name]) for name in afresh if name in own), None)
    why = "the file has none that fits" if made_for is None else f"that of the file is for {made_for} labels"
    return taken, f"the last layer, {head}, starts afresh: {why}"


def rename(name: str, needed: Mapping[str, Any]) -> str:
    """Return what a model calls a tensor of a foreign file."""
    for prefix in WRAPPED:
        name = name.removeprefix(prefix)
    if name in needed:
        return name
    for pattern, ours in OURS:
        name = pattern.sub(ours, name)
    return name


def _in(name: str, inside: str) -> bool:
    return bool(inside) and name.startswith(inside)


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
