"""Looks for messages that find nothing are held, so that sites need not look all the time.

A SuperNode asks every few seconds whether there is a message. Here the answer "none" waits until somebody sends one, or
for a while: messages arrive at once, and an idle site costs a request in twenty seconds.

When a run was submitted on this machine, the answer "none" goes out at once, with a header that says so: a site that
rests wakes up (`site/on_demand.py`) while the run is still beginning. Who does not hear it wakes up with its first
message.
"""

from __future__ import annotations

import asyncio

from fedstrata.deploy.served import ANNOUNCED
from fedstrata.deploy.server.web_app import App, Message, Receive, Scope, Send, ask_app, whole

PULL = "/v1/fleet/pull-messages"  # a site looks for messages
NEWS = ("/v1/runtime/push-messages", "/v1/runtime/push-object")  # where a run sends some
HOLD = 20.0  # seconds; SuperNodes and proxies give up a silent connection after 30 or more
LONGEST = 1 << 16  # bytes of such a request; longer ones are not held


class LongPoll:
    """Stands before a web application (ASGI)."""

    def __init__(self, app: App, hold: float = HOLD):
        self._app, self._hold = app, hold
        self._news: asyncio.Event | None = None  # set once, when a message was sent; then there is another one
        self._begun = 0  # runs that were announced

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or hold it."""
        if scope["type"] != "http" or scope["path"] != PULL:
            await self._app(scope, receive, send)
            if scope["type"] == "http" and scope["path"] in NEWS:
                self.wake()
            return
        body = await whole(receive)
        if body is not None:
            await self._look(scope, body, receive, send)

    def wake(self) -> None:
        """Let everybody look again who waits."""
        if self._news is not None:
            self._news.set()
            self._news = None

    def announce(self) -> None:
        """Tell everybody who waits that a run was submitted; to be called in the loop that requests are answered in."""
        self._begun += 1
        self.wake()

    async def _look(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        until = asyncio.get_running_loop().time() + self._hold
        gone, begun = asyncio.ensure_future(_disconnected(receive)), self._begun
        try:
            answer = list[Message]()
            while True:
                news = self._news = self._news or asyncio.Event()
                answer = await ask_app(self._app, scope, body)
                left = until - asyncio.get_running_loop().time()
                if not _nothing(answer) or left <= 0 or len(body) > LONGEST:
                    break
                waiting = asyncio.ensure_future(news.wait())
                await asyncio.wait({gone, waiting}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                if gone.done():  # nobody would get the message that is taken out for him
                    return
                if self._begun != begun:
                    answer[0] = {**answer[0], "headers": [*answer[0]["headers"], (ANNOUNCED.encode(), b"1")]}
                    break
            for part in answer:
                await send(part)
        except asyncio.CancelledError:  # the server is being stopped: who waits is told that there is nothing
            for part in answer:
                await send(part)
            raise
        finally:
            gone.cancel()


def _nothing(answer: list[Message]) -> bool:
    """Say whether an answer is the empty list of messages: nothing at all, in Flower's encoding."""
    statuses = [part["status"] for part in answer if part["type"] == "http.response.start"]
    return statuses == [200] and not any(part.get("body") for part in answer)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
