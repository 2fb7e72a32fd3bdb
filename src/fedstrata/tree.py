"""Plain state as JSON plus arrays, and back: what a checkpoint holds. Nothing is pickled.

State may be built of dataclasses, dicts, lists, tuples, sets, arrays, tensors and plain values. Arrays are put aside
under running numbers; the rest becomes JSON. A dataclass is restored by filling a fresh one of the same shape, so
no class name is ever read from a file. What would not come back as it was is refused when it is saved.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from torch import Tensor

CONTAINERS = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


def flatten(value: Any, arrays: dict[str, Tensor], path: str = "state") -> Any:
    """Give the JSON form; arrays are added to `arrays`."""

    def inner(key: object, item: Any) -> Any:
        return flatten(item, arrays, f"{path}.{key}")

    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return {"scalar": value.item(), "dtype": str(value.dtype)}
    if kind is np.ndarray and value.dtype.kind in "biuf":
        return _aside(torch.from_numpy(np.ascontiguousarray(value)).reshape(value.shape), arrays, "numpy")
    if isinstance(value, Tensor):
        return _aside(value.contiguous(), arrays, "torch")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {"fields": {f.name: inner(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)}}
    if kind is dict:
        return {"items": [[inner("key", k), inner(k, v)] for k, v in value.items()]}
    if kind in (list, tuple):
        return {kind.__name__: [inner(i, v) for i, v in enumerate(value)]}
    if kind in (set, frozenset) and len({type(v) for v in value}) <= 1:
        return {kind.__name__: [inner("item", v) for v in sorted(value)]}
    raise TypeError(
        f"a part's state holds {kind.__name__} at {path}; use dataclasses, plain containers, arrays and numbers"
    )


def _aside(tensor: Tensor, arrays: dict[str, Tensor], of: str) -> dict[str, str]:
    name = str(len(arrays))
    arrays[name] = tensor
    return {"array": name, "of": of}


def restore(saved: Any, arrays: dict[str, Tensor], like: Any = None) -> Any:
    """Undo `flatten`; `like` is a fresh state, which tells the dataclasses apart."""
    if not isinstance(saved, dict):
        return saved
    if "array" in saved:
        tensor = arrays[saved["array"]]
        return tensor.numpy().copy() if saved["of"] == "numpy" else tensor.clone()
    if "scalar" in saved:
        return np.dtype(saved["dtype"]).type(saved["scalar"])
    if "fields" in saved:
        fields = saved["fields"]
        if isinstance(like, type) or not dataclasses.is_dataclass(like) or fields.keys() != vars(like).keys():
            raise TypeError(
                f"a saved state with the fields {sorted(fields)} does not fit {type(like).__name__}: make it in `init`"
            )
        kind: Any = type(like)
        return kind(**{k: restore(v, arrays, getattr(like, k)) for k, v in fields.items()})
    if "items" in saved:
        fresh = like if isinstance(like, dict) else {}
        pairs = [(restore(k, arrays), v) for k, v in saved["items"]]
        return {k: restore(v, arrays, fresh.get(k)) for k, v in pairs}
    ((container, items),) = saved.items()
    fresh_items = list(like) if isinstance(like, list | tuple) else []
    fresh_items += [None] * (len(items) - len(fresh_items))
    return CONTAINERS[container](restore(v, arrays, f) for v, f in zip(items, fresh_items, strict=False))
