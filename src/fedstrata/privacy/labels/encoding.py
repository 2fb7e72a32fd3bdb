"""One way to write a label as bytes, the same on every machine, and different for every two labels.

    type tag (1 byte) | length of what follows (8 bytes, big-endian) | value

    ?  False, True   00 or 01
    i  whole number  two's complement, big-endian, as few bytes as hold it (0 has one)
    f  float         IEEE 754, 8 bytes, big-endian
    s  text          UTF-8, as it is: no Unicode normalisation
    b  bytes         as they are

Type and length stand in front, so 7, "7", b"7", 7.0 and True are five labels, and one label's bytes are never the
beginning of another's. NumPy scalars are read as the plain type (a float32 as the double of the same value). -0.0 is
written as 0.0: the two are equal, so one dictionary cannot hold both. NaN is not even equal to itself: refused.
"""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np

from fedstrata.core.errors import RequestError


def encode(label: Any) -> bytes:
    """Write a label."""
    plain = label.item() if isinstance(label, np.generic) else label
    if isinstance(plain, bool):  # before int, of which it is a kind
        return _typed(b"?", bytes([plain]))
    if isinstance(plain, int):
        return _typed(b"i", plain.to_bytes((plain + (plain < 0)).bit_length() // 8 + 1, "big", signed=True))
    if isinstance(plain, float):
        if math.isnan(plain):
            raise RequestError(f"label = {label!r} is not a number; allowed: labels that are equal to themselves")
        return _typed(b"f", struct.pack(">d", plain + 0.0))  # -0.0 + 0.0 is 0.0
    if isinstance(plain, str):
        try:
            return _typed(b"s", plain.encode())
        except UnicodeEncodeError:
            raise RequestError(f"label = {label!r} is not proper Unicode; allowed: text that UTF-8 can hold") from None
    if isinstance(plain, bytes):
        return _typed(b"b", plain)
    raise RequestError(f"label = {label!r} has the type {type(label).__name__}; allowed: bool, int, float, str, bytes")


def _typed(tag: bytes, value: bytes) -> bytes:
    return tag + len(value).to_bytes(8, "big") + value
