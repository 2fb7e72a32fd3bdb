"""A worker's own process: reads groups of tasks from a socket, runs them, answers."""

from __future__ import annotations

import pickle
import signal
import sys
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from fedstrata.core.machine.quick_imports import quick_imports

with quick_imports():
    import torch

    from fedstrata.core.client_parts import Client, ClientPlan
    from fedstrata.core.index import Split
    from fedstrata.core.messages import fast_replace
    from fedstrata.engines.local.engine import Answer, Worker
    from fedstrata.engines.local.processes import as_numpy, as_tensors
    from fedstrata.engines.local.shared_memory import NoRoomError, Place, Region


def main(socket: int, *files: int) -> None:
    """Serve until the other side hangs up, which it may do before we are ready."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then hangs up
    torch.set_num_threads(1)
    with suppress(EOFError, ConnectionError):
        serve(Connection(socket), Region(files[:2]), Region(files[2:4]), Region(files[4:]))


def serve(line: Connection, shared: Region, received: Region, sent: Region) -> None:
    """Say when we are ready; then run groups of tasks, one after another."""
    path, plan, layout, classes = pickle.loads(line.recv_bytes())
    sys.path[:] = path
    local: ClientPlan = pickle.loads(plan)
    arrays = {name: shared.view(place) for name, place in layout.items()}
    split, labels, speeds = Split(arrays["rows"], arrays["starts"]), arrays["y"], arrays["speeds"]
    remarks: list[str] = []
    samples = torch.from_numpy(arrays["x"]), torch.from_numpy(labels)
    worker = Worker(local, *samples, int(split.sizes.max()), float(speeds.max()), give_up=remarks.append)
    line.send_bytes(pickle.dumps(("ready", [], [])))
    while True:
        down, work = pickle.loads(line.recv_bytes())
        try:
            brought = as_tensors({name: received.view(place) for name, place in down.items()})
            group = []
            for _, task, kept, moved in work:
                rows = split[task.client] if moved is None else moved
                client = Client(task.client, rows, labels[rows], classes, float(speeds[task.client]))
                group.append((client, fast_replace(task, down=brought), as_tensors(sent.take(kept))))
            answer: Any = ("done", _written(sent, work, worker.submit(group)()), list(remarks))
            remarks.clear()
        except NoRoomError as error:
            answer = ("no room", str(error))
        except Exception as error:
            answer = ("error", getattr(error, "client", work[0][1].client), traceback.format_exc())
        line.send_bytes(pickle.dumps(answer))


def _written(mail: Region, work: list[Any], answers: list[Answer]) -> list[Any]:
    """Put tensors into the mail, and give what the message says."""
    told, end = [], 0
    for (i, *_), (report, new) in zip(work, answers, strict=True):
        placed: list[dict[str, Place] | None] = []
        for tensors in (report.aggregated, report.open_tensors, new):
            layout, end = mail.put(as_numpy(tensors or {}), end)
            placed.append(None if tensors is None else layout)
        told.append((i, fast_replace(report.read(), aggregated={}, open_tensors={}), *placed))
    return told


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
