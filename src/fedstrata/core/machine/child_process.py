"""Child processes with a line to this one: `python -m MODULE`, so that a user's script is never imported a second time.

A child survives nobody: it ends when this process hangs up.
"""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any


def start_child(
    module: str, *files: int, environment: Mapping[str, str] | None = None
) -> tuple[subprocess.Popen[bytes], Connection]:
    """Start a module of this package, and give its process and the line to it.

    Its arguments are the number of its end of the line and those of `files`, which it inherits; its environment is this
    process's own with what `environment` changes.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        open_there = [theirs.fileno(), *files]
        path = os.pathsep.join(place or os.getcwd() for place in sys.path)
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *map(str, open_there)],
            pass_fds=open_there,
            env={**os.environ, "PYTHONPATH": path, **(environment or {})},
            stdin=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C is ours: a child that still imports torch would answer it with a traceback
        )
    return process, Connection(ours.detach())


def wait_or_kill(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Let a process end by itself, for so long."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def why_unsendable(value: Any, what: str, inside: str) -> str | None:
    """Say why a value cannot go to a child, or None; `inside` is what it may hold that the script itself defines."""
    try:
        text = pickle.dumps(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        return f"{what} cannot be sent to another process ({error})"
    return defined_in_script(inside) if b"__main__" in text else None


def defined_in_script(name: str) -> str:
    """Say why what a user's script defines stays in its process."""
    return f"{name} is defined in the script itself, which other processes do not import; move it to a module"
