"""Models for the sites that trained them: the gate hands them out, to whoever signs with the key of such a site.

Where it does is in `deploy/served.py`. Without keys (`--insecure`) everybody gets everything, as everything there.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote

from fedstrata.deploy.served import FILES, HASH, MODELS, PIECE
from fedstrata.deploy.server.run_book import FINISHED, BookedRun, read_booked
from fedstrata.deploy.server.web_app import App, Receive, Scope, Send

Signer = Callable[[Scope], str | None]  # the site that signed a request; None: nobody is asked who he is


class ModelShelf:
    """Stands before a web application (ASGI), behind the gate."""

    def __init__(self, app: App, folder: Path, signer: Signer):
        self._app, self._folder, self._signer = app, folder, signer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer requests for models, and let others through."""
        path = unquote(scope["path"]) if scope["type"] == "http" else ""
        if path != MODELS and not path.startswith(f"{MODELS}/"):
            await self._app(scope, receive, send)
            return
        # Files are read in threads: everything that a server says to its sites goes through this loop.
        runs = await asyncio.to_thread(lambda site: dict(self.runs(site)), self._signer(scope))
        if path == MODELS:
            told = await asyncio.to_thread(lambda: [_told(name, run) for name, run in runs.items()])
            await _answer(send, 200, json.dumps(told).encode())
            return
        name, _, file = path.removeprefix(f"{MODELS}/").partition("/")
        if name not in runs or file not in FILES or not (found := Path(runs[name].path) / file).is_file():
            await _answer(send, 404, b"")
            return
        await _send_file(send, found)

    def runs(self, site: str | None) -> Iterator[tuple[str, BookedRun]]:
        """Return the finished runs of a site, the oldest first, each under a name of its own."""
        taken: dict[str, int] = {}
        for run in read_booked(self._folder):
            if run.state() == FINISHED and (site is None or site in _sites(Path(run.path))):
                taken[run.name] = taken.get(run.name, 0) + 1
                again = taken[run.name]
                yield run.name if again == 1 else f"{run.name}.{again}", run


def _sites(folder: Path) -> set[str]:
    try:
        return set(json.loads((folder / "sites.json").read_text())["sites"])
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def _told(name: str, run: BookedRun) -> dict[str, Any]:
    folder = Path(run.path)
    files = {file: (folder / file).stat().st_size for file in FILES if (folder / file).is_file()}
    return {"run": name, "method": run.method, "rounds": run.rounds, "privacy": run.privacy, "files": files}


async def _answer(send: Send, status: int, body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [_header("content-length", len(body))]})
    await send({"type": "http.response.body", "body": body})


async def _send_file(send: Send, path: Path) -> None:
    with path.open("rb") as file:
        size, digest = await asyncio.to_thread(_measured, file)
        headers = [_header("content-length", size), _header(HASH, digest)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while piece := await asyncio.to_thread(file.read, PIECE):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def _measured(file: BinaryIO) -> tuple[int, str]:
    """Return how long a file is, and its hash; it can be read again."""
    digest = sha256()
    while piece := file.read(PIECE):
        digest.update(piece)
    size = file.tell()
    file.seek(0)
    return size, digest.hexdigest()


def _header(name: str, value: object) -> tuple[bytes, bytes]:
    return name.encode(), str(value).encode()
