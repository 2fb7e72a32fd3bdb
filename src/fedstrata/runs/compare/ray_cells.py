"""Cells as tasks on a Ray cluster: one a core, or a share of a GPU, on whichever node has room.

Each tells its events while it runs, through one small actor, so that the table is live and trials can be pruned.
Where a node sees the comparison's folder, a cell lies there from the start, and one whose node is lost goes on
elsewhere from its last checkpoint. Where not, it runs aside and comes back whole when it is finished.
"""

from __future__ import annotations

import asyncio
import io
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from torch import nn

from fedstrata.config.experiment import Experiment
from fedstrata.core.errors import RequestError
from fedstrata.core.storage.archives import unpack
from fedstrata.data.federation import Federation
from fedstrata.engines.local.gpu import NEIGHBOURS
from fedstrata.engines.ray.cluster import RUNNING, Cluster
from fedstrata.engines.ray.members import Share
from fedstrata.runs.compare.cells import Cell
from fedstrata.runs.compare.pool import CellRunner, Pruned, Tell

RETRIES = 3  # of a cell whose node or process was lost
LOCAL, RAY = "local", "ray"
_runners: dict[str, CellRunner] = {}  # of this process, by comparison: cells of a seed share their data


def check_engine_name(engine: str) -> None:
    """Refuse an engine that cells cannot be run on."""
    if engine != LOCAL and engine.partition("=")[0] != RAY:
        raise RequestError(f'engine = "{engine}" is unknown; allowed: local, ray, ray=HOST:PORT')


def refuse_nested(cells: Sequence[Cell]) -> None:
    """Refuse cells that would want a cluster of their own inside a task."""
    for cell in cells:
        if (kind := cell.experiment.engine.kind) != LOCAL:
            raise RequestError(
                f'engine.kind = "{kind}" in {cell.name}: cells that are tasks of a cluster are run on engine.kind = '
                '"local"; leave out one of the two'
            )


