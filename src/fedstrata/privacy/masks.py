"""Masks: pseudo-random words from a key by ChaCha20; of two that share a key, one adds and the other subtracts them."""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20


def stream(key: bytes, words: int, dtype: type[np.unsignedinteger] = np.uint64) -> np.ndarray:
    """Give so many words; a key serves once."""
    out = np.empty(words, dtype=np.dtype(dtype).newbyteorder("<"))
    zeros = np.zeros(out.nbytes, dtype=np.uint8)
    # The counter starts at 0 in a nonce of 0: both are fixed because every key is derived for one use.
    Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update_into(zeros.data, out.view(np.uint8).data)
    return out


def add_pairwise(to: np.ndarray, key: bytes, me: int, other: int) -> None:
    """Mask in place, modulo the word size: the lower of the two adds, the higher subtracts."""
    words = stream(key, len(to), to.dtype.type)
    if me < other:
        to += words
    else:
        to -= words
