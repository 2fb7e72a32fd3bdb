"""A SuperLink with a gate: other machines reach only what node keys guard.

Flower serves three interfaces on one port. Fleet, for the sites, asks for a registered node key. Control (start a run,
which is any program, on the server and at all sites; register a key; stop a run) and Runtime (take over a run's task)
ask for nothing. So whoever could open the port would own the federation, with TLS and node keys on. The gate answers
404 to every path but Fleet's, unless the caller is on this machine.

`python -m fedstrata.deploy.auth_proxy OPTIONS` is `flower-superlink OPTIONS` behind it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from importlib import import_module
from ipaddress import IPv6Address, ip_address
from typing import Any

from fedstrata.deploy.flower import run_command

FLEET = "/v1/fleet/"
HEALTH = "/health"
GATE = "/fedstrata-gate"  # answered by the gate itself: that is how one knows that it is there

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Gate:
    """Stands before a web application (ASGI)."""

    def __init__(self, app: App):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it here."""
        if scope["type"] == "lifespan" or (scope["type"] == "http" and passes(scope)):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            status = 204 if scope["path"] == GATE else 404
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": b""})
        else:
            await send({"type": "websocket.close", "code": 1008})


def passes(scope: Scope) -> bool:
    """Say whether a request may go on."""
    path = scope["path"]
    return path != GATE and (path == HEALTH or path.startswith(FLEET) or from_here(scope))


def from_here(scope: Scope) -> bool:
    """Say whether the caller is on this machine: on loopback, or under the very address it called."""
    caller, called = (_address(scope.get(end)) for end in ("client", "server"))
    return caller is not None and (caller.is_loopback or caller == called)


def _address(end: Any) -> Any:
    try:
        address = ip_address(str(end[0]).split("%")[0])
    except (TypeError, ValueError, IndexError):
        return None
    return (isinstance(address, IPv6Address) and address.ipv4_mapped) or address


def main() -> None:
    """Run Flower's own command with the gate before what it serves."""
    uvicorn = import_module("uvicorn")
    serve = uvicorn.run

    def protect_engine(app: App, **options: Any) -> None:
        serve(Gate(app), **(options | {"proxy_headers": False}))  # nobody may say where he comes from

    uvicorn.run = protect_engine  # type: ignore[attr-defined]
    run_command("flower-superlink")


if __name__ == "__main__":
    main()
