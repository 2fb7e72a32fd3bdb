"""Shares of a comparison: several machines run some of the cells each, in one folder that they share or in their own.

A share is decided by the place of a cell in the order of execution, so that machines agree without talking. Where rows
are tuned, a row under a condition stays on one machine: its cells follow from its trials.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import close
from pathlib import Path

from fedstrata.core.errors import RequestError
from fedstrata.core.storage.file_lock import in_turn, is_locked, take_lock
from fedstrata.core.storage.files import writing_to
from fedstrata.runs.compare.cells import Cell
from fedstrata.runs.folder import LOCK, Run

WRITING = "writing.lock"


@dataclass(frozen=True)
class Shard:
    """One share of so many; the whole is the only one of one."""

    number: int = 1
    of: int = 1

    @classmethod
    def read(cls, text: str | None) -> Shard:
        """Read `2/5`."""
        if text is None:
            return cls()
        found = re.fullmatch(r"\s*(\d+)\s*/\s*(\d+)\s*", str(text))
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise RequestError(f'shard = "{text}" must look like 2/5: the second of five')
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def cells(self, cells: Sequence[Cell], tuned: bool) -> list[Cell]:
        """Return the cells of this share: every so many, or whole rows under conditions where they are tuned."""
        places = list(dict.fromkeys(cell.key[:2] for cell in cells))
        at = {place: number for number, place in enumerate(places)}
        turns = [at[cell.key[:2]] for cell in cells] if tuned else range(len(cells))
        return [cell for turn, cell in zip(turns, cells, strict=True) if turn % self.of == self.number - 1]

    @contextmanager
    def locked(self, folder: Path) -> Iterator[None]:
        """Keep others from doing the same: another process with this share, or one that runs all."""
        if self.of == 1:
            with Run(folder).locked():  # before we look, as shares do: of two that begin at once, one sees the other
                if busy := next((file for file in folder.glob("shard-*.lock") if is_locked(file)), None):
                    raise RequestError(f"another process is running {busy.stem} of the comparison in {folder}")
                yield
            return
        with writing_to(folder):
            handle = take_lock(folder / f"shard-{self.number}-of-{self.of}.lock")
        if handle is None or is_locked(folder / LOCK):
            if handle is not None:
                close(handle)
            raise RequestError(f"another process is running {'all' if handle else self} of the comparison in {folder}")
        try:
            yield
        finally:
            close(handle)

    @contextmanager
    def writing(self, folder: Path) -> Iterator[None]:
        """Write what all shares write, one after another."""
        if self.of == 1:
            yield
            return
        with writing_to(folder), in_turn(folder / WRITING):
            yield


def is_lock(name: str) -> bool:
    """Say whether a file of a comparison's folder is only there to be locked."""
    return name in (LOCK, WRITING) or re.fullmatch(r"shard-\d+-of-\d+\.lock", name) is not None
