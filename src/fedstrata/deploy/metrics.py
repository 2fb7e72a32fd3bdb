"""Figures of a server or a site for Prometheus, as OpenMetrics: read from what lies on the disk when somebody asks.

They are served on a port of their own, on loopback unless told otherwise, without keys: nothing but sums and names of
sites leaves by it, no sample, label or model.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedstrata import __version__
from fedstrata.core.errors import RequestError
from fedstrata.core.event_lines import read_event
from fedstrata.core.file_lock import is_locked
from fedstrata.deploy import keys
from fedstrata.deploy.processes import everybody, family
from fedstrata.deploy.run_book import FAILED_STATE, FINISHED, RUNNING, STOPPED, WAITING, read_booked
from fedstrata.deploy.site_reports import AWAY, BUSY, FULL, READY, SiteCondition, conditions
from fedstrata.deploy.state import QUEUE, join_address

QUEUED, UNKNOWN = "queued", "unknown"  # a run whose turn has not come; a site that has never said anything
SITE_STATES = (READY, BUSY, FULL, AWAY, UNKNOWN)
STATES = (QUEUED, WAITING, RUNNING, FINISHED, FAILED_STATE, STOPPED)
PLAIN = ("accuracy", "loss_test", "seconds")  # figures of a round that become gauges
LOOPBACK = "127.0.0.1"

Read = Callable[[], Iterator["MetricFamily"]]


class MetricFamily:
    """One family of figures: a name, what it means, and values by labels."""

    def __init__(self, name: str, meaning: str, kind: str = "gauge", labels: tuple[str, ...] = ()):
        self.name, self.meaning, self.kind, self.labels = name, meaning, kind, labels
        self.values: list[tuple[tuple[str, ...], float]] = []

    def add(self, value: float, *labels: str) -> MetricFamily:
        """Add a value."""
        self.values.append((labels, float(value)))
        return self


def serve_metrics(read: Read, port: int, host: str = LOOPBACK) -> Callable[[], None]:
    """Answer with figures on a port, from a thread; give what ends it."""
    if find_spec("prometheus_client") is None:
        raise RequestError('--metrics-port needs prometheus-client: pip install "fedstrata[metrics]"')
    library = import_module("prometheus_client")
    core = import_module("prometheus_client.core")
    kinds = {"gauge": core.GaugeMetricFamily, "counter": core.CounterMetricFamily}

    class Collector:
        def collect(self) -> Iterator[Any]:
            for figure in read():
                told = kinds[figure.kind](figure.name, figure.meaning, labels=figure.labels)
                for labels, value in figure.values:
                    told.add_metric(list(labels), value)
                yield told

    registry = library.CollectorRegistry(auto_describe=False)
    registry.register(Collector())
    try:
        server, thread = library.start_http_server(port, host, registry)
    except OSError as error:
        raise RequestError(
            f"--metrics-port {port} cannot be used on {join_address(host, port)}: {error.strerror or error}"
        ) from None

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return end


# ---- what both tell ------------------------------------------------------------------------------------------------


def of_processes(folder: Path) -> Iterator[MetricFamily]:
    """Return what the processes of this command use, and the room on the disk of its state."""
    yield MetricFamily("fedstrata_build", "Version.", labels=("version",)).add(1, __version__)
    memory = MetricFamily("fedstrata_memory_bytes", "Resident memory of a server's or site's processes, all together.")
    seconds = MetricFamily("fedstrata_cpu_seconds", "Processor time of those that run now.", "counter")
    count = MetricFamily("fedstrata_processes", "How many they are.")
    there = everybody()
    own = [pid for pid, _ in family([(os.getpid(), there[os.getpid()][1])])] if os.getpid() in there else []
    used = [figures for pid in own if (figures := _used(pid)) is not None]
    yield memory.add(sum(size for size, _ in used))
    yield seconds.add(sum(spent for _, spent in used))
    yield count.add(len(used))
    yield MetricFamily("fedstrata_disk_free_bytes", "Room on the disk of the state.").add(
        shutil.disk_usage(folder).free
    )


def of_certificates(folder: Path | None) -> MetricFamily:
    """Return when the certificates beside the keys end; what cannot be read is said elsewhere."""
    ends = MetricFamily(
        "fedstrata_certificate_end_timestamp_seconds", "When a certificate ends.", labels=("certificate",)
    )
    with suppress(OSError, ValueError):
        for name, end in ({} if folder is None else keys.ends(folder)).items():
            ends.add(end.timestamp(), name.removesuffix(".crt"))
    return ends


def _used(pid: int) -> tuple[float, float] | None:
    """Return bytes and seconds; None where the system does not tell, or the process is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    return pages * os.sysconf("SC_PAGE_SIZE"), (int(fields[11]) + int(fields[12])) / ticks


# ---- a server ------------------------------------------------------------------------------------------------------


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


# ---- a site --------------------------------------------------------------------------------------------------------


class SiteFigures:
    """The figures of a site: what left it, from its audit log, and whether its process is there."""

    def __init__(self, folder: Path, awake: Callable[[], bool], certificates: Path | None = None):
        self._folder, self._awake, self._certificates, self._at = folder, awake, certificates, 0
        self._replies: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._bytes, self._latest = 0, 0.0

    def __call__(self) -> Iterator[MetricFamily]:
        """Read them."""
        yield from of_processes(self._folder)
        yield of_certificates(self._certificates)
        self._read()
        awake = MetricFamily("fedstrata_site_awake", "Whether the process that holds the data is there.")
        yield awake.add(self._awake())
        replies = MetricFamily("fedstrata_site_replies", "Replies that left the site.", "counter", ("kind",))
        refused = MetricFamily("fedstrata_site_refusals", "Requests that it refused.", "counter", ("kind",))
        for figure, counted in ((replies, self._replies), (refused, self._refused)):
            for kind, count in sorted(counted.items()):
                figure.add(count, kind)
            yield figure
        yield MetricFamily("fedstrata_site_reply_bytes", "Bytes of all replies.", "counter").add(self._bytes)
        since = time.time() - self._latest if self._latest else float("nan")
        yield MetricFamily("fedstrata_site_idle_seconds", "Since the last reply.").add(since)

    def _read(self) -> None:
        path = self._folder / "audit.jsonl"
        if not path.exists():
            return
        if path.stat().st_size < self._at:
            self._at = self._bytes = 0
            self._replies, self._refused = Counter(), Counter()
        self._latest = path.stat().st_mtime
        with path.open("rb") as file:
            file.seek(self._at)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._at += len(line)
                try:
                    told = json.loads(line)
                    kind, size = str(told["kind"]), int(told["bytes"])
                except (ValueError, KeyError, TypeError):
                    continue
                (self._refused if "refused" in told else self._replies)[kind] += 1
                self._bytes += size
