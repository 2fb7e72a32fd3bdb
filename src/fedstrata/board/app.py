"""The pages of the board: one page, what it is made of, and a stream of events (server-sent) that keeps it current."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from functools import cache
from importlib.resources import files

from plotly.offline import get_plotlyjs
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from fedstrata.board.auth import Auth
from fedstrata.board.console import SharedLook
from fedstrata.board.feed import Board, Feed
from fedstrata.board.notes import Notes, write_notes
from fedstrata.board.settings import defaults
from fedstrata.core.errors import FedstrataError, RequestError
from fedstrata.report.document import embed_json, look
from fedstrata.report.figures import SECTIONS

HEARTBEAT = 20  # pauses after which a silent stream says that it is still there, and so finds out who has left
LARGEST = 1 << 16  # bytes of a note with its tags
FILES = {
    "page.css": "report/page.css",
    "page.js": "report/page.js",
    "board.css": "board/board.css",
    "list.js": "board/list.js",
    "details.js": "board/details.js",
    "federation.js": "board/federation.js",
    "board.js": "board/board.js",
    "plotly.js": "",  # lies in plotly's package
}


def pages(
    board: Board,
    token: str | None = None,
    only_this_machine: bool = True,
    ending: Callable[[], bool] = lambda: False,
    console: SharedLook | None = None,
) -> Starlette:
    """Return the application. `ending` tells streams that the server is about to stop; a console takes orders."""

    async def events(request: Request) -> StreamingResponse:
        feed = board.watch(request.query_params.getlist("run"), console)
        return StreamingResponse(_stream(feed, board.pause, ending), media_type="text/event-stream")

    async def note(request: Request) -> Response:
        """Take a note and tags of a run: all that the board itself ever writes."""
        try:
            folder = board.index.folder(request.query_params.get("run", ""))
            notes = Notes.of(json.loads(await _body(request)))
            await run_in_threadpool(write_notes, folder, notes)
        except KeyError:
            return PlainTextResponse("there is no such run", 404)
        except (RequestError, ValueError, RecursionError) as error:
            return PlainTextResponse(f"not kept: {error}", 400)
        except OSError as error:
            return PlainTextResponse(f"not kept: {error.strerror}", 507)
        return Response(status_code=204)

    async def order(request: Request) -> Response:
        """Hand an operator's word on to the federation that the board was started for."""
        try:
            if console is None:
                return PlainTextResponse("this board takes no orders", 404)
            return PlainTextResponse(await run_in_threadpool(console.order, await _body(request)))
        except (FedstrataError, ValueError, RecursionError) as error:
            return PlainTextResponse(f"not done: {error}", 400)
        except OSError as error:
            return PlainTextResponse(f"not done: {error.strerror}", 507)

    routes = [
        Route("/", _page),
        Route("/notes", note, methods=["POST"]),
        Route("/orders", order, methods=["POST"]),
        *(Route(f"/{name}", _file) for name in FILES),
        Route("/events", events),
    ]
    guard = Middleware(Auth, token=token, only_this_machine=only_this_machine)
    return Starlette(routes=routes, middleware=[guard])


async def _stream(feed: Feed, pause: float, ending: Callable[[], bool]) -> AsyncIterator[str]:
    yield "retry: 2000\n\n"
    silent = 0
    while not ending():
        silent += 1
        for news in (feed.rows, feed.federation, feed.details, feed.figures):  # the list need not wait for figures
            for kind, data in await run_in_threadpool(news):
                yield f"event: {kind}\ndata: {data}\n\n"
                silent = 0
        if silent % HEARTBEAT == HEARTBEAT - 1:
            yield ": still here\n\n"
        await asyncio.sleep(pause)


async def _body(request: Request) -> bytes:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > LARGEST:
            raise RequestError(f"more than {LARGEST} bytes")
    return body


def _page(_: Request) -> Response:
    held = embed_json({"figures": {}, "sections": SECTIONS, "defaults": defaults(), **look()})
    return Response(_text("board/board.html").replace("HELD", held), media_type="text/html")


def _file(request: Request) -> Response:
    name = request.url.path[1:]
    if name == "plotly.js":
        return Response(
            get_plotlyjs(), media_type="text/javascript", headers={"Cache-Control": "private, max-age=3600"}
        )
    return Response(_text(FILES[name]), media_type="text/css" if name.endswith("css") else "text/javascript")


@cache
def _text(name: str) -> str:
    return (files("fedstrata") / name).read_text()