class EventPost:
    """Carries events of cells to whoever compares, and answers to cells that may be pruned."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[tuple[int, Mapping[str, Any]]] = asyncio.Queue()
        self._answers: dict[int, asyncio.Queue[bool]] = {}

    async def tell(self, cell: int, event: Mapping[str, Any]) -> None:
        """Take an event."""
        await self._events.put((cell, event))

    async def listen(self) -> list[tuple[int, Mapping[str, Any]]]:
        """Return events, at least one."""
        return [await self._events.get(), *await self.drain()]

    async def drain(self) -> list[tuple[int, Mapping[str, Any]]]:
        """Return the events that are there."""
        return [self._events.get_nowait() for _ in range(self._events.qsize())]

    async def answer(self, cell: int, go_on: bool) -> None:
        """Take what a cell waits for."""
        await self._answers.setdefault(cell, asyncio.Queue()).put(go_on)

    async def wait_for_answer(self, cell: int) -> bool:
        """Wait for it."""
        return await self._answers.setdefault(cell, asyncio.Queue()).get()


def run_cell(
    token: str,
    given: tuple[Federation | None, nn.Module | None],
    post: Any,
    cell: tuple[int, Path, Experiment, bool],
) -> tuple[Mapping[str, Any], bytes | None]:
    """Run a cell in this process; return its last event and, where nobody else sees its folder, the folder."""
    number, path, experiment, prunable = cell
    ray = Cluster(RUNNING).ray
    torch.set_num_threads(1)
    runner = _runners.setdefault(token, CellRunner(*given))

    def tell(event: Mapping[str, Any]) -> None:  # steps may be many, and are on disk
        ray.get(post.tell.remote(number, {key: value for key, value in event.items() if key != "steps"}))
        if prunable and event["event"] == "round" and not ray.get(post.wait_for_answer.remote(number)):
            raise Pruned

    if _marker(path, token).exists():
        return runner.run(path, experiment, tell), None
    with tempfile.TemporaryDirectory() as aside:
        end = runner.run(Path(aside) / "run", experiment, tell)
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            archive.add(Path(aside) / "run", ".")
        return end, packed.getvalue()


def on_cluster(
    cells: Sequence[Cell],
    federation: Federation | None,
    model: nn.Module | None,
    tell: Tell,
    engine: str,
    jobs: int | None,
    may_begin: Callable[[Cell], bool],
    time_left: Callable[[], float | None],
) -> bool:
    """Run cells on a cluster, as many at a time as have room; say whether all were run before the time was up."""
    cluster = find_cluster(engine)
    token = uuid4().hex
    try:
        with _marked(cells, token):
            queue = CellQueue(cluster, token, (federation, model), jobs)
            try:
                return queue.run(cells, tell, may_begin, time_left)
            finally:
                queue.close()
    finally:
        cluster.close()


class CellQueue:
    """Gives cells to a cluster in order, and passes on what they tell."""

    def __init__(self, cluster: Cluster, token: str, given: tuple[Any, Any], jobs: int | None):
        self._cluster, self._ray, self._token, self._jobs = cluster, cluster.ray, token, jobs
        self._given = self._ray.put(given)
        here = {"num_cpus": 0, "scheduling_strategy": cluster.at()}  # beside us: no lost node takes it away
        self._post = self._ray.remote(EventPost).options(**here).remote()
        self._running: dict[Any, int] = {}

    def run(
        self,
        cells: Sequence[Cell],
        tell: Tell,
        may_begin: Callable[[Cell], bool],
        time_left: Callable[[], float | None],
    ) -> bool:
        """Run cells in order; say whether all were run."""
        waiting = list(range(len(cells)))
        heard = self._post.listen.remote()
        while any(may_begin(cells[number]) for number in waiting) or self._running:
            self._begin(cells, waiting, may_begin)
            ready, _ = self._ray.wait([heard, *self._running], num_returns=1, timeout=time_left())
            if not ready:  # the time is up
                return False
            if heard in ready:
                events, heard = self._ray.get(heard), self._post.listen.remote()
                self._pass_on(cells, tell, events)
            for ref in [ref for ref in self._running if ref in ready]:
                self._pass_on(cells, tell, self._ray.get(self._post.drain.remote()))
                self._end(cells[self._running.pop(ref)], ref, tell)
        return not waiting

    def _begin(self, cells: Sequence[Cell], waiting: list[int], may_begin: Callable[[Cell], bool]) -> None:
        """Submit what has room, in order; where a long cell would not end in time, a shorter one after it may."""
        for number in list(waiting):
            if not may_begin(cells[number]):
                continue
            if len(self._running) >= self._room(cells[number]):
                break
            waiting.remove(number)
            self._running[self._submit(number, cells[number])] = number

    def _submit(self, number: int, cell: Cell) -> Any:
        share = self._share(cell)
        experiment = cell.experiment
        if not share.gpus and experiment.engine.workers == "auto":  # it has neighbours: one core
            one = experiment.engine.model_copy(update={"workers": 1})
            experiment = experiment.model_copy(update={"engine": one})
        task = self._ray.remote(run_cell).options(num_cpus=share.cpus, num_gpus=share.gpus, max_retries=RETRIES)
        told = number, cell.path.resolve(), experiment, cell.prunable
        return task.remote(self._token, self._given, self._post, told)

    def _share(self, cell: Cell) -> Share:
        on_gpu = cell.experiment.engine.device != "cpu" and any(node.gpus for node in self._cluster.nodes())
        workers = cell.experiment.engine.workers
        return Share(
            cpus=1.0 if workers == "auto" or on_gpu else float(workers), gpus=1 / NEIGHBOURS if on_gpu else 0.0
        )

    def _room(self, cell: Cell) -> int:
        """Return how many cells are run at a time: what fits now, which changes when nodes join."""
        room = max(sum(map(self._share(cell).room, self._cluster.nodes())), 1)
        return room if self._jobs is None else min(self._jobs, room)

    def _pass_on(self, cells: Sequence[Cell], tell: Tell, events: Sequence[tuple[int, Mapping[str, Any]]]) -> None:
        for number, event in events:
            go_on = True
            try:
                tell(cells[number], event)
            except Pruned:
                go_on = False
            if cells[number].prunable and event["event"] == "round":
                self._post.answer.remote(number, go_on)

    def _end(self, cell: Cell, ref: Any, tell: Tell) -> None:
        try:
            event, folder = self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            lines = str(error).strip().splitlines()
            event, folder = {"event": "failed", "why": f"its task was lost: {lines[-1] if lines else error!r}"}, None
        if folder is not None:
            cell.path.mkdir(parents=True, exist_ok=True)
            with tarfile.open(fileobj=io.BytesIO(folder)) as archive:
                unpack(archive, cell.path)
        with suppress(Pruned):
            tell(cell, event)

    def close(self) -> None:
        """End what is still running; it goes on from its last checkpoint the next time."""
        for ref in self._running:
            self._ray.cancel(ref, force=True)
        for ref in self._running:
            with suppress(self._ray.exceptions.RayError):
                self._ray.get(ref)
        self._ray.kill(self._post)


def find_cluster(engine: str) -> Cluster:
    """Connect to the cluster that is named; without a name to the one that runs here, or start one."""
    _, _, address = engine.partition("=")
    if address:
        return Cluster(address)
    try:
        return Cluster(RUNNING)
    except RequestError:
        return Cluster()


def _marker(path: Path, token: str) -> Path:
    return path.parent / f".{token}"


@contextmanager
def _marked(cells: Sequence[Cell], token: str) -> Iterator[None]:
    """Lay a mark beside every cell's folder, by which a node knows that it sees the same folder."""
    marks = {_marker(cell.path, token) for cell in cells}
    for mark in marks:
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    try:
        yield
    finally:
        for mark in marks:
            mark.unlink(missing_ok=True)
