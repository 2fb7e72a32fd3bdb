"""Where the arrays of somebody's app lie inside a flat model, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord

from fedstrata.core.flat_model import FlatModel, ParameterSpace, Segment
from fedstrata.privacy.frames import RefusedError

STATISTICS = ("running_mean", "running_var")  # how torch's batch norms call what is averaged and never scaled


@dataclass(frozen=True)
class Layout:
    """The places of arrays: trained numbers, and those that are averaged only (statistics, whole numbers)."""

    space: ParameterSpace
    dtype: torch.dtype
    kinds: Mapping[str, Any]  # of every array

    @classmethod
    def of(cls, arrays: ArrayRecord) -> Layout:
        """Lay an app's first model out."""
        plain = {name: array.numpy() for name, array in arrays.items()}
        places: tuple[list[Segment], list[Segment]] = ([], [])
        for name, array in plain.items():
            own = places[array.dtype.kind != "f" or name.endswith(STATISTICS)]
            own.append(Segment(name, array.shape, own[-1].stop if own else 0))
        none = slice(0, 0)
        wide = any(array.dtype == np.float64 for array in plain.values())
        kinds = {name: array.dtype for name, array in plain.items()}
        space = ParameterSpace(tuple(places[0]), tuple(places[1]), none, none, none)
        return cls(space, torch.float64 if wide else torch.float32, kinds)

    def read(self, arrays: ArrayRecord) -> FlatModel:
        """Flatten; another model than the app's is refused."""
        try:
            plain = {name: np.asarray(array.numpy()) for name, array in arrays.items()}
        except Exception as error:  # whatever bytes can do to a reader
            raise RefusedError(f"its arrays cannot be read: {type(error).__name__}") from None
        if strange := [name for name, array in plain.items() if array.dtype.kind not in "fiub"]:
            raise RefusedError(f"its array {strange[0]!r:.40} holds no numbers")
        places = (*self.space.params, *self.space.buffers)
        if {n: a.shape for n, a in plain.items()} != {p.name: tuple(p.shape) for p in places}:
            raise RefusedError("its arrays have other names or shapes than the model")
        return self.space.flatten({n: torch.from_numpy(a.copy()) for n, a in plain.items()}, self.dtype)

    def written(self, model: FlatModel) -> ArrayRecord:
        """Undo `read`; whole numbers are rounded."""
        flat, kinds = self.space.named(model), self.kinds
        rounded = {n: flat[n].numpy() if k.kind == "f" else flat[n].round().numpy() for n, k in kinds.items()}
        return ArrayRecord({name: Array(array.astype(kinds[name])) for name, array in rounded.items()})
