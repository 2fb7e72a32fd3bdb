"""Where a run is written, as the server sees it: a service may see less of the disk than whoever asks for the run.

A unit of systemd with `ProtectSystem=strict` writes nowhere but in its state, has a `/tmp` of its own, and may be kept
out of homes; a container has a disk of its own. The process of a run is the server's, so it is the server that looks.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from fedstrata.core.errors import RequestError


def refuse_unusable(config: Mapping[str, object]) -> None:
    """Refuse a run, by its configuration, whose folder this process cannot write, or whose asker stands elsewhere."""
    out, here, server = (str(config.get(key) or "") for key in ("out", "folder", "server"))
    state = Path(server).parent if server else Path()
    if here and (why := _closed(Path(here))):
        raise RequestError(
            f"the server cannot go to {here}, where the run was asked for ({why}); ask for it in a folder that it can "
            f"enter, such as {state}"
        )
    if out and (why := _unwritable(Path(out))):
        option, instead = ("--resume", "bring the run") if config.get("resume") else ("--out", "let it go")
        raise RequestError(
            f"{option} = {out}: the server cannot write there ({why}); {instead} to where it may write, such as "
            f"{option} {state / 'runs' / Path(out).name}"
        )


def _closed(folder: Path) -> str:
    """Say why this process cannot go to a folder."""
    try:
        if not folder.is_dir():
            return "there is no such folder for it"
    except OSError as error:
        return error.strerror or str(error)
    return "" if os.access(folder, os.X_OK) else "Permission denied"


def _unwritable(folder: Path) -> str:
    """Say why this process cannot write into a folder that whoever asks for the run has made."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except FileNotFoundError:
        return "there is no such folder for it"
    except OSError as error:
        return error.strerror or str(error)
