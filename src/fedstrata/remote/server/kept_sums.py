"""The sums of masked or noised steps, on the server's disk before they are applied.

Sites give their update for a step once (`site/ledger.py`). So a server that goes on from a checkpoint does not run such
a step again: it takes the sum that it kept, and who was there when the round began. Without one, the step makes no
update. With it, the same noise is published again, not a second draw of it.

The files lie beside the checkpoint, CHECKPOINT/sum-ROUND-STEP; the next checkpoint, which holds what came of them,
removes them with everything else that it does not name. A round of very many sums (Stratify's batches) fills no disk:
beyond so many bytes, nothing more is kept of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedstrata.core.errors import RequestError, UnsummableError
from fedstrata.core.messages import Report, Sums, Task, Tensors
from fedstrata.core.storage.files import PART, write_atomically
from fedstrata.core.wire import pack, pack_report, unpack, unpack_report
from fedstrata.privacy.frames import join, split

MOST = 1 << 32  # bytes of the sums of one round


@dataclass(frozen=True)
class KeptSum:
    """A step as it went: what was reported, and the sum."""

    reports: Sequence[Report]  # their open halves
    sums: Sums
    overhead_bytes: tuple[int, int]

    def of(self, weights: Mapping[int, float]) -> Sums:
        """Return the sum, which is one with these weights and no others."""
        if dict(weights) != dict(self.sums.shares):
            raise UnsummableError("the sum that was kept of this step has other weights")
        return self.sums


class KeptSums:
    """The sums of the present round."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._there: Sequence[int] = ()
        self._bytes = 0

    def attendance(self, round: int, now: Sequence[int]) -> Sequence[int]:
        """Return the clients that are there in a round: where sums of it were kept, those who were there then."""
        files = [file for file in self._folder.glob(f"sum-{round}-*") if file.suffix != PART]
        self._there = _read(files[0])[0]["there"] if files else now
        self._bytes = sum(file.stat().st_size for file in files)
        return self._there

    def find(self, tasks: Sequence[Task]) -> KeptSum | None:
        """Return what was kept of a step; None where it must still be run."""
        if not (file := self._file(tasks)).exists():
            return None
        about, total, reports = _read(file)
        if about["asked"] != _asked(tasks):
            return None  # others are asked now: those who gave their update refuse to give it again
        shares = {int(client): weight for client, weight in about["shares"]}
        sums = Sums(total, about["weight"], about["count"], shares=shares)
        return KeptSum(reports, sums, (about["overhead"][0], about["overhead"][1]))

    def keep(self, tasks: Sequence[Task], kept: KeptSum) -> bool:
        """Make a step's sum safe on disk; say whether there was room for it."""
        about = {
            "asked": _asked(tasks),
            "there": list(self._there),
            "weight": kept.sums.weight,
            "count": kept.sums.count,
            "shares": list(kept.sums.shares.items()),
            "overhead": kept.overhead_bytes,
        }
        reports = [pack_report(report) for report in kept.reports]
        content = join([json.dumps(about).encode(), pack({}, kept.sums.total), *reports])
        self._bytes += len(content)
        if self._bytes > MOST:
            return False
        write_atomically(self._file(tasks), sha256(content).digest(), content)
        return True

    def _file(self, tasks: Sequence[Task]) -> Path:
        return self._folder / f"sum-{tasks[0].round}-{tasks[0].step}"


def _asked(tasks: Sequence[Task]) -> list[Any]:
    return [tasks[0].kind, *(task.client for task in tasks)]


def _read(file: Path) -> tuple[dict[str, Any], Tensors, list[Report]]:
    data = file.read_bytes()
    if sha256(data[32:]).digest() != data[:32]:
        raise RequestError(f"{file} is damaged: its checksum does not match; without it, the step makes no update")
    about, total, *reports = split(data[32:])
    return json.loads(about), unpack(total)[1], [unpack_report(report) for report in reports]
