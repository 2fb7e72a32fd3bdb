"""A server and four sites whose machines lose their power together: nobody gives anything twice."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from campaigns._children import play
from campaigns._clock import in_time
from campaigns._faults import Disk, How, some_calls
from campaigns._federation import Direct, make_hosts, play_at_sites
from campaigns._subjects import Overrides
from campaigns._table import Row
from fedstrata.core.threads import one_thread
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
        play_at_sites(transport, overrides, folder / "run", len(NAMES), Credentials.load(keys / "server"))


def crashed_under_masks(folder: Path, quick: bool) -> Iterator[Row]:
    """Give the rows of masked sums."""
    return _crashed(folder, MASKED, quick)


def crashed_with_noise(folder: Path, quick: bool) -> Iterator[Row]:
    """Give the rows of noise that sites add."""
    return _crashed(folder, NOISED, quick)


def _crashed(folder: Path, name: str, quick: bool) -> Iterator[Row]:
    """Give a row for power cuts and one for kills, in turns."""
    make(folder / "keys", NAMES)
    (overrides, what), rows = WISHES[name], {death: Row(f"{name}: {death}") for death in DEATHS}
    disk, notes, given = folder / "disk", folder / "notes", folder / "given"
    calls = int(play(notes, go_at_sites, disk, overrides, folder / "keys", disk=Disk(disk, "count", 0)).said)
    for at, death in in_time(product(some_calls(calls, quick, every=12), DEATHS)):
        shutil.rmtree(disk)
        given.unlink(missing_ok=True)
        dies = Disk(disk, death, at, disk / "run")
        killed = play(notes, go_at_sites, disk, overrides, folder / "keys", disk=dies)
        again = play(notes, go_at_sites, disk, overrides, folder / "keys")
        wrong = [f"it ended otherwise ({killed.words})"] if killed.code and not killed.died else []
        wrong += [f"it does not go on ({again.words})"] if again.code else _wrong(disk / "run", given, what)
        rows[death].note(f"{death} at call {at}: {wrong[0]}" if wrong else None)
    yield from rows.values()


def _wrong(run: Path, given: Path, what: str) -> list[str]:
    """Say what may not be: a step that a site gave twice, a round that is missing, a lost update that nobody tells."""
    left = Counter(line for line in given.read_text().splitlines() if line.startswith(what))
    events = Run.open(run).events()
    rounds = [event for event in events if event["event"] == "round"]
    quiet = {event["round"] for event in events if event["event"] in ("no_update", "site_refused", "dropped")}
    heard = {event["round"]: sum(len(step["clients"]) for step in event["steps"]) for event in rounds}
    wrong = [f"{line} was given {times} times" for line, times in left.items() if times > 1]
    wrong += [] if [event["round"] for event in rounds] == [1, 2, 3] else ["rounds are missing"]
    return wrong + [f"nothing says who is missing in round {r}" for r, n in heard.items() if n < 4 and r not in quiet]
