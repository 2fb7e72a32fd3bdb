"""Serves the board until Ctrl-C."""

from __future__ import annotations

import errno
import secrets
import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from fedstrata.board.app import pages
from fedstrata.board.auth import loopback
from fedstrata.board.console import Console, SharedLook
from fedstrata.board.feed import Board
from fedstrata.core.errors import RequestError
from fedstrata.core.web_limits import CONNECTIONS, impatient


def serve(
    root: Path, host: str, port: int, token: str | None, say: Callable[[str], None], console: Console | None = None
) -> None:
    """Serve the runs below a folder, and say where; beyond this machine only to those who have the token.

    With a console, a federation beside them, to those who have the token in any case: other users of this machine
    must not speak with the operator's key.
    """
    if console is None and not root.is_dir():
        raise RequestError(f"{root} is not a folder; name the one that holds your runs, such as runs")
    if token is not None and len(token) < 16:
        raise RequestError(
            f"--token has {len(token)} characters; it needs 16 or more, or is made up if you leave it out"
        )
    door = _door(host, port)
    near = loopback(door.getsockname()[0])
    if console is not None and not near:
        door.close()
        raise RequestError(f"--host {host}: a console is served on this machine alone; reach it through ssh -L")
    if token is None and (not near or console is not None):
        token = secrets.token_urlsafe(24)
    at = socket.gethostname() if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    address = f"http://{at}:{door.getsockname()[1]}/"
    board = Board(root)
    watched = None if console is None else SharedLook(console, board.pause)
    app = pages(board, token, near, lambda: server.should_exit, watched)
    asked = impatient(AutoHTTPProtocol)
    server = uvicorn.Server(
        uvicorn.Config(app, log_level="warning", server_header=False, http=asked, limit_concurrency=CONNECTIONS)
    )
    say(f"board of {root}: {address}{f'?token={token}' if token else ''}")
    try:
        server.run([door])
    except KeyboardInterrupt:
        pass  # this is how it ends
    finally:
        door.close()


def _door(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, OverflowError, UnicodeError) as error:
        raise RequestError(f"--host {host}, --port {port}: no such address ({error})") from None
    door = socket.socket(family, kind, protocol)
    try:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind(address)
        door.listen(128)
    except OSError as error:
        door.close()
        why = "is taken; choose another, or 0 for any that is free" if error.errno == errno.EADDRINUSE else str(error)
        raise RequestError(f"--port {port} on {host}: {why}") from None
    return door
