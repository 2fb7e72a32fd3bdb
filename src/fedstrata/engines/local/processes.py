"""Several workers, each a process with one thread, over memory that they share.

Workers are started as plain child processes, so a user's script is never imported a second time. Samples and models lie
in unnamed shared files: only small messages go through sockets, and whatever happens to a process, nothing is left.
Work is dealt longest first; answers are put back into task order, so neither the number of workers nor timing changes a
result. A worker that dies is replaced, and what it had in hand is done again: a client update is a pure function.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedstrata.core.client_parts import ClientPlan
from fedstrata.core.errors import ClientError, FedstrataError
from fedstrata.core.machine.child_process import defined_in_script, start_child, why_unsendable
from fedstrata.core.machine.platforms import why_no_workers
from fedstrata.core.machine.threads import cores
from fedstrata.core.messages import Task, Tensors, fast_replace
from fedstrata.data.federation import Federation
from fedstrata.engines.local.engine import Answer, group_tasks
from fedstrata.engines.local.shared_memory import MEMORY, Arrays, NoRoomError, Place, Region, SharedFiles

DEATHS = 3  # of workers in a row, without an answer in between, after which a run gives up


@dataclass
class WorkerProcess:
    """A worker's process, the line to it, and the files it shares with this one."""

    process: subprocess.Popen[bytes]
    line: Connection
    mail: SharedFiles  # its own, for tensors
    region: Region
    queue: list[list[int]]  # groups of tasks it has to do

    def take(self, layout: Mapping[str, Place]) -> dict[str, Tensor]:
        """Read tensors out of its mail."""
        return as_tensors(self.region.take(layout))


