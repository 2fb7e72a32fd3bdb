"""Is anything lost where a process dies? Kills at every file-system call of runs, and of real servers and sites.

A run survives if it goes on as a user lets it go on (`--resume`, or the same command where there is no run yet) and
comes to the same events and the same models, bit for bit, as one that nobody disturbed, and lost no more than the
round that was under way and the one before. Under masks and noise at sites,
where a step is given once, it survives if it makes all rounds, no site gave anything twice, and what is missing is an
event.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from campaigns._children import run_child
from campaigns._clock import in_time
from campaigns._command import command
from campaigns._faults import Disk, How, seen_file, some_calls
from campaigns._flower import crashed_over_flower
from campaigns._sites import crashed_under_masks, crashed_with_noise
from campaigns._subjects import SUBJECTS, Overrides, go, outcome
from campaigns._table import Table
from fedstrata.runs.folder import Run

DEATHS: Sequence[How] = ("kill", "torn", "power")
AGAIN = "fedcda, models of clients in files"  # is killed at every call, and while it goes on
SPREAD = 8  # the others at every eighth


def main(arguments: Sequence[str]) -> int:
    """Run, tell, and store."""
    return command("crash", PARTS, arguments, __doc__)


def local(folder: Path, table: Table) -> None:
    """Fill a row a kind of run and of death."""
    chosen = {AGAIN: SUBJECTS[AGAIN]} if table.quick else SUBJECTS
    for number, (name, overrides) in in_time(enumerate(chosen.items())):
        _killed(folder / str(number), name, overrides, table)
    for name in in_time([AGAIN]):
        _killed_again(folder / "again", name, SUBJECTS[name], table)


def _killed(folder: Path, name: str, overrides: Overrides, table: Table) -> None:
    """Kill a run from its beginning on."""
    folder.mkdir()
    whole, run, notes = folder / "whole", folder / "run", folder / "notes"
    counted = run_child(notes, go, whole, overrides, disk=Disk(whole, "count", 0))
    expected, calls = outcome(whole), int(counted.said)
    for death in DEATHS:
        new = table.row(f"{name}: {death}")
        every = 1 if (name, death) == (AGAIN, "kill") else SPREAD
        for row, at in table.left((new, at) for at in some_calls(calls, table.quick, every)):
            shutil.rmtree(run, ignore_errors=True)
            row.note(_survives(notes, run, overrides, Disk(run, death, at), expected))


def _killed_again(folder: Path, name: str, overrides: Overrides, table: Table) -> None:
    """Kill a run half way, and again at every call with which it goes on."""
    folder.mkdir()
    whole, half, run, notes = folder / "whole", folder / "half", folder / "run", folder / "notes"
    counted = run_child(notes, go, whole, overrides, disk=Disk(whole, "count", 0))
    expected = outcome(whole)
    run_child(notes, go, half, overrides, disk=Disk(half, "kill", int(counted.said) * 2 // 3))
    shutil.copytree(half, run)
    calls = int(run_child(notes, go, run, overrides, disk=Disk(run, "count", 0)).said)
    for death in DEATHS:
        new = table.row(f"{name}, while it goes on: {death}")
        for row, at in table.left((new, at) for at in some_calls(calls, table.quick, SPREAD)):
            shutil.rmtree(run)
            shutil.copytree(half, run)
            row.note(_survives(notes, run, overrides, Disk(run, death, at), expected))


def _survives(notes: Path, run: Path, overrides: Overrides, disk: Disk, expected: object) -> str | None:
    """Kill once, go on, and compare; give what went wrong."""
    where = f"{disk.how} at call {disk.at}"
    killed = run_child(notes, go, run, overrides, disk=disk)
    if not killed.died and killed.code:
        return f"{where}: it ended otherwise ({killed.words})"
    manifest = Run(run).checkpoints.manifest()
    saved, seen = 0 if manifest is None else manifest["round"], int(seen_file(run).read_text()) if killed.died else 0
    if saved < seen - 2:
        return f"{where}: {seen} rounds were told, and {saved} are left"
    gone_on = run_child(notes, go, run, overrides)
    if gone_on.code:
        return f"{where}: it does not go on ({gone_on.words})"
    return None if outcome(run) == expected else f"{where}: it came to something else"


PARTS = {"local": local, "masked": crashed_under_masks, "noised": crashed_with_noise, "flower": crashed_over_flower}
