"""Tensors as the bytes of a safetensors file, without a copy: a checkpoint writes many megabytes a round.

`safetensors.torch.save` copies everything twice while no other thread can work; these pieces are hashed and written as
they lie in memory. `safetensors.torch.load` reads them.
"""

from __future__ import annotations

import json

import torch
from torch import Tensor

from fedstrata.core.messages import Tensors

NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def tensor_pieces(tensors: Tensors) -> list[bytes | memoryview]:
    """Return the header and the content of every tensor, all of which are in the host's memory.

    Raises
    ------
    KeyError
        If a tensor's type has no name in the format.
    """
    ordered = sorted(tensors.items(), key=lambda named: (-named[1].element_size(), named[0]))  # so all are aligned
    header, end = dict[str, object](), 0
    for name, tensor in ordered:
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little"), text, *(_bytes(tensor) for _, tensor in ordered)]


def _bytes(tensor: Tensor) -> memoryview:
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if len(flat) else memoryview(b"")