class ProcessPool:
    """A pool of workers, each in its own process."""

    room: Mapping[torch.device, int] = MappingProxyType({})

    def __init__(
        self,
        local: ClientPlan,
        federation: Federation,
        workers: int,
        together: bool = False,
        give_up: Callable[[str], None] = lambda _: None,
    ):
        self._federation, self._sizes = federation, federation.train_split.sizes
        self._together, self._give_up = together, give_up
        self._data, self._model = SharedFiles(), SharedFiles()  # samples, and what every task of a step brings along
        self._samples, self._outgoing = Region(self._data.numbers), Region(self._model.numbers)
        self._children: list[WorkerProcess] = []
        self._said_disk = False
        try:
            self._hello = self._put_samples(local, federation)
            for _ in range(workers):
                self._children.append(self._start())
            for worker in range(workers):
                self._wait_for_ready(worker)
        except BaseException:
            self.close()
            raise
        self._remark_disk()

    def _put_samples(self, local: ClientPlan, federation: Federation) -> bytes:
        """Write what clients hold where workers find it; return what every worker is told first."""
        split = federation.train_split
        layout, _ = self._samples.put(
            {
                "x": federation.train.x.numpy(),
                "y": federation.train.y.numpy(),
                "rows": split.rows,
                "starts": split.starts,
                "speeds": np.ones(len(split)) if federation.speeds is None else federation.speeds,
            }
        )
        return pickle.dumps((sys.path, pickle.dumps(local), layout, len(federation.classes)))

    def _wait_for_ready(self, worker: int) -> None:
        """Let a worker map the samples, after which it says so."""
        try:
            self._receive(worker)
        except EOFError:
            code = self._children[worker].process.wait()
            raise FedstrataError(
                f"worker {worker} ended with exit code {code} before it was ready; what it said, if anything, stands "
                "above. engine.workers = 1 needs no worker processes"
            ) from None

    def _remark_disk(self) -> None:
        """Say once that memory has no room for what is shared."""
        regions = [self._samples, self._outgoing, *(child.region for child in self._children)]
        if not self._said_disk and any(region.on_disk for region in regions):
            self._said_disk = True
            self._give_up(
                f"{MEMORY} has too little room, so that some of what workers share lies in {tempfile.gettempdir()}, "
                "which may be slower; in Docker, --shm-size makes it larger"
            )

    def work(self, tasks: Sequence[Task], client_states: Mapping[int, Tensors]) -> list[Answer]:
        """Deal the tasks out, longest first, and wait for all answers."""
        down, _ = self._outgoing.put(as_numpy(tasks[0].down) if tasks else {})
        for child in self._children:
            child.queue = []
        load = [0] * len(self._children)
        for group in group_tasks(tasks, self._sizes, self._together, cores()):
            worker = load.index(min(load))
            self._children[worker].queue.append(group)
            load[worker] += sum(int(self._sizes[tasks[i].client]) for i in group)
        for worker, child in enumerate(self._children):
            if child.queue:
                self._send(worker, tasks, client_states, down)

        answers: dict[int, Answer] = {}
        deaths = 0
        while len(answers) < len(tasks):
            workers = {child.line: worker for worker, child in enumerate(self._children) if child.queue}
            for line in wait(list(workers)):
                worker = workers[line]  # type: ignore[index]
                try:
                    told = self._receive(worker)
                except EOFError:
                    deaths += 1
                    self._replace(worker, deaths)
                    self._send(worker, tasks, client_states, down)
                    continue
                deaths, child = 0, self._children[worker]
                for i, report, aggregated, open_tensors, client_state in told:
                    whole = fast_replace(
                        report, aggregated=child.take(aggregated), open_tensors=child.take(open_tensors)
                    )
                    answers[i] = whole, None if client_state is None else child.take(client_state)
                child.queue.pop(0)
                if child.queue:
                    self._send(worker, tasks, client_states, down)
        self._remark_disk()
        return [answers[i] for i in range(len(tasks))]

    def _send(
        self, worker: int, tasks: Sequence[Task], client_states: Mapping[int, Tensors], down: Mapping[str, Place]
    ) -> None:
        """Give a worker its next group: tasks by message, what clients keep by mail."""
        child = self._children[worker]
        group, work, end = child.queue[0], [], 0
        for i in group:
            kept, end = child.region.put(as_numpy(client_states.get(tasks[i].client, {})), end)
            work.append((i, fast_replace(tasks[i], down={}), kept, self._moved(tasks[i])))
        with suppress(ConnectionError):  # it is dead: whoever waits for its answer will notice
            child.line.send_bytes(pickle.dumps((down, work)))

    def _moved(self, task: Task) -> np.ndarray | None:
        """Return a client's rows where data move; otherwise the worker knows them."""
        return None if self._federation.moves is None else self._federation.at(task.round).train_split[task.client]

    def _receive(self, worker: int) -> Any:
        try:
            kind, *answer = pickle.loads(self._children[worker].line.recv_bytes())
        except ConnectionError:
            raise EOFError from None
        if kind == "error":
            raise ClientError(*answer)
        if kind == "no room":
            raise NoRoomError(*answer)
        told, remarks = answer
        for remark in remarks:
            self._give_up(remark)
        return told

    def _replace(self, worker: int, deaths: int) -> None:
        """Start another process in the place of one that died."""
        dead = self._children[worker]
        code = dead.process.wait()
        if deaths >= DEATHS:
            raise FedstrataError(f"worker {worker} ended unexpectedly with exit code {code}, {deaths} times in a row")
        self._give_up(f"worker {worker} ended unexpectedly with exit code {code}; another one takes its place")
        dead.line.close()
        dead.mail.close()
        self._children[worker] = replace(self._start(), queue=dead.queue)
        self._wait_for_ready(worker)

    def _start(self) -> WorkerProcess:
        mail = SharedFiles()
        files = *self._data.numbers, *self._model.numbers, *mail.numbers
        process, line = start_child(
            "fedstrata.engines.local.worker_process", *files, environment={"OMP_NUM_THREADS": "1"}
        )
        with suppress(ConnectionError):  # it is dead: whoever waits for it to be ready will notice
            line.send_bytes(self._hello)
        return WorkerProcess(process, line, mail, Region(mail.numbers), [])

    def close(self) -> None:
        """End the workers; a worker that is still busy is not waited for."""
        for child in self._children:
            child.line.close()
            child.process.kill()
            child.process.wait()
            child.mail.close()
        self._children = []
        self._data.close()
        self._model.close()


def why_not(local: ClientPlan) -> str | None:
    """Say why this plan cannot work in other processes, or None."""
    if reason := why_no_workers():
        return reason
    parts = [*local.parts.values(), local.optimizer, local.sampler, *local.programs.values()]
    at_home = [p for p in parts if getattr(p, "__module__", "") == "__main__"]
    if at_home:
        name = getattr(at_home[0], "__name__", type(at_home[0]).__name__)
        return defined_in_script(name)
    return why_unsendable(local, "the plan", "the model")


def as_numpy(tensors: Tensors) -> dict[str, np.ndarray]:
    """Prepare tensors for shared memory."""
    return {name: t.detach().cpu().numpy() for name, t in tensors.items()}


def as_tensors(arrays: Arrays) -> dict[str, Tensor]:
    """Read them back."""
    return {name: torch.from_numpy(a) for name, a in arrays.items()}
