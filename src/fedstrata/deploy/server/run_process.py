"""The server side of one run, as a process: `python -m fedstrata.deploy.server.run_process`.

It is started when somebody begins to ask for a run, and imports what runs need (torch) while the experiment is still
being checked. The task comes as a line of JSON on its standard input; without one within a while, it ends.
"""

from __future__ import annotations

import json
import select
import sys
from importlib import import_module

from fedstrata.core.machine.quick_imports import quick_imports
from fedstrata.deploy.flower import run_command
from fedstrata.deploy.heartbeats import beat_on
from fedstrata.deploy.objects_under_way import ask_again_soon

RUNNER = "flwr.superlink.runtime.run_serverapp"
FLOWER = (RUNNER, "flwr.superlink.cli", "httpcore")  # its command, and what its requests go through
NEEDED = ("fedstrata.remote.server.session", "fedstrata.remote.flower.server_app", "fedstrata.remote.flower.stream")
WARM = 120.0  # seconds that it waits for a task


def main() -> None:
    """Wait for a task, and do it."""
    with quick_imports():
        for name in (*FLOWER, *NEEDED):
            import_module(name)
    ask_again_soon()
    beat_on(import_module(RUNNER))
    there, _, _ = select.select([sys.stdin], [], [], WARM)
    line = sys.stdin.readline() if there else ""
    if line:  # what Flower's own command is told; the token stands in no list of processes
        sys.argv[1:] = json.loads(line)
        run_command("flwr-serverapp")


if __name__ == "__main__":
    main()
