"""What servers and sites log: who asked for which run, with which method and privacy, and what became of it.

    server-PORT/log.jsonl    the server: started, rolls, sites, runs from the queue to their end, what operators said
    site-NAME/log.jsonl      a site: started, connected, its process; runs that it admitted or refused, and whose
    superlink.log, supernode.log    what Flower prints

All are put aside when they have 10 MiB, and five older ones are kept.
"""

from __future__ import annotations

import getpass
import logging
import os
import socket
from pathlib import Path
from typing import Any

from fedstrata.core.storage.json_log import FILE, JsonLines, cut_off

PRINTED = ("superlink.log", "supernode.log")
SHOWN = 15  # lines of a log where something failed
LOG = logging.getLogger("fedstrata.deploy")


def keep_log(folder: Path, **always: Any) -> None:
    """Let this process write the log in a folder; `always` stands in every line."""
    for old in [handler for handler in LOG.handlers if isinstance(handler, JsonLines)]:
        LOG.removeHandler(old)
    LOG.addHandler(JsonLines(folder / FILE, **always))
    LOG.setLevel(logging.INFO)
    LOG.propagate = False


def note(event: str, level: int = logging.INFO, **about: Any) -> None:
    """Write a line."""
    LOG.log(level, event, extra={"about": about})


def cut_printed(folder: Path) -> None:
    """Keep what Flower prints from growing for ever."""
    for name in PRINTED:
        cut_off(folder / name)


def tail(log: Path) -> str:
    """Return the end of a log."""
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-SHOWN:])
    except OSError:
        return ""


def asker() -> dict[str, Any]:
    """Say who asks: the user of this process, also where sudo made him another one."""
    try:
        user = os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = str(os.getuid())
    return {"user": user, "uid": os.getuid(), "host": socket.gethostname()}
