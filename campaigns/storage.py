"""Does a bad disk cost anybody a run, or give them a wrong one? Full, read-only, cut off, flipped, moved, shared.

A run survives a disk that takes nothing more if it ends with an error in words, and goes on to the same result, bit for
bit, once there is room. It survives damage if it is refused in words, or comes to the same models all the same. Nothing
may come to other models in silence.
"""

from __future__ import annotations

import resource
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from campaigns._children import REFUSED, play, start, wait
from campaigns._clock import in_time
from campaigns._command import command
from campaigns._faults import Disk, How, some_calls
from campaigns._subjects import SUBJECTS, Overrides, go, outcome
from campaigns._table import Row
from fedstrata.config.experiment import Experiment
from fedstrata.core.errors import FedstrataError

ALL = "fedcda, models of clients in files"  # has every kind of file
FAILURES: Sequence[How] = ("full", "read-only")
FLIPS = 12  # a file
FEW = ("CURRENT", "events.jsonl", "experiment.toml")  # of which a quick campaign damages one each
AT_ONCE, TIMES, QUICK_TIMES = 4, 12, 1  # processes, and how often


def main(arguments: Sequence[str]) -> int:
    """Play, tell, and store."""
    return command("storage", PARTS, arguments, __doc__)


def refusing(folder: Path, quick: bool) -> Iterator[Row]:
    """Give a row a way in which a disk takes nothing more."""
    place = Place(folder, ALL)
    yield from _failing(place, quick)
    yield _too_large(place, quick)


def damaged(folder: Path, quick: bool) -> Iterator[Row]:
    """Give a row a kind of damage to the files of a run that was stopped."""
    yield from _damage(Place(folder, ALL), quick)


def elsewhere(folder: Path, quick: bool) -> Iterator[Row]:
    """Give a row for folders that were moved, and two for those that several processes want."""
    yield _moved(folder, quick)
    yield from _shared(Place(folder, ALL), quick)


