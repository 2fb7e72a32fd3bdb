"""Does a server bear many sites, and a run many rounds? Memory and time a round, and whether they stay as they are.

1,000 sites, each with data and a model of its own, at one server, all in one process: asked one after another, and on
the server's stream, each over a connection with TLS of its own. There no more than two answer at
a moment: sites have machines of their own, and a thousand at once would measure how this one bears them.
10,000 rounds in one process, and 1,000 at sites: memory and processor time a round at the end are those of the
beginning. Survived are answers that came, and tenths of a run that took no more than its first.
"""

from __future__ import annotations

import json
import resource
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from campaigns._children import run_child
from campaigns._clock import seconds_left
from campaigns._command import command
from campaigns._federation import Direct, Here, begin_or_resume, make_hosts
from campaigns._subjects import SHORT
from campaigns._table import Row, Table
from fedstrata import STOP
from fedstrata.core.machine.threads import one_thread
from fedstrata.remote.flower.invitation import Invitation
from fedstrata.runs.folder import Run
from fedstrata.runs.training import train
from fedstrata.testing import tiny_federation

SITES, QUICK_SITES, EXCHANGES = 1000, 20, 5
AT_ONCE = 2  # sites that train at a moment, where they share a process
ROUNDS, ROUNDS_AT_SITES, QUICK_ROUNDS = 10_000, 1_000, 60
MORE_TIME, MORE_MEMORY = 1.5, 32.0  # times the first tenth; MB beyond it
MB = 1 << 20


def main(arguments: Sequence[str]) -> int:
    """Run, tell, and store."""
    return command("load", PARTS, arguments, __doc__)


# ---- many sites ------------------------------------------------------------------------------------------------------


def many_sites(folder: Path, table: Table) -> None:
    """Let as many sites as there are take part in every round, asked one after another."""
    _many(folder, table, "at one server", run_many)


def many_connections(folder: Path, table: Table) -> None:
    """Let them take part over the server's stream, with a connection each."""
    if find_spec("grpc") is not None:
        _many(folder, table, "on one stream", run_streaming)


def _many(folder: Path, table: Table, way: str, work: Callable[[Path, int, Path], None]) -> None:
    sites, told = QUICK_SITES if table.quick else SITES, folder / "told"
    row = table.row(f"{sites:,} sites {way}")
    if row.tried:
        return
    ended = run_child(folder / "notes", work, folder / "run", sites, told)
    row.wanted = row.tried = sites * EXCHANGES
    if ended.code:
        row.examples.append(ended.words)
    else:
        row.figures = json.loads(told.read_text())
        row.survived = int(row.figures.pop("updates"))
    table.keep(row)


def run_many(out: Path, sites: int, told: Path) -> None:
    """Run a few rounds at sites that are asked one after another, and tell how it went."""
    before = _memory()
    hosts = make_hosts(tiny_federation(sites), _names(sites), None, None)
    with one_thread():
        run = begin_or_resume(Direct(hosts), _few_rounds(sites), out, sites)
    told.write_text(json.dumps({**_figures(run), "MB of server and sites": _memory() - before}))


def run_streaming(out: Path, sites: int, told: Path) -> None:
    """Do the same over the stream, where all are asked at once."""
    from fedstrata.remote.flower import stream_site  # noqa: PLC0415 - an extra
    from fedstrata.remote.flower.stream import open_stream  # noqa: PLC0415

    # Sites of one process would share one connection; sites have a process each.
    stream_site.BACKOFF = (*stream_site.BACKOFF, ("grpc.use_local_subchannel_pool", 1))
    hosts = make_hosts(tiny_federation(sites), _names(sites), None, None)
    before = _memory()
    stream = open_stream(Joining(hosts), "127.0.0.1:0", "load", patience=600.0, grace=60.0)
    try:
        connected = _memory()
        with one_thread():
            run = begin_or_resume(stream, _few_rounds(sites), out, sites)
    finally:
        stream.close()
    told.write_text(json.dumps({**_figures(run), "MB of both ends of the connections": connected - before}))


def _names(sites: int) -> list[str]:
    return [f"site-{i:04}" for i in range(sites)]


def _few_rounds(sites: int) -> dict[str, Any]:
    return {"data.clients": sites, "train.rounds": EXCHANGES, "train.evaluate.every": EXCHANGES}


def _figures(run: Run) -> dict[str, float]:
    rounds = [event for event in run.events() if event["event"] == "round"]
    return {
        "updates": sum(len(step["clients"]) for event in rounds for step in event["steps"]),
        "seconds a round, training at all sites included": statistics.median(e["wall"]["seconds"] for e in rounds),
    }


