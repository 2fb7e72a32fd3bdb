"""A server and four sites whose machines lose their power together: nobody gives anything twice."""

from __future__ import annotations

import shutil
from collections import Counter
from itertools import product
from pathlib import Path

from campaigns._children import run_child
from campaigns._faults import Disk, How, some_calls
from campaigns._federation import Direct, begin_or_resume, make_hosts
from campaigns._subjects import Overrides
from campaigns._table import Table
from fedstrata.core.machine.threads import one_thread
from fedstrata.deploy.keys import make
from fedstrata.remote.credentials import Credentials
from fedstrata.runs.folder import Run
from fedstrata.testing import tiny_federation

NAMES = ("aachen", "bonn", "cologne", "dresden")
NOISE = {"method.combiner": "uniform", "privacy.dp.noise": 1.5, "privacy.dp.where": "local"}
DEATHS: tuple[How, ...] = ("power", "kill")
MASKED, NOISED = "sites, masked sums", "sites, noise of their own"
WISHES: dict[str, tuple[Overrides, str]] = {
    MASKED: ({"privacy.aggregate": "masked", "method.combiner": "uniform"}, "masked"),
    NOISED: (NOISE, "task"),
}


def go_at_sites(folder: Path, overrides: Overrides, keys: Path) -> None:
    """Begin, or go on, with a server and sites that know what is on their disks, and nothing else."""
    hosts = make_hosts(tiny_federation(len(NAMES)), NAMES, keys, folder / "sites")
    with one_thread():
        transport = Direct(hosts, folder.with_name("given"))
        begin_or_resume(transport, overrides, folder / "run", len(NAMES), Credentials.load(keys / "server"))


def crashed_under_masks(folder: Path, table: Table) -> None:
    """Fill the rows of masked sums."""
    _crashed(folder, MASKED, table)


def crashed_with_noise(folder: Path, table: Table) -> None:
    """Fill the rows of noise that sites add."""
    _crashed(folder, NOISED, table)


def _crashed(folder: Path, name: str, table: Table) -> None:
    """Fill a row of power cuts and one of kills, in turns."""
    make(folder / "keys", NAMES)
    (overrides, what), rows = WISHES[name], {death: table.row(f"{name}: {death}") for death in DEATHS}
    disk, notes, given = folder / "disk", folder / "notes", folder / "given"
    calls = int(run_child(notes, go_at_sites, disk, overrides, folder / "keys", disk=Disk(disk, "count", 0)).said)
    points = product(some_calls(calls, table.quick, every=12), DEATHS)
    for row, (at, death) in table.left((rows[death], (at, death)) for at, death in points):
        shutil.rmtree(disk)
        given.unlink(missing_ok=True)
        dies = Disk(disk, death, at, disk / "run")
        killed = run_child(notes, go_at_sites, disk, overrides, folder / "keys", disk=dies)
        again = run_child(notes, go_at_sites, disk, overrides, folder / "keys")
        wrong = [f"it ended otherwise ({killed.words})"] if killed.code and not killed.died else []
        wrong += [f"it does not go on ({again.words})"] if again.code else _wrong(disk / "run", given, what)
        row.note(f"{death} at call {at}: {wrong[0]}" if wrong else None)


def _wrong(run: Path, given: Path, what: str) -> list[str]:
    """Say what may not be: a step that a site gave twice, a round that is missing, a lost update that nobody tells."""
    left = Counter(line for line in given.read_text().splitlines() if line.startswith(what))
    events = Run.open(run).events()
    rounds = [event for event in events if event["event"] == "round"]
    quiet = {event["round"] for event in events if event["event"] in ("no_update", "site_refused", "dropped")}
    quiet |= {event["round"] for event in rounds if event.get("refused")}
    heard = {event["round"]: sum(len(step["clients"]) for step in event["steps"]) for event in rounds}
    wrong = [f"{line} was given {times} times" for line, times in left.items() if times > 1]
    wrong += [] if [event["round"] for event in rounds] == [1, 2, 3] else ["rounds are missing"]
    return wrong + [f"nothing says who is missing in round {r}" for r, n in heard.items() if n < 4 and r not in quiet]
