"""Proof that a token has one placeholder, the same for all who hold it.

A server that gave every holder of a label another placeholder would read each one's counts off the "sums". So it
commits to its whole assignment: a hash tree in which a token's own first bits say where its leaf is, so that a
token has one leaf. All clients compare the root (under a key the server does not have) and check the paths of their own
tokens. What a path passes by are hashes, and where no token lies a random one is put: a client learns nothing of
others' tokens, not even whether there are any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b, sha256

from fedstrata.privacy.frames import RefusedError

WAYS, DEPTH = 4, 20  # 40 bits of a token place it: two of a thousand tokens meet once in two million jobs
HASH = 32  # bytes
BESIDE = (WAYS - 1) * HASH  # bytes that a path has for each level


class Directory:
    """The server's assignment of placeholders to tokens."""

    def __init__(self, placed: Mapping[bytes, int], blank: bytes):
        """`blank` is a secret from which the hashes of empty places are drawn."""
        self._blank = blank
        level = {position(token): _leaf(token, placeholder) for token, placeholder in placed.items()}
        if len(level) < len(placed):
            raise RefusedError("two tokens begin alike: the job must be repeated")
        self._levels = [level]  # from the leaves up; by place: those above a token, and those beside them
        for _ in range(DEPTH):
            up, above = len(self._levels) - 1, {place // WAYS for place in level}
            level = {p: _node(*(self._at(up, WAYS * p + way) for way in range(WAYS))) for p in above}
            self._levels.append(level)

    @property
    def root(self) -> bytes:
        """What all clients compare."""
        return self._at(DEPTH, 0)

    def path(self, token: bytes) -> bytes:
        """Return the hashes beside the way from a token's leaf to the root."""
        place, beside = position(token), []
        for up in range(DEPTH):
            first = place - place % WAYS
            beside += [self._at(up, other) for other in range(first, first + WAYS) if other != place]
            place //= WAYS
        return b"".join(beside)

    def _at(self, up: int, place: int) -> bytes:
        level = self._levels[up]
        if place not in level:
            level[place] = blake2b(b"%d|%d" % (up, place), key=self._blank, digest_size=HASH).digest()
        return level[place]


def check_paths(root: bytes, tokens: Sequence[bytes], placeholders: Sequence[int], paths: bytes) -> None:
    """Refuse placeholders that the tree does not hold."""
    size = DEPTH * BESIDE
    if len(paths) != size * len(tokens):
        raise RefusedError("the server proves other placeholders than those it gave")
    for at, (token, placeholder) in enumerate(zip(tokens, placeholders, strict=True)):
        found, place = _leaf(token, placeholder), position(token)
        for start in range(at * size, (at + 1) * size, BESIDE):
            here = start + place % WAYS * HASH
            found = _node(paths[start:here], found, paths[here : start + BESIDE])
            place //= WAYS
        if found != root:
            raise RefusedError("the server gave a placeholder that is not in the assignment it committed to")


def position(token: bytes) -> int:
    """Say where a token's leaf is."""
    return int.from_bytes(token[:5], "big")


def _leaf(token: bytes, placeholder: int) -> bytes:
    return sha256(b"\0" + token + placeholder.to_bytes(4, "big")).digest()


def _node(*below: bytes) -> bytes:
    return sha256(b"\1" + b"".join(below)).digest()
