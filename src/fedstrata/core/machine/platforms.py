"""What only Linux and macOS offer, and how to say so on Windows."""

from __future__ import annotations

import os

from fedstrata.core.errors import RequestError

POSIX = os.name == "posix"


def require_posix(what: str) -> None:
    """Refuse what Windows cannot do."""
    if not POSIX:
        raise RequestError(f"{what} needs Linux or macOS; on Windows, use WSL")


def why_no_workers() -> str | None:
    """Say why this system cannot have worker processes, or None. They share open files with their parent."""
    return None if POSIX else "worker processes need Linux or macOS, because Windows does not hand on open files"
