"""Web applications (ASGI) as those see them who stand before one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


async def ask_app(app: App, scope: Scope, body: bytes) -> list[Message]:
    """Hand an application a request, and give its answer."""
    answer, told = list[Message](), False

    async def receive() -> Message:
        nonlocal told
        if told:
            await asyncio.Event().wait()  # until whoever asks is done
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(part: Message) -> None:
        answer.append(part)

    await app({**scope, "state": dict(scope.get("state", {}))}, receive, send)
    return answer


async def answer(send: Send, status: int, body: bytes = b"") -> None:
    """Answer a request."""
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": body})


async def whole(receive: Receive) -> bytes | None:
    """Return the body of a request; None where the caller left before its end."""
    body = bytearray()
    while True:
        part = await receive()
        if part["type"] != "http.request":
            return None
        body += part.get("body", b"")
        if not part.get("more_body", False):
            return bytes(body)
