"""The figures of a server: its sites, its runs, and the events of the latest one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any

from fedstrata.core.storage.event_lines import read_event
from fedstrata.core.storage.file_lock import is_locked
from fedstrata.deploy.metrics import MetricFamily, of_certificates, of_processes
from fedstrata.deploy.server.run_book import FAILED_STATE, FINISHED, RUNNING, STOPPED, WAITING, read_booked
from fedstrata.deploy.site_reports import AWAY, BUSY, FULL, READY, SiteCondition, conditions
from fedstrata.deploy.state import QUEUE

QUEUED, UNKNOWN = "queued", "unknown"  # a run whose turn has not come; a site that has never said anything
SITE_STATES = (READY, BUSY, FULL, AWAY, UNKNOWN)
STATES = (QUEUED, WAITING, RUNNING, FINISHED, FAILED_STATE, STOPPED)
PLAIN = ("accuracy", "loss_test", "seconds")  # figures of a round that become gauges


class ServerFigures:
    """The figures of a server; of the run that began last, what its events say.

    `sites` gives the names of those whose keys may connect; `certificates` is the server's key folder.
    """

    def __init__(self, folder: Path, sites: Callable[[], Iterable[str]], certificates: Path | None = None):
        self._folder, self._sites, self._certificates, self._events = folder, sites, certificates, EventCounts()

    def __call__(self) -> Iterator[MetricFamily]:
        """Read them."""
        yield from of_processes(self._folder)
        yield of_certificates(self._certificates)
        registered = set(self._sites())
        yield MetricFamily("fedstrata_sites_registered", "Sites whose keys may connect.").add(len(registered))
        said = conditions(self._folder)
        if self._certificates is not None:  # who was revoked is not away, but none of the federation's
            said = {site: how for site, how in said.items() if site in registered}
        yield from of_sites(said, registered)
        runs = read_booked(self._folder)
        states = Counter(run.state() for run in runs) + Counter({QUEUED: count_queued(self._folder)})
        figure = MetricFamily("fedstrata_runs", "Runs by what has become of them.", labels=("state",))
        for state in STATES:
            figure.add(states[state], state)
        yield figure
        if runs:
            last = runs[-1]
            self._events.read(Path(last.path))
            yield from self._events.figures(last.name, last.method)


def of_sites(said: Mapping[str, SiteCondition], registered: Set[str]) -> Iterator[MetricFamily]:
    """Return how each site is doing, by its own word, and since when nothing was heard of it."""
    states = MetricFamily("fedstrata_site_state", "1 for the state that a site is in.", labels=("site", "state"))
    heard = MetricFamily("fedstrata_site_heard_timestamp_seconds", "When a site was heard last.", labels=("site",))
    for site in sorted(registered | set(said)):
        how = said.get(site)
        for state in SITE_STATES:
            states.add(state == (UNKNOWN if how is None else how.state), site, state)
        if how is not None:
            heard.add(how.heard, site)
    yield states
    yield heard


def count_queued(folder: Path) -> int:
    """Count the runs that wait for their turn, or for an operator's approval: the server does not know them yet."""
    count = 0
    for file in (folder / QUEUE).glob("*.json"):
        try:
            submitted = json.loads(file.read_text())["submitted"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        count += not submitted and is_locked(file.with_suffix(".lock"))
    return count


class EventCounts:
    """What the events of a run come to, read on from where they were read before."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._at = 0
        self.counts: Counter[str] = Counter()
        self.last: dict[str, Any] = {}  # the newest round

    def read(self, run: Path) -> None:
        """Take in what is new; another run, or one that was cut back, begins anew."""
        path = run / "events.jsonl"
        size = path.stat().st_size if path.exists() else 0
        if path != self._path or size < self._at:
            self._path, self._at, self.counts, self.last = path, 0, Counter(), {}
        if size == self._at:
            return
        with path.open("rb") as file:
            file.seek(self._at)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._at += len(whole)
        for line in whole.splitlines():
            event = read_event(line) or {"event": "damaged"}
            self.counts[str(event["event"])] += 1
            if event["event"] == "round":
                self.last = event

    def figures(self, run: str, method: str) -> Iterator[MetricFamily]:
        """Return them."""
        labels = ("run", "method")
        if "round" in self.last:
            rounds = MetricFamily("fedstrata_run_round", "The newest round of the latest run.", labels=labels)
            yield rounds.add(self.last["round"], run, method)
        for name in PLAIN:
            if isinstance(self.last.get(name), int | float):
                figure = MetricFamily(f"fedstrata_run_{name}", f"{name} of that round.", labels=labels)
                yield figure.add(self.last[name], run, method)
        kinds = MetricFamily("fedstrata_run_events", "Events of the latest run.", "counter", ("run", "event"))
        for kind, count in sorted(self.counts.items()):
            kinds.add(count, run, kind)
        yield kinds
