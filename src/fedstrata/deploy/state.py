"""Where servers and sites of this machine keep what they need between two commands.

    STATE/server-PORT/    the server's database, log and address
    STATE/site-NAME/      a site's log, its training state (memory/), what it gave (ledger.json), what left it
                          (audit.jsonl) and runs its owner was asked for (runs/)

STATE is the environment variable FEDSTRATA_STATE, or ~/.local/state/fedstrata. Only its owner may look inside.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedstrata.core.errors import RequestError
from fedstrata.core.storage.files import write_atomically
from fedstrata.remote.site.private_socket import LONGEST_PATH

PORT = 8000
QUEUE = "queue"  # in a server's folder: runs in their order


def folder() -> Path:
    """Return the state folder."""
    return Path(os.environ.get("FEDSTRATA_STATE", "~/.local/state/fedstrata")).expanduser().absolute()


def of_server(port: int) -> Path:
    """Return the folder of the server on a port; there is one at most."""
    return folder() / f"server-{port}"


def of_site(name: str) -> Path:
    """Return a site's folder."""
    return folder() / f"site-{name}"


def private(path: Path) -> Path:
    """Make a folder, and keep others out of it."""
    try:
        for each in (folder(), path):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
            each.chmod(0o700)
    except OSError as error:
        raise RequestError(f"{path} cannot be made: {error}; set FEDSTRATA_STATE to another folder") from None
    return path


@contextmanager
def for_sockets(name: str) -> Iterator[Path]:
    """Make a folder for sockets, which must have short paths, that nobody else can enter; and remove it in the end."""
    made = Path(tempfile.mkdtemp(prefix=f"fedstrata-{name[:24]}-"))
    try:
        if len(os.fsencode(made / "process")) > LONGEST_PATH:
            raise RequestError(f"the folder for temporary files, {made.parent}, has too long a path: set TMPDIR")
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def sweep_sockets(folder: Path, made: Path) -> None:
    """Remove the folder for sockets of an earlier life that was killed, and note ours for the next one.

    Only who has the lock of a server's or site's folder may call this: then the earlier life is over.
    """
    noted = folder / "sockets"
    with suppress(OSError, ValueError):
        left = Path(noted.read_text())
        if left.name.startswith("fedstrata-") and left != made:
            shutil.rmtree(left, ignore_errors=True)
    with suppress(OSError):  # a full disk: nothing but a folder in /tmp is left then
        write_atomically(noted, str(made).encode())


def site_name(name: str, key: str = "--site") -> str:
    """Check a site's name: it becomes a folder's."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}", name):
        raise RequestError(f'{key} = "{name}" is not valid; allowed: letters, digits, - and _, at most 63 of them')
    return name


def turn_of(server: Path, ticket: str) -> Path:
    """Return what a run's process keeps locked, beside the ticket with which it was asked for."""
    return server / QUEUE / f"{ticket}.run"


def address(text: str, key: str = "--server") -> tuple[str, int]:
    """Read HOST:PORT; an IPv6 address stands in brackets."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    if not host or not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65536 or re.search(r"[\s/@]", host):
        raise RequestError(f'{key} = "{text}" is not valid; allowed: HOST:PORT, such as 127.0.0.1:{PORT}')
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """Write HOST:PORT."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
