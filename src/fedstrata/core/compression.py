"""Tensors that travel in fewer bytes.

A compressed tensor is one or several small ones under names of its own (`update|int8`, `update|scale`): these are what
a report holds, what goes over a wire and what is charged. Whoever sums reports expands them first. What is lost on the
way belongs to the sender, which adds it to what it sends next (error feedback: Seide et al., 2014; Karimireddy et al.,
ICML 2019), so that over many steps the sums are those of the exact tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal

import torch
from torch import Tensor

Form = Literal["full", "bf16", "fp16", "int8", "top-k"]
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
BLOCK = 256  # numbers that share a scale
MARK = "|"  # in the name of what is compressed
SCALE, INDEX, VALUES, LENGTH = "scale", "index", "values", "length"


@dataclass(frozen=True)
class Compression:
    """How a vector travels: as it is, in 16 bits, in 8 bits with a scale a block, or its largest numbers alone."""

    form: Form = "full"
    share: float = 0.01  # of the numbers that "top-k" sends

    def compress(self, name: str, vector: Tensor) -> dict[str, Tensor]:
        """Return what travels."""
        if self.form == "full":
            return {name: vector}
        if self.form in HALVES:
            return {name + MARK + self.form: vector.to(HALVES[self.form])}
        if self.form == "int8":
            padded = torch.nn.functional.pad(vector, (0, -len(vector) % BLOCK)).view(-1, BLOCK)
            scale = padded.abs().amax(1) / 127
            codes = (padded / scale.clamp_min(torch.finfo(vector.dtype).tiny).unsqueeze(1)).round().to(torch.int8)
            return {name + MARK + self.form: codes.flatten()[: len(vector)], name + MARK + SCALE: scale}
        index = vector.abs().topk(self.kept(len(vector)), sorted=False).indices.sort().values
        parts = {INDEX: index.to(torch.int32), VALUES: vector[index], LENGTH: torch.tensor([len(vector)])}
        return {name + MARK + part: tensor.to(vector.device) for part, tensor in parts.items()}

    def kept(self, length: int) -> int:
        """Return how many numbers of a vector "top-k" sends."""
        return max(1, round(self.share * length))

    def nbytes(self, length: int, dtype: torch.dtype = torch.float32) -> int:
        """Return what a vector takes on its way."""
        return sum(prod(shape) * kind.itemsize for shape, kind in self.shapes("", length, dtype).values())

    def fits(self, tensors: Mapping[str, Tensor], name: str, length: int) -> bool:
        """Say whether indices from elsewhere, of the right shape, name numbers of a vector, each once."""
        if self.form != "top-k":
            return True
        index = tensors[name + MARK + INDEX]
        inside = int(index[0]) >= 0 and int(index[-1]) < length and bool((index.diff() > 0).all())
        return inside and int(tensors[name + MARK + LENGTH]) == length

    def shapes(self, name: str, length: int, dtype: torch.dtype) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Return shape and type of what travels, to check what comes from elsewhere."""
        shapes = self.compress(name, torch.zeros(length, dtype=dtype))
        return {key: (tuple(tensor.shape), tensor.dtype) for key, tensor in shapes.items()}


def expand(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return whole tensors; what was not compressed is left as it is."""
    whole: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        name, _, form = key.partition(MARK)
        if form == VALUES:
            empty = torch.zeros(int(tensors[name + MARK + LENGTH]), dtype=tensor.dtype, device=tensor.device)
            whole[name] = empty.index_copy_(0, tensors[name + MARK + INDEX].long(), tensor)
        elif form == "int8":
            scale = tensors[name + MARK + SCALE]
            whole[name] = tensor.to(scale.dtype) * scale.repeat_interleave(BLOCK)[: len(tensor)]
        elif form in HALVES:
            whole[name] = tensor.float()
        elif not form:
            whole[name] = tensor
    return whole
