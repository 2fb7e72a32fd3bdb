"""Several lanes, each a process with one thread, over one shared copy of the data.

Lanes are started as plain child processes, so a user's script is never imported a second time. Samples lie in an
unnamed file that every lane maps into memory: whatever happens to a process, nothing is left behind. Clients are dealt
longest first; answers are put back into task order, so the number of lanes never changes a result.
"""

from __future__ import annotations

import mmap
import os
import pickle
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedstrata.clientside import Local
from fedstrata.errors import ClientError, FedstrataError
from fedstrata.federation import Federation
from fedstrata.messages import Report, Task, Tensors

Arrays = Mapping[str, np.ndarray]


class Processes:
    """A crew of lanes, each in its own process."""

    def __init__(self, local: Local, federation: Federation, lanes: int):
        self._sizes, self._federation = federation.train_split.sizes, federation
        self._children: list[tuple[subprocess.Popen[bytes], Connection]] = []
        split = federation.train_split
        arrays = {
            "x": federation.train.x.numpy(),
            "y": federation.train.y.numpy(),
            "rows": split.rows,
            "starts": split.starts,
            "speeds": np.ones(len(split)) if federation.speeds is None else federation.speeds,
        }
        with _shared(arrays) as (file, layout):
            for _ in range(lanes):
                self._children.append(_start(file.fileno()))
            for _, connection in self._children:
                hello = (sys.path, pickle.dumps(local), layout, len(federation.classes))
                connection.send_bytes(pickle.dumps(hello))
            for lane, (_, connection) in enumerate(self._children):
                self._receive(lane, connection)  # each says when it has mapped the data

    def work(self, tasks: Sequence[Task], keeps: Mapping[int, Tensors]) -> list[tuple[Report, Tensors | None]]:
        """Deal the tasks out, longest first, and wait for all answers."""
        down = {name: t.numpy() for name, t in tasks[0].down.items()} if tasks else {}
        queues: list[list[int]] = [[] for _ in self._children]
        load = [0] * len(queues)
        for i in sorted(range(len(tasks)), key=lambda i: (-self._sizes[tasks[i].client], i)):
            lane = load.index(min(load))
            queues[lane].append(i)
            load[lane] += int(self._sizes[tasks[i].client])
        for (_, connection), queue in zip(self._children, queues, strict=True):
            work = [
                (i, replace(tasks[i], down={}), as_numpy(keeps.get(tasks[i].client, {})), self._moved(tasks[i]))
                for i in queue
            ]
            connection.send_bytes(pickle.dumps((down, work)))

        answers: dict[int, tuple[Report, Tensors | None]] = {}
        busy = {connection: lane for lane, (_, connection) in enumerate(self._children)}
        while len(answers) < len(tasks):
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                i, report, summed, shown, keep = self._receive(busy[ready], ready)
                whole = replace(report, summed=as_tensors(summed), shown=as_tensors(shown))
                answers[i] = (whole, None if keep is None else as_tensors(keep))
        return [answers[i] for i in range(len(tasks))]

    def _moved(self, task: Task) -> np.ndarray | None:
        """Give a client's rows where data move; otherwise the lane knows them."""
        return None if self._federation.moves is None else self._federation.at(task.round).train_split[task.client]

    def _receive(self, lane: int, connection: Connection) -> Any:
        try:
            kind, *answer = pickle.loads(connection.recv_bytes())
        except (EOFError, ConnectionError):
            code = self._children[lane][0].wait()
            raise FedstrataError(f"lane {lane} ended unexpectedly with exit code {code}") from None
        if kind == "error":
            raise ClientError(*answer)
        return answer

    def close(self) -> None:
        """End the lanes; a lane that is still busy is not waited for."""
        for process, connection in self._children:
            connection.close()
            process.kill()
            process.wait()
        self._children = []


def why_not(local: Local) -> str | None:
    """Say why this plan cannot work in other processes, or None."""
    parts = [*local.parts.values(), local.optimizer, local.sampler, *local.programs.values()]
    at_home = [p for p in parts if getattr(p, "__module__", "") == "__main__"]
    if at_home:
        name = getattr(at_home[0], "__name__", type(at_home[0]).__name__)
        return f"{name} is defined in the script itself, which other processes do not import; move it to a module"
    try:
        text = pickle.dumps(local)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        return f"the plan cannot be sent to another process ({error})"
    return "the model is defined in the script itself; move it to a module" if b"__main__" in text else None


def as_numpy(tensors: Tensors) -> dict[str, np.ndarray]:
    """Prepare tensors for a pipe."""
    return {name: t.cpu().numpy() for name, t in tensors.items()}


def as_tensors(arrays: Arrays) -> dict[str, Tensor]:
    """Read them back."""
    return {name: torch.from_numpy(a) for name, a in arrays.items()}


class _shared:  # noqa: N801  a context manager that reads as a verb
    """Arrays in an unnamed file, in memory where the system offers that."""

    def __init__(self, arrays: Arrays):
        self._arrays = arrays

    def __enter__(self) -> tuple[Any, dict[str, tuple[int, str, tuple[int, ...]]]]:
        self._file = tempfile.TemporaryFile(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        layout = {}
        for name, array in self._arrays.items():
            start = -(-self._file.tell() // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
            self._file.seek(start)
            self._file.write(np.ascontiguousarray(array).data)
            layout[name] = (start, str(array.dtype), array.shape)
        self._file.flush()
        return self._file, layout

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _start(data: int) -> tuple[subprocess.Popen[bytes], Connection]:
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-P", "-m", "fedstrata.engines.local.worker", str(theirs.fileno()), str(data)]
    process = subprocess.Popen(
        command,
        pass_fds=(theirs.fileno(), data),
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.DEVNULL,
    )
    theirs.close()
    return process, Connection(ours.detach())
