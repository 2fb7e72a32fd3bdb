"""A process that runs cells of a comparison: reads them from a socket, tells every event."""

from __future__ import annotations

import pickle
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from fedstrata.core.machine.quick_imports import quick_imports

with quick_imports():
    import torch

    from fedstrata.runs.compare.pool import CellRunner, Pruned


def main(socket: int) -> None:
    """Serve until the other side hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends its children
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    torch.set_num_threads(1)
    line = Connection(socket)

    def tell(prunable: bool, event: Mapping[str, Any]) -> None:
        line.send({key: value for key, value in event.items() if key != "steps"})  # they may be many, and are on disk
        if prunable and event["event"] == "round" and not line.recv():
            raise Pruned

    with suppress(EOFError, ConnectionError, KeyboardInterrupt):
        sys.path[:] = line.recv()
        runner = CellRunner(*pickle.loads(line.recv_bytes()))
        while True:
            path, experiment, prunable, alike = line.recv()
            line.send(runner.run(path, experiment, partial(tell, prunable), alike))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is ending


if __name__ == "__main__":
    main(int(sys.argv[1]))