class Joining(Here):
    """Brings invitations to sites in this process; each follows one in a thread of the stream's own."""

    def __init__(self, hosts: Mapping[str, Any]):
        super().__init__(hosts)
        self._turn = threading.Semaphore(AT_ONCE)

    def exchange(
        self, requests: Mapping[str, bytes], deadline: float | None = None, enough: int | None = None
    ) -> dict[str, bytes]:
        """Follow one invitation until the stream ends."""
        from fedstrata.remote.flower.stream_site import StreamSite  # noqa: PLC0415 - an extra

        ((name, request),) = requests.items()

        def answer(asked: bytes) -> bytes:
            with self._turn:
                return bytes(self._hosts[name].answer(asked))

        return {name: str(StreamSite(Invitation.read(request), answer).run()).encode()}


def _memory() -> float:
    """Return the most memory that this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MB


# ---- many rounds -----------------------------------------------------------------------------------------------------


def many_rounds(folder: Path, table: Table) -> None:
    """Let a run be long."""
    _long(folder, table, "in one process", run_long, ROUNDS)


def many_rounds_at_sites(folder: Path, table: Table) -> None:
    """Let a run at sites be long."""
    _long(folder, table, "at four sites", run_long_at_sites, ROUNDS_AT_SITES)


def _long(folder: Path, table: Table, name: str, work: Callable[..., None], most: int) -> None:
    rounds, told = QUICK_ROUNDS if table.quick else most, folder / "told"
    row = table.row(f"{rounds:,} rounds {name}")
    if row.figures.get("rounds") == rounds:  # one that was ended in time starts anew: memory is that of one process
        return
    row = table.rows[row.name] = Row(row.name)
    ended = run_child(folder / "notes", work, folder / "run", rounds, told, seconds_left())
    row.wanted = 10  # tenths of the run
    if ended.code:
        row.note(ended.words)
    else:
        _judge(row, json.loads(told.read_text()), rounds, timed=not table.quick)
    table.keep(row)


def run_long(out: Path, rounds: int, told: Path, seconds: float) -> None:
    """Run so many rounds; tell processor time and memory after each."""
    seen = Seen(seconds)
    with one_thread():
        asked = {**SHORT, "train.rounds": rounds, "train.evaluate.every": max(rounds // 20, 1)}
        train(overrides=asked, federation=tiny_federation(), out=out, watch=seen, progress=False)
    told.write_text(json.dumps(seen.rounds))


def run_long_at_sites(out: Path, rounds: int, told: Path, seconds: float) -> None:
    """Do the same at sites that keep their audit logs, ledgers and state on disk."""
    seen, names = Seen(seconds), ["a", "b", "c", "d"]
    hosts = make_hosts(tiny_federation(4), names, None, out.with_name("sites"))
    with one_thread():
        asked = {"method.name": "scaffold", "train.rounds": rounds, "train.evaluate.every": max(rounds // 20, 1)}
        begin_or_resume(Direct(hosts), asked, out, 4, watch=seen)
    told.write_text(json.dumps(seen.rounds))


class Seen:
    """Notes processor time and memory after every round, and ends a run whose time is over."""

    def __init__(self, seconds: float) -> None:
        self.rounds: list[tuple[float, float]] = []
        self._until = time.monotonic() + seconds
        self._before = time.process_time()

    def __call__(self, event: Mapping[str, Any]) -> object:
        """Note a round."""
        if event["event"] == "round":
            now, pages = time.process_time(), int(Path("/proc/self/statm").read_text().split()[1])
            self.rounds.append((now - self._before, pages * resource.getpagesize() / MB))
            self._before = now
        return STOP if time.monotonic() > self._until else None


def _judge(row: Row, rounds: Sequence[tuple[float, float]], asked: int, timed: bool) -> None:
    """Hold every tenth of a run against its first; what clocks say only where the run is long."""
    size = asked // 10
    tenths = [rounds[at : at + size] for at in range(0, len(rounds) - size + 1, size)]
    times = [statistics.median(seconds for seconds, _ in tenth) for tenth in tenths]
    memory = [max(mb for _, mb in tenth) for tenth in tenths]
    for number, (seconds, mb) in enumerate(zip(times, memory, strict=True)):
        slow, large = timed and seconds > MORE_TIME * times[0], mb > memory[0] + MORE_MEMORY
        why = f"{1000 * seconds:.2f} ms a round after {1000 * times[0]:.2f}, {mb:.0f} MB after {memory[0]:.0f}"
        row.note(f"tenth {number + 1}: {why}" if slow or large else None)
    row.figures = {"rounds": len(rounds)}
    if tenths:
        row.figures |= {
            "ms of processor time a round, first tenth": 1000 * times[0],
            "ms of processor time a round, last tenth played": 1000 * times[-1],
            "MB, first tenth": memory[0],
            "MB, last tenth played": memory[-1],
        }


PARTS = {
    "sites": many_sites,
    "stream": many_connections,
    "rounds": many_rounds,
    "rounds-at-sites": many_rounds_at_sites,
}
