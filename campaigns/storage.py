"""Does a bad disk cost anybody a run, or give them a wrong one? Full, read-only, cut off, flipped, moved, shared.

A run survives a disk that takes nothing more if it ends with an error in words, and goes on to the same result, bit for
bit, once there is room. It survives damage if it is refused in words, or comes to the same models all the same. Nothing
may come to other models in silence.
"""

from __future__ import annotations

import resource
import shutil
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from random import Random

from campaigns._children import REFUSED, run_child, start, wait
from campaigns._command import command
from campaigns._faults import Disk, How, some_calls
from campaigns._subjects import SUBJECTS, Overrides, go, outcome
from campaigns._table import Table
from fedstrata.config.experiment import Experiment
from fedstrata.core.errors import FedstrataError

ALL = "fedcda, models of clients in files"  # has every kind of file
FAILURES: Sequence[How] = ("full", "read-only")
FLIPS = 12  # a file
FEW = ("CURRENT", "events.jsonl", "experiment.toml")  # of which a quick campaign damages one each
CUT, FLIPPED, GONE = "a file is cut off", "a bit of a file is flipped", "a file is gone"
AT_ONCE, TIMES, QUICK_TIMES = (2, 4), 12, 1  # processes, and how often


def main(arguments: Sequence[str]) -> int:
    """Run, tell, and store."""
    return command("storage", PARTS, arguments, __doc__)


def refusing(folder: Path, table: Table) -> None:
    """Fill a row a way in which a disk takes nothing more."""
    place = Place(folder, ALL)
    _failing(place, table)
    _too_large(place, table)


def damaged(folder: Path, table: Table) -> None:
    """Fill a row a kind of damage to the files of a run that was stopped."""
    _damage(Place(folder, ALL), table)


def moved(folder: Path, table: Table) -> None:
    """Fill the row of stopped runs, of every kind, that go on somewhere else."""
    names = list(SUBJECTS)[: 2 if table.quick else None]
    new = table.row("the folder was moved")
    for row, (number, name) in table.left((new, case) for case in enumerate(names)):
        place = Place(folder / f"moved-{number}", name)
        there = folder / f"moved-{number}" / "another place" / "ÄÖ run"
        there.parent.mkdir()
        place.stopped().rename(there)
        row.note((wrong := place.goes_on(there)) and f"{name}: {wrong}")


def shared(folder: Path, table: Table) -> None:
    """Fill a row for processes that begin, and one for those that go on, in one folder at the same moment."""
    _shared(Place(folder, ALL), table)


