"""Something that reads what somebody else may have written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from campaigns._mutations import mutate_bytes, mutate_json

Draw = Callable[[Random], bytes]


@dataclass(frozen=True)
class Reader:
    """Something that reads, what is drawn for it, and how many of all cases it gets."""

    name: str
    draw: Draw
    read: Callable[[bytes], Any]
    share: float = 1.0


def of(*samples: bytes, tables: bool = False) -> Draw:
    """Draw changes of sound examples."""
    mutate = mutate_json if tables else mutate_bytes
    return lambda rng: mutate(rng.choice(samples), rng)


def written(path: Path, read: Callable[[Path], Any]) -> Callable[[bytes], Any]:
    """Return a reader of bytes where there is one of files."""
    path.parent.mkdir(parents=True, exist_ok=True)

    def from_file(data: bytes) -> Any:
        path.write_bytes(data)
        return read(path)

    return from_file