class Place:
    """A run that nobody disturbed, the same one stopped half way, and a folder in which it is tried."""

    def __init__(self, folder: Path, name: str):
        self.overrides: Overrides = SUBJECTS[name]
        folder.mkdir(exist_ok=True)
        self.half, self.run, self.notes = folder / "half", folder / "run", folder / "notes"
        whole = folder / "whole"
        self.calls = int(play(self.notes, go, whole, self.overrides, disk=Disk(whole, "count", 0)).said)
        self.expected = outcome(whole)
        play(self.notes, go, self.half, self.overrides, disk=Disk(self.half, "kill", self.calls * 2 // 3))

    def stopped(self) -> Path:
        """Put a copy of the stopped run where it is tried."""
        shutil.rmtree(self.run, ignore_errors=True)
        return Path(shutil.copytree(self.half, self.run))

    def goes_on(self, run: Path | None = None) -> str | None:
        """Let it go on, and compare; give what went wrong."""
        ended = play(self.notes, go, run or self.run, self.overrides)
        if ended.code:
            return f"it does not go on ({ended.words})"
        return None if outcome(run or self.run) == self.expected else "it came to something else"


# ---- disks that refuse -----------------------------------------------------------------------------------------------


def _failing(place: Place, quick: bool) -> Iterator[Row]:
    for how in FAILURES:
        row = Row(f"the disk is {how}, from a call on")
        for at in some_calls(place.calls, quick, every=8):
            shutil.rmtree(place.run, ignore_errors=True)
            ended = play(place.notes, go, place.run, place.overrides, disk=Disk(place.run, how, at))
            wrong = place.goes_on() if ended.code in (0, REFUSED) else f"it ended otherwise ({ended.words})"
            row.note(wrong and f"at call {at}: {wrong}")
        yield row


def _too_large(place: Place, quick: bool) -> Row:
    """Let the system itself cut writes off in the middle."""
    row = Row("no file may be longer, says the system")
    for size in in_time(range(0, 6000, 3000 if quick else 300)):
        shutil.rmtree(place.run, ignore_errors=True)
        ended = play(place.notes, go_within, place.run, place.overrides, size)
        wrong = place.goes_on() if ended.code in (0, REFUSED) else f"it ended otherwise ({ended.words})"
        row.note(wrong and f"than {size} bytes: {wrong}")
    return row


def go_within(path: Path, overrides: Overrides, size: int) -> None:
    """Play where no file may be longer than so many bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    try:
        go(path, overrides)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


# ---- damage ----------------------------------------------------------------------------------------------------------


def _damage(place: Place, quick: bool) -> Iterator[Row]:
    files = [file.relative_to(place.half) for file in sorted(place.half.rglob("*")) if file.is_file()]
    files = [file for file in files if not quick or file.name in FEW]
    cut, flipped, gone = Row("a file is cut off"), Row("a bit of a file is flipped"), Row("a file is gone")
    for file in files:
        size = (place.half / file).stat().st_size
        for left in {size // 2} if quick else {0, size // 4, size * 3 // 4, max(size - 1, 0)}:
            _try(place, cut, file, lambda data, left=left: data[:left], f"{file} cut to {left} bytes")
        for number in in_time(range(1 if quick else FLIPS) if size else ()):
            at = Random(f"{file} {number}").randrange(size * 8)
            _try(place, flipped, file, lambda data, at=at: _flip(data, at), f"{file}, bit {at}")
        _try(place, gone, file, lambda data: None, f"{file} gone")
    yield from (cut, flipped, gone)


def _flip(data: bytes, at: int) -> bytes:
    changed = bytearray(data)
    changed[at // 8] ^= 1 << at % 8
    return bytes(changed)


def _try(place: Place, row: Row, file: Path, change: object, what: str) -> None:
    target = place.stopped() / file
    data = change(target.read_bytes())  # type: ignore[operator]
    target.unlink() if data is None else target.write_bytes(data)
    ended = play(place.notes, go, place.run, place.overrides)
    if ended.code == REFUSED:
        row.note(None)
    elif ended.code:
        row.note(f"{what}: {ended.words}")
    else:
        row.note(None if _as_good(place, file) else f"{what}: it came to something else, in silence")


def _as_good(place: Place, file: Path) -> bool:
    """Say whether the models are the same; an experiment that says another number of rounds is played so."""
    (_, models, _), (_, expected, _) = outcome(place.run), place.expected
    return models == expected or (file.name == "experiment.toml" and _rounds(place.run) != _rounds(place.half))


def _rounds(run: Path) -> int | None:
    try:
        return Experiment.of(run / "experiment.toml").train.rounds
    except FedstrataError:
        return None


# ---- places ----------------------------------------------------------------------------------------------------------


def _moved(folder: Path, quick: bool) -> Row:
    """Let stopped runs go on somewhere else, of every kind."""
    row = Row("the folder was moved")
    for number, name in enumerate(list(SUBJECTS)[: 2 if quick else None]):
        place = Place(folder / f"moved-{number}", name)
        there = folder / f"moved-{number}" / "another place" / "ÄÖ run"
        there.parent.mkdir()
        place.stopped().rename(there)
        row.note((wrong := place.goes_on(there)) and f"{name}: {wrong}")
    return row


def _shared(place: Place, quick: bool) -> Iterator[Row]:
    """Let processes begin, or go on, in one folder at the same moment: one does, and the others are told."""
    for what in ("begin", "go on"):
        row = Row(f"{AT_ONCE} processes {what} in one folder at once")
        for number in in_time(range(QUICK_TIMES if quick else TIMES)):
            place.stopped()
            if what == "begin":
                shutil.rmtree(place.run)
            notes = [place.notes.with_name(f"notes-{i}") for i in range(AT_ONCE)]
            started = [start(note, go, place.run, place.overrides) for note in notes]
            ended = [wait(process, note) for process, note in zip(started, notes, strict=True)]
            odd = [one.words for one in ended if one.code not in (0, REFUSED)]
            if odd or all(one.code for one in ended):
                row.note(f"time {number + 1}: {(odd or [one.words for one in ended])[0]}")
            else:
                row.note((wrong := place.goes_on()) and f"time {number + 1}: {wrong}")
        yield row


PARTS = {"refusing": refusing, "damaged": damaged, "elsewhere": elsewhere}
