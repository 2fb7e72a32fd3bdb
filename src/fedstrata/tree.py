"""Plain state as JSON plus arrays, and back: what a checkpoint holds. Nothing is pickled.

State may be built of dataclasses, dicts, lists, tuples, sets, arrays, tensors and plain values. Arrays go to one side
under the path where they stand; the rest becomes JSON. A dataclass is restored by filling a fresh one of
the same shape, so no class name is ever read from a file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor


def flatten(value: Any, arrays: dict[str, Tensor], path: str = "") -> Any:
    """Give the JSON form; arrays are added to `arrays` by path."""

    def inner(key: object, item: Any) -> Any:
        return flatten(item, arrays, f"{path}/{key}")

    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return {"numpy": value.item(), "dtype": str(value.dtype)}
    if isinstance(value, np.ndarray):
        arrays[path] = torch.from_numpy(np.ascontiguousarray(value))
        return {"array": path, "numpy": True}
    if isinstance(value, Tensor):
        arrays[path] = value.contiguous()
        return {"array": path, "numpy": False}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {"fields": {f.name: inner(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)}}
    if isinstance(value, dict):
        keys: Iterable[Any] = value
        return {"items": [[flatten(k, arrays, f"{path}/key"), inner(k, value[k])] for k in keys]}
    if isinstance(value, list | tuple | set | frozenset):
        order = sorted(value) if isinstance(value, set | frozenset) else value
        return {type(value).__name__: [inner(i, v) for i, v in enumerate(order)]}
    raise TypeError(
        f"a part's state holds {type(value).__name__} at {path}; use dataclasses, containers, arrays and numbers"
    )


def restore(saved: Any, arrays: dict[str, Tensor], like: Any = None) -> Any:
    """Undo `flatten`; `like` is a fresh state, which tells the dataclasses apart."""
    if not isinstance(saved, dict):
        return saved
    if "array" in saved:
        tensor = arrays[saved["array"]]
        return tensor.numpy().copy() if saved["numpy"] else tensor.clone()
    if "dtype" in saved:
        return np.dtype(saved["dtype"]).type(saved["numpy"])
    if "fields" in saved:
        values = {k: restore(v, arrays, getattr(like, k, None)) for k, v in saved["fields"].items()}
        return type(like)(**values)
    if "items" in saved:
        fresh = like if isinstance(like, dict) else {}
        pairs = [(restore(k, arrays), v) for k, v in saved["items"]]
        return {k: restore(v, arrays, fresh.get(k)) for k, v in pairs}
    ((kind, items),) = saved.items()
    make = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}[kind]
    return make(restore(v, arrays) for v in items)