class Place:
    """A run that nobody disturbed, the same one stopped half way, and a folder in which it is tried."""

    def __init__(self, folder: Path, name: str):
        self.overrides: Overrides = SUBJECTS[name]
        folder.mkdir(exist_ok=True)
        self.half, self.run, self.notes = folder / "half", folder / "run", folder / "notes"
        whole = folder / "whole"
        self.calls = int(run_child(self.notes, go, whole, self.overrides, disk=Disk(whole, "count", 0)).said)
        self.expected = outcome(whole)
        run_child(self.notes, go, self.half, self.overrides, disk=Disk(self.half, "kill", self.calls * 2 // 3))

    def stopped(self) -> Path:
        """Put a copy of the stopped run where it is tried."""
        shutil.rmtree(self.run, ignore_errors=True)
        return Path(shutil.copytree(self.half, self.run))

    def goes_on(self, run: Path | None = None) -> str | None:
        """Let it go on, and compare; give what went wrong."""
        ended = run_child(self.notes, go, run or self.run, self.overrides)
        if ended.code:
            return f"it does not go on ({ended.words})"
        return None if outcome(run or self.run) == self.expected else "it came to something else"


# ---- disks that refuse -----------------------------------------------------------------------------------------------


def _failing(place: Place, table: Table) -> None:
    for how in FAILURES:
        new = table.row(f"the disk is {how}, from a call on")
        for row, at in table.left((new, at) for at in some_calls(place.calls, table.quick, every=8)):
            shutil.rmtree(place.run, ignore_errors=True)
            ended = run_child(place.notes, go, place.run, place.overrides, disk=Disk(place.run, how, at))
            wrong = place.goes_on() if ended.code in (0, REFUSED) else f"it ended otherwise ({ended.words})"
            row.note(wrong and f"at call {at}: {wrong}")


def _too_large(place: Place, table: Table) -> None:
    """Let the system itself cut writes off in the middle."""
    new = table.row("no file may be longer, says the system")
    for row, size in table.left((new, size) for size in range(0, 6000, 3000 if table.quick else 300)):
        shutil.rmtree(place.run, ignore_errors=True)
        ended = run_child(place.notes, go_within, place.run, place.overrides, size)
        wrong = place.goes_on() if ended.code in (0, REFUSED) else f"it ended otherwise ({ended.words})"
        row.note(wrong and f"than {size} bytes: {wrong}")


def go_within(path: Path, overrides: Overrides, size: int) -> None:
    """Run where no file may be longer than so many bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    try:
        go(path, overrides)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


# ---- damage ----------------------------------------------------------------------------------------------------------


Change = Callable[[bytes], bytes | None]  # None: the file is gone


def _damage(place: Place, table: Table) -> None:
    files = [file.relative_to(place.half) for file in sorted(place.half.rglob("*")) if file.is_file()]
    files = [file for file in files if not table.quick or file.name in FEW]
    cases = (case for file in files for case in _damages(file, (place.half / file).stat().st_size, table.quick))
    kinds = {name: table.row(name) for name in (CUT, FLIPPED, GONE)}
    for row, (file, change, what) in table.left((kinds[name], case) for name, *case in cases):
        row.note(_wrong(place, file, change, what))


def _damages(file: Path, size: int, quick: bool) -> Iterator[tuple[str, Path, Change, str]]:
    """Give what is done to a file: the row it belongs to, the file, the change, and what to call it."""
    for left in [size // 2] if quick else sorted({0, size // 4, size * 3 // 4, max(size - 1, 0)}):
        yield CUT, file, lambda data, left=left: data[:left], f"{file} cut to {left} bytes"
    for number in range(1 if quick else FLIPS) if size else ():
        at = Random(f"{file} {number}").randrange(size * 8)
        yield FLIPPED, file, lambda data, at=at: _flip(data, at), f"{file}, bit {at}"
    yield GONE, file, lambda data: None, f"{file} gone"


def _flip(data: bytes, at: int) -> bytes:
    changed = bytearray(data)
    changed[at // 8] ^= 1 << at % 8
    return bytes(changed)


def _wrong(place: Place, file: Path, change: Change, what: str) -> str | None:
    """Damage a file of the stopped run, and let it go on; say what may not be."""
    target = place.stopped() / file
    data = change(target.read_bytes())
    target.unlink() if data is None else target.write_bytes(data)
    ended = run_child(place.notes, go, place.run, place.overrides)
    if ended.code == REFUSED:
        return None
    if ended.code:
        return f"{what}: {ended.words}"
    return None if _as_good(place, file) else f"{what}: it came to something else, in silence"


def _as_good(place: Place, file: Path) -> bool:
    """Say whether the models are the same; an experiment that says another number of rounds goes on so."""
    (_, models, _), (_, expected, _) = outcome(place.run), place.expected
    return models == expected or (file.name == "experiment.toml" and _rounds(place.run) != _rounds(place.half))


def _rounds(run: Path) -> int | None:
    try:
        return Experiment.of(run / "experiment.toml").train.rounds
    except FedstrataError:
        return None


# ---- several processes -----------------------------------------------------------------------------------------------


def _shared(place: Place, table: Table) -> None:
    """Let processes begin, or go on, in one folder at the same moment: one does, and the others are told."""
    for processes, what in product(AT_ONCE[:1] if table.quick else AT_ONCE, ("begin", "go on")):
        new = table.row(f"{processes} processes {what} in one folder at once")
        for row, number in table.left((new, number) for number in range(QUICK_TIMES if table.quick else TIMES)):
            place.stopped()
            if what == "begin":
                shutil.rmtree(place.run)
            row.note((wrong := _at_once(place, processes)) and f"time {number + 1}: {wrong}")


def _at_once(place: Place, processes: int) -> str | None:
    notes = [place.notes.with_name(f"notes-{i}") for i in range(processes)]
    started = [start(note, go, place.run, place.overrides) for note in notes]
    ended = [wait(process, note) for process, note in zip(started, notes, strict=True)]
    odd = [one.words for one in ended if one.code not in (0, REFUSED)]
    if odd or all(one.code for one in ended):
        return (odd or [one.words for one in ended])[0]
    return place.goes_on()


PARTS = {"refusing": refusing, "damaged": damaged, "moved": moved, "shared": shared}
