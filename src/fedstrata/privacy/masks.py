"""Masks: pseudo-random words from a key by ChaCha20; of two that share a key, one adds and the other subtracts them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

CHUNK = 1 << 16  # bytes of all masks that are added before the next ones: they stay in the cache


def stream(key: bytes, words: int, dtype: type[np.unsignedinteger] = np.uint64) -> np.ndarray:
    """Return so many words; a key serves once."""
    out = np.empty(words, dtype=np.dtype(dtype).newbyteorder("<"))
    _cipher(key).update_into(bytes(out.nbytes), out.view(np.uint8).data)
    return out


def add_streams(to: np.ndarray, plus: Sequence[bytes], minus: Sequence[bytes]) -> None:
    """Add the words of some keys and subtract those of others, in place, modulo the word size."""
    zeros, words = memoryview(bytes(CHUNK)), np.empty(CHUNK // to.itemsize, to.dtype)
    text = words.view(np.uint8).data
    ways = [(_cipher(key), np.add) for key in plus] + [(_cipher(key), np.subtract) for key in minus]
    for at in range(0, len(to), len(words)):
        part = to[at : at + len(words)]
        size, mask = part.nbytes, words[: len(part)]
        for cipher, way in ways:
            cipher.update_into(zeros[:size], text[:size])
            way(part, mask, out=part)


def _cipher(key: bytes) -> Any:
    # The counter starts at 0 in a nonce of 0: both are fixed because every key is derived for one use.
    return Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
