"""Looks for messages that find nothing are held, so that sites need not look all the time.

A SuperNode asks every few seconds whether there is a message. Here the answer "none" waits until somebody sends one, or
for a while: messages arrive at once, and an idle site costs a request in twenty seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

PULL = "/v1/fleet/pull-messages"  # a site looks for messages
NEWS = "/v1/runtime/push-"  # how paths begin on which a run sends some
HOLD = 20.0  # seconds; SuperNodes and proxies give up a silent connection after 30 or more
LONGEST = 1 << 16  # bytes of such a request; longer ones are not held

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class LongPoll:
    """Stands before a web application (ASGI)."""

    def __init__(self, app: App, hold: float = HOLD):
        self._app, self._hold = app, hold
        self._news: asyncio.Event | None = None  # set once, when a message was sent; then there is another one

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or hold it."""
        if scope["type"] != "http" or scope["path"] != PULL:
            await self._app(scope, receive, send)
            if scope["type"] == "http" and scope["path"].startswith(NEWS):
                self.wake()
            return
        body = await _whole(receive)
        if body is not None:
            await self._look(scope, body, receive, send)

    def wake(self) -> None:
        """Let everybody look again who waits."""
        if self._news is not None:
            self._news.set()
            self._news = None

    async def _look(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        until = asyncio.get_running_loop().time() + self._hold
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            answer = list[Message]()
            while True:
                news = self._news = self._news or asyncio.Event()
                answer = await self._ask(scope, body)
                left = until - asyncio.get_running_loop().time()
                if not _nothing(answer) or left <= 0 or len(body) > LONGEST:
                    break
                waiting = asyncio.ensure_future(news.wait())
                await asyncio.wait({gone, waiting}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                if gone.done():  # nobody would get the message that is taken out for him
                    return
            for part in answer:
                await send(part)
        except asyncio.CancelledError:  # the server is being stopped: who waits is told that there is nothing
            for part in answer:
                await send(part)
            raise
        finally:
            gone.cancel()

    async def _ask(self, scope: Scope, body: bytes) -> list[Message]:
        answer, told = list[Message](), False

        async def receive() -> Message:
            nonlocal told
            if told:
                await asyncio.Event().wait()  # until whoever asks is done
            told = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(part: Message) -> None:
            answer.append(part)

        await self._app({**scope, "state": dict(scope.get("state", {}))}, receive, send)
        return answer


def _nothing(answer: list[Message]) -> bool:
    """Say whether an answer is the empty list of messages: nothing at all, in Flower's encoding."""
    statuses = [part["status"] for part in answer if part["type"] == "http.response.start"]
    return statuses == [200] and not any(part.get("body") for part in answer)


async def _whole(receive: Receive) -> bytes | None:
    """Return the body of a request; None where the caller left before its end."""
    body = bytearray()
    while True:
        part = await receive()
        if part["type"] != "http.request":
            return None
        body += part.get("body", b"")
        if not part.get("more_body", False):
            return bytes(body)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
