"""A lane's own process: reads tasks from a socket, visits clients, answers."""

from __future__ import annotations

import pickle
import signal
import sys
import traceback
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from fedstrata.clientside import Client, Local
from fedstrata.engines.local.processes import as_numpy, as_tensors
from fedstrata.lane import Lane
from fedstrata.split import Split


def main(socket: int, data: int) -> None:
    """Serve until the other side hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then hangs up
    torch.set_num_threads(1)
    connection = Connection(socket)
    path, plan, layout, classes = pickle.loads(connection.recv_bytes())
    sys.path[:] = path
    local: Local = pickle.loads(plan)
    arrays = {name: _mapped(data, *where) for name, where in layout.items()}
    split = Split(arrays["rows"], arrays["starts"])
    samples, fastest = (torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"])), float(arrays["speeds"].max())
    lane = Lane(local, *samples, int(split.sizes.max()), fastest=fastest)
    connection.send_bytes(pickle.dumps(("ready",)))
    while True:
        try:
            down, work = pickle.loads(connection.recv_bytes())
        except (EOFError, ConnectionError):
            return
        shared = as_tensors(down)
        for i, task, keep, moved in work:
            rows = split[task.client] if moved is None else moved
            client = Client(task.client, rows, arrays["y"][rows], classes, float(arrays["speeds"][task.client]))
            try:
                old = as_tensors(keep)
                report, new = lane.visit(client, replace(task, down=shared), old)
                answer: Any = ("done", i, *_parted(report), None if new is old or not new else as_numpy(new))
            except Exception:
                answer = ("error", task.client, traceback.format_exc())
            connection.send_bytes(pickle.dumps(answer))


def _parted(report: Any) -> tuple[Any, dict[str, np.ndarray], dict[str, np.ndarray]]:
    return replace(report.read(), summed={}, shown={}), as_numpy(report.summed), as_numpy(report.shown)


def _mapped(file: int, start: int, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Map an array; copy-on-write, because torch takes only writable memory."""
    with open(file, "rb", closefd=False) as handle:
        return np.memmap(handle, dtype=dtype, mode="c", offset=start, shape=shape)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
