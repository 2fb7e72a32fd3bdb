"""A federation on the board: it is told to browsers when it changes, and orders are taken from the page alone."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from fedstrata.board.app import pages
from fedstrata.board.console import SharedLook
from fedstrata.board.feed import Board
from fedstrata.board.serve import serve
from fedstrata.core.errors import RequestError

TOKEN = "a token of enough letters"
HERE = {"Origin": "http://localhost:8765", "Content-Type": "application/json"}


class Federation:
    """One that notes what it is told."""

    def __init__(self):
        self.said, self.round, self.looks = [], 1, 0

    def look(self):
        self.looks += 1
        return {"round": self.round}

    def order(self, action, run):
        if run == "9":
            raise RequestError('there is no run "9" here')
        self.said.append((action, run))
        return f"ann said {action} to run {run}"


def told(there, tmp_path, body=b'{"action": "stop", "run": "1"}', headers=HERE, cookie=TOKEN, **how):
    app = pages(Board(tmp_path, pause=0), console=None if there is None else SharedLook(there, 0.0), **how)

    async def post():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8765") as client:
            cookies = {"Cookie": f"fedstrata-board-8765={cookie}"} if cookie else {}
            return await client.post("/orders", content=body, headers=headers | cookies)

    return asyncio.run(post())


def test_the_page_gives_orders_and_hears_what_came_of_them(tmp_path):
    there = Federation()
    answer = told(there, tmp_path, token=TOKEN)
    assert (answer.status_code, answer.text) == (200, "ann said stop to run 1")
    refused = told(there, tmp_path, b'{"action": "stop", "run": "9"}', token=TOKEN)
    assert (refused.status_code, refused.text) == (400, 'not done: there is no run "9" here')
    assert there.said == [("stop", "1")]


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ({"headers": {}}, 403),
        ({"headers": HERE | {"Origin": "http://elsewhere.example"}}, 403),
        ({"headers": HERE | {"Content-Type": "text/plain"}}, 403),  # what a form of another page can send
        ({"headers": HERE | {"Host": "elsewhere.example", "Origin": "http://elsewhere.example"}}, 403),
        ({"cookie": ""}, 401),
        ({"cookie": "another token, as long"}, 401),
        ({"body": b"{"}, 400),
        ({"body": b'["stop", "1"]'}, 400),
        ({"body": b'{"action": "stop"}'}, 400),
        ({"body": b'{"action": "stop", "run": 1}'}, 400),
        ({"body": b'{"action": "stop", "run": "' + b"1" * 100_000 + b'"}'}, 400),
        ({"body": b"[" * 60_000}, 400),
    ],
)
def test_nobody_else_gives_orders(tmp_path, how, status):
    there = Federation()
    assert told(there, tmp_path, token=TOKEN, **how).status_code == status
    assert there.said == []


def test_a_board_without_a_federation_takes_no_orders(tmp_path):
    assert told(None, tmp_path, cookie="").status_code == 404


def test_browsers_are_told_of_a_federation_when_it_changes_and_share_the_look(tmp_path):
    there = Federation()
    shared, board = SharedLook(there, 60.0), Board(tmp_path, pause=0)
    one, other = board.watch([], shared), board.watch([], shared)
    for feed in (one, other):
        assert [(kind, json.loads(data)) for kind, data in feed.federation()] == [("federation", {"round": 1})]
        assert feed.federation() == []
    assert there.looks == 1
    there.round = 2
    shared.order(b'{"action": "pause", "run": "1"}')  # after which everybody wants to see what came of it
    assert [json.loads(data) for _, data in one.federation()] == [{"round": 2}]
    assert board.watch([]).federation() == []


def test_a_federation_is_served_on_this_machine_alone(tmp_path):
    with pytest.raises(RequestError, match="on this machine alone"):
        serve(tmp_path, "0.0.0.0", 0, None, print, Federation())
