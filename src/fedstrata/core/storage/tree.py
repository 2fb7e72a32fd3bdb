"""Plain state as JSON plus arrays, and back: what a checkpoint holds. Nothing is pickled.

State may be built of dataclasses, dicts, lists, tuples, sets, arrays, tensors and plain values. Arrays are put aside
under running numbers; the rest becomes JSON. No class name is ever read from a file: which dataclass stands where is
told by a fresh state of the same shape, or by the annotation of the field that holds it (`dict[int, Record]`). What
would not come back as it was is refused when it is saved. A `Stored` tensor is put aside as it is: what saves the
state knows whether a file holds it already.
"""

from __future__ import annotations

import dataclasses
from typing import Any, cast, get_args, get_type_hints

import numpy as np
import torch
from torch import Tensor

from fedstrata.core.storage.stored import Stored

Arrays = dict[str, Tensor | Stored]


class StateError(TypeError):
    """A state holds what cannot be saved, or was saved and cannot be read; `path` says where."""

    def __init__(self, path: str, said: str):
        super().__init__(f"a part's state {said}")
        self.path, self.said = path, said


CONTAINERS = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


def flatten(value: Any, arrays: Arrays, path: str = "state", hint: Any = Any) -> Any:
    """Return the JSON form; arrays are added to `arrays`."""

    def inner(key: object, item: Any, hint: Any) -> Any:
        return flatten(item, arrays, f"{path}.{key}", hint)

    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return {"scalar": value.item(), "dtype": str(value.dtype)}
    if kind is np.ndarray and value.dtype.kind in "biuf":
        return _aside(torch.from_numpy(np.ascontiguousarray(value)).reshape(value.shape), arrays, "numpy")
    if isinstance(value, Tensor):
        return _aside(value.contiguous(), arrays, "torch")
    if kind is Stored:
        return _aside(value, arrays, "stored")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if hint is not Any and _dataclass_in(hint) is not kind:
            raise StateError(path, f"holds {kind.__name__} at {path}, where its annotation says {hint}")
        hints = _hints(kind, path)
        return {
            "fields": {f.name: inner(f.name, getattr(value, f.name), hints[f.name]) for f in dataclasses.fields(value)}
        }
    if kind is dict:
        return {"items": [[inner("key", k, Any), inner(k, v, _item(hint))] for k, v in value.items()]}
    if kind in (list, tuple):
        return {kind.__name__: [inner(i, v, _item(hint)) for i, v in enumerate(value)]}
    if kind in (set, frozenset) and len({type(v) for v in value}) <= 1:
        return {kind.__name__: [inner("item", v, Any) for v in sorted(value)]}
    raise StateError(path, f"holds {kind.__name__} at {path}; use dataclasses, plain containers, arrays and numbers")


def _aside(tensor: Tensor | Stored, arrays: Arrays, of: str) -> dict[str, str]:
    name = str(len(arrays))
    arrays[name] = tensor
    return {"array": name, "of": of}


def _hints(kind: Any, path: str) -> dict[str, Any]:
    """Read the annotations of a dataclass; those of a file with `from __future__ import annotations` are text."""
    try:
        return get_type_hints(kind)
    except NameError as error:
        why = f"whose annotations cannot be read: {error}; import what they name at the top of its file"
        raise StateError(path, f"holds {kind.__name__} at {path}, {why}") from None


def restore(saved: Any, arrays: Arrays, like: Any = None, hint: Any = Any, path: str = "state") -> Any:
    """Undo `flatten`; `like` is a fresh state of the same shape."""
    if not isinstance(saved, dict):
        return saved
    if "array" in saved:
        tensor = arrays[saved["array"]]
        if isinstance(tensor, Stored):
            return tensor
        return tensor.numpy().copy() if saved["of"] == "numpy" else tensor.clone()
    if "scalar" in saved:
        return np.dtype(saved["dtype"]).type(saved["scalar"])
    if "fields" in saved:
        fields, kind = saved["fields"], _dataclass_in(hint) if like is None else type(like)
        if not dataclasses.is_dataclass(kind) or {f.name for f in dataclasses.fields(kind)} != set(fields):
            why = "fit nothing there: make it in `init`, or annotate the field that holds it"
            raise StateError(path, f"was saved with the fields {sorted(fields)} at {path}, which {why}")
        hints, make = _hints(kind, path), cast(Any, kind)
        return make(
            **{k: restore(v, arrays, getattr(like, k, None), hints[k], f"{path}.{k}") for k, v in fields.items()}
        )
    if "items" in saved:
        fresh = like if isinstance(like, dict) else {}
        pairs = [(restore(k, arrays), v) for k, v in saved["items"]]
        return {k: restore(v, arrays, fresh.get(k), _item(hint), f"{path}.{k}") for k, v in pairs}
    ((container, items),) = saved.items()
    fresh_items = list(like) if isinstance(like, list | tuple) else []
    fresh_items += [None] * (len(items) - len(fresh_items))
    both = enumerate(zip(items, fresh_items, strict=False))
    return CONTAINERS[container](restore(v, arrays, f, _item(hint), f"{path}.{i}") for i, (v, f) in both)


def _item(hint: Any) -> Any:
    """Return the annotation of a container's items: of a dict's values, of a list's elements."""
    inner = [a for a in get_args(hint) if a is not Ellipsis]
    return inner[-1] if inner else Any


def _dataclass_in(hint: Any) -> Any:
    """Return the dataclass that an annotation names, also as one of several types."""
    return next((h for h in (hint, *get_args(hint)) if isinstance(h, type) and dataclasses.is_dataclass(h)), None)
