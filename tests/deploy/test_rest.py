"""What servers and sites do while nobody needs them: nothing, in little memory. And how they wake up."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest
from looping import run_loop

from fedstrata.core.errors import FedstrataError
from fedstrata.deploy.served import ANNOUNCED
from fedstrata.deploy.server import auth_proxy, run_launcher
from fedstrata.deploy.server.long_poll import PULL, LongPoll
from fedstrata.deploy.server.run_launcher import ACQUIRE, SOON, SUBMIT, SUBMITTED, RunLauncher
from fedstrata.deploy.site import client, data_files, on_demand
from fedstrata.deploy.site.on_demand import SiteOnDemand
from fedstrata.deploy.site.supernode import foreign
from fedstrata.remote.flower.app_config import BLANK
from fedstrata.remote.protocol import build_request
from fedstrata.remote.site.private_socket import WAKE, Door

HTTP = {"type": "http", "state": {}}


class Calls:
    """A web application that gives prepared bodies, and notes who asked."""

    def __init__(self, *bodies: bytes):
        self.bodies, self.paths, self.read = list(bodies), [], []

    async def __call__(self, scope, receive, send):
        self.paths.append(scope["path"])
        self.read.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": self.bodies.pop(0) if self.bodies else b""})


def caller(leaves: asyncio.Event | None = None):
    parts = [{"type": "http.request", "body": b"who", "more_body": False}]

    async def receive():
        if parts:
            return parts.pop()
        await (leaves or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    return receive


async def asked(app, path: str, leaves: asyncio.Event | None = None) -> list:
    sent = []

    async def send(part):
        sent.append(part)

    await app({**HTTP, "path": path}, caller(leaves), send)
    return sent


def test_a_look_for_messages_waits_until_there_is_one():
    async def scenario():
        flower = Calls(b"", b"", b"a message")
        app = LongPoll(flower, hold=600.0)
        look = asyncio.ensure_future(asked(app, PULL))
        while len(flower.paths) < 1:
            await asyncio.sleep(0)
        assert not look.done()
        await asked(app, "/v1/runtime/push-messages")  # its own answer is the second body
        return flower, await look

    flower, sent = run_loop(scenario())
    assert [part.get("body") for part in sent[1:]] == [b"a message"]
    assert flower.paths == [PULL, "/v1/runtime/push-messages", PULL]
    assert flower.read == [b"who"] * 3, "the request is repeated as it came"


def test_a_look_that_finds_nothing_is_answered_after_a_while_and_errors_at_once():
    assert run_loop(asked(LongPoll(Calls(), hold=0.0), PULL))[1]["body"] == b""

    async def refuse(scope, receive, send):
        await send({"type": "http.response.start", "status": 401, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    assert run_loop(asked(LongPoll(refuse, hold=600.0), PULL))[0]["status"] == 401


def test_nobody_takes_out_a_message_for_a_site_that_has_left():
    async def scenario():
        flower, leaves = Calls(b"", b"", b"a message"), asyncio.Event()
        app = LongPoll(flower, hold=600.0)
        look = asyncio.ensure_future(asked(app, PULL, leaves))
        while len(flower.paths) < 1:
            await asyncio.sleep(0)
        leaves.set()
        sent = await look
        await asked(app, "/v1/runtime/push-object")
        return flower, sent

    flower, sent = run_loop(scenario())
    assert (flower.paths, sent) == ([PULL, "/v1/runtime/push-object"], [])


def test_sites_that_wait_are_told_of_a_run_that_was_submitted():
    async def scenario():
        app = LongPoll(flower := Calls(), hold=600.0)
        looks = [asyncio.ensure_future(asked(app, PULL)) for _ in range(2)]
        while len(flower.paths) < 2:
            await asyncio.sleep(0)
        await asked(app, "/v1/runtime/push-logs")
        assert not any(look.done() for look in looks), "what a run prints is no message"
        app.announce()
        told = await asyncio.gather(*looks)
        late = asyncio.ensure_future(asked(LongPoll(Calls(), hold=0.0), PULL))
        return told, await late

    told, late = run_loop(scenario())
    for start, body in told:
        assert start["headers"] == [(ANNOUNCED.encode(), b"1")]
        assert (start["status"], body["body"]) == (200, b"")
    assert late[0]["headers"] == [], "who looks later hears of it from the run itself"


# ---- runs ----------------------------------------------------------------------------------------------------------

TOLD = "import sys; open(sys.argv[1], 'a').write(sys.stdin.readline())"


def test_the_process_of_a_run_is_there_before_the_run_and_gets_it(tmp_path, monkeypatch):
    file = tmp_path / "told"
    monkeypatch.setattr(run_launcher, "PROCESS", [sys.executable, "-c", TOLD, str(file)])
    flower = Calls()
    runs = RunLauncher(flower, ["--insecure"])
    assert run_loop(asked(runs, SOON))[0]["status"] == 204
    assert run_loop(asked(runs, SOON))[0]["status"] == 204
    (warm,) = runs._started
    runs.launch("first")
    warm.wait(60)
    runs.launch("second")  # nobody announced it
    for child in runs._started:
        child.wait(60)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line[-2:] for line in lines] == [["--token", "first"], ["--token", "second"]]
    assert lines[0][:2] == ["--insecure", "--parent-pid"]
    assert flower.paths == []


def test_a_warm_process_that_has_ended_is_replaced(tmp_path, monkeypatch):
    file = tmp_path / "told"
    monkeypatch.setattr(run_launcher, "PROCESS", [sys.executable, "-c", ""])
    runs = RunLauncher(Calls(), [])
    runs.warm_up()
    runs._warm.wait(60)
    monkeypatch.setattr(run_launcher, "PROCESS", [sys.executable, "-c", TOLD, str(file)])
    runs.launch("t")
    for child in runs._started:
        child.wait(60)
    assert json.loads(file.read_text())[-1] == "t"


def test_nobody_can_take_the_task_of_a_run_over_the_web_and_a_submitted_run_is_looked_for():
    runs = RunLauncher(Calls(), [])
    assert run_loop(asked(runs, ACQUIRE))[0]["status"] == 404
    assert not runs._called.is_set()
    assert run_loop(asked(runs, SUBMITTED))[0]["status"] == 200
    assert runs._called.is_set()


def test_a_look_for_runs_that_fails_is_tried_again(monkeypatch, capsys):
    """Flower's database may have no room for a while; runs that come later would wait for ever."""
    answers = [OSError("full"), OSError("still full"), SimpleNamespace(token="t"), SimpleNamespace(token="")]
    launched = threading.Event()

    def acquire(asked, state):
        given = answers.pop(0) if answers else SimpleNamespace(token="")
        if isinstance(given, Exception):
            raise given
        return given

    handlers = SimpleNamespace(
        acquire_task=acquire, AcquireTaskRequest=dict, TaskType=SimpleNamespace(SERVER_APP="server")
    )
    monkeypatch.setattr(run_launcher, "import_module", lambda _: handlers)
    monkeypatch.setattr(run_launcher, "FIRST", 0.01)
    runs = RunLauncher(Calls(), [])
    monkeypatch.setattr(runs, "launch", lambda token: launched.set())
    runs.watch(lambda: None)
    assert launched.wait(60)
    assert capsys.readouterr().out == "runs cannot be started for now, which is tried again: full\n"


def submitting(app, body: bytes) -> tuple[int, bytes]:
    """Hand a server a run."""

    async def scenario():
        sent, parts = [], [{"type": "http.request", "body": body, "more_body": False}]

        async def receive():
            return parts.pop()

        async def send(part):
            sent.append(part)

        await app({**HTTP, "path": SUBMIT, "method": "POST", "headers": [(b"host", b"h"), (b"x", b"y")]}, receive, send)
        return sent

    start, body = run_loop(scenario())
    return start["status"], body["body"]


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's own
def test_the_server_submits_our_app_with_the_configuration_that_it_is_told():
    control = pytest.importorskip("flwr.proto.control_pb2")
    seen = {}

    async def flower(scope, receive, send):
        seen.update(path=scope["path"], headers=dict(scope["headers"]), body=(await receive())["body"])
        answer = control.StartRunResponse(run_id=77).SerializeToString()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": answer})

    told = []
    runs = RunLauncher(flower, [], lambda: told.append("begins"))
    assert submitting(runs, json.dumps({**BLANK, "sites": 3}).encode()) == (200, b"77")
    assert runs._called.is_set(), "its process is to be started"
    assert told == ["begins"], "sites can wake up"
    assert (seen["path"], seen["headers"][b"host"]) == (SUBMITTED, b"h")
    assert b"x" not in seen["headers"]
    request = control.StartRunRequest.FromString(seen["body"])
    assert request.override_config["sites"].sint64 == 3
    assert request.fab.hash_str == sha256(request.fab.content).hexdigest()
    assert foreign(request.fab.content) is None, "it is the app that sites run"


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's own
def test_what_is_no_run_is_not_submitted_and_what_flower_says_is_handed_on():
    pytest.importorskip("flwr")

    def unwanted():
        pytest.fail("no site is woken for it")

    async def refuse(scope, receive, send):
        await send({"type": "http.response.start", "status": 409, "headers": []})
        await send({"type": "http.response.body", "body": b"no"})

    for body in (b"", b"{", b"[]", b'{"sites": 3}', json.dumps({**BLANK, "more": 1}).encode()):
        assert submitting(RunLauncher(Calls(), [], unwanted), body)[0] == 400
    assert submitting(RunLauncher(refuse, [], unwanted), json.dumps(BLANK).encode()) == (409, b"no")


def test_runs_find_their_way_back_to_the_server():
    words = ["--host", "0.0.0.0", "--port", "8123", "--ssl-ca-certfile", "/k/ca.crt"]
    assert auth_proxy._way_back(words) == [
        *("--runtime-api-address", "127.0.0.1:8123", "--root-certificates", "/k/ca.crt")
    ]
    assert auth_proxy._way_back(["--host", "::1", "--port", "1", "--insecure"]) == [
        *("--runtime-api-address", "[::1]:1", "--insecure")
    ]


# ---- the process of a site -----------------------------------------------------------------------------------------


class Site:
    """A process that could be asked: a door in this one, and a child that only lives."""

    def __init__(self, folder: Path):
        self.socket, self.started, self.forgotten = folder / "s" / "p", [], 0
        self.door = Door(lambda request: b"answer to " + request, self.socket)

    def start(self) -> subprocess.Popen:
        self.started.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]))
        return self.started[-1]

    def forget(self) -> None:
        self.forgotten += 1

    def __enter__(self):
        self.door.__enter__()
        return self

    def __exit__(self, *why):
        self.door.__exit__(*why)
        for child in self.started:
            child.kill()
            child.wait()


@pytest.fixture
def site(tmp_path_factory):
    with Site(tmp_path_factory.mktemp("d")) as here:
        yield here


def test_the_process_that_holds_the_data_is_there_while_somebody_needs_it(site, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(on_demand.time, "monotonic", lambda: now[0])
    here = SiteOnDemand(site.start, site.socket, site.forget, rest=60.0)
    assert not here.awake
    assert here.answer(b"") == b""
    assert here.awake, "a node was asked for its name: a run begins"
    assert here.answer(b"fedstrata stream\n{}") == b"answer to fedstrata stream\n{}"
    now[0] += 59
    here.turn()
    assert here.awake
    now[0] += 2
    here.turn()
    assert not here.awake
    assert site.started[0].poll() is not None
    assert site.forgotten == 1, "it was ended on purpose"
    assert here.answer(b"x") == b"answer to x"
    assert len(site.started) == 2
    now[0] += 1800
    here.turn()
    assert here.awake, "between two messages, others may work for long"
    now[0] += 1801
    here.turn()
    assert not here.awake


def test_what_is_announced_starts_the_process_and_asks_it_nothing(site, monkeypatch):
    now, asked = [1000.0], []
    monkeypatch.setattr(on_demand.time, "monotonic", lambda: now[0])
    site.door._server.answer = lambda request: asked.append(request) or b""
    here = SiteOnDemand(site.start, site.socket, site.forget, rest=5.0)
    here.answer(WAKE)
    assert here.awake
    now[0] += 29
    here.turn()
    assert here.awake, "a run takes its time to begin, however soon the owner lets the process rest"
    here.answer(WAKE)
    now[0] += 2
    here.turn()
    assert not here.awake, "nothing came of it; and a second announcement does not keep the process there"
    here.answer(WAKE)
    assert not here.awake
    assert (len(site.started), asked) == (1, []), "no announcement reached the process, where policies are kept"
    here.answer(b"fedstrata stream\n{}")
    now[0] += 6
    here.turn()
    assert not here.awake
    here.answer(WAKE)
    assert here.awake, "a run came, so the next announcement counts"
    assert len(site.started) == 3


def test_a_process_that_was_started_for_its_owner_rests_and_hears_the_first_announcement(site, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(on_demand.time, "monotonic", lambda: now[0])
    here = SiteOnDemand(site.start, site.socket, site.forget, rest=5.0)
    here.begin()
    now[0] += 6
    here.turn()
    assert not here.awake
    here.answer(WAKE)
    assert here.awake


def test_a_process_is_not_ended_while_it_answers(site):
    here, seen = None, []

    def answer(request: bytes) -> bytes:
        here.turn()
        seen.append(here.awake)
        return b""

    site.door._server.answer = answer
    here = SiteOnDemand(site.start, site.socket, site.forget, rest=0.0)
    here.answer(b"fedstrata stream\n")
    assert seen == [True]


def test_a_process_that_cannot_read_its_data_is_the_answer(tmp_path):
    def start() -> subprocess.Popen:
        return subprocess.Popen([sys.executable, "-c", "raise SystemExit(2)"])

    here = SiteOnDemand(start, tmp_path / "nobody", lambda: None)
    with pytest.raises(FedstrataError, match="cannot be served"):
        here.answer(b"x")


def test_a_run_that_begins_finds_the_data_as_they_are_now(site, tmp_path):
    """Whoever was taken out of the file is in no run that begins later, also where the process does not rest yet."""
    file = tmp_path / "patients.csv"
    file.write_text("x,label\n1,0\n2,1\n")
    here = SiteOnDemand(site.start, site.socket, site.forget, 60.0, lambda: data_files.look_at([str(file)]))
    introduction, stream = build_request("introduce", b"{}"), b"fedstrata stream\n{}"
    here.begin()
    for request in (b"", introduction, stream, b"x"):
        here.answer(request)
    assert len(site.started) == 1, "nothing has changed"
    for begun, request in enumerate((b"", introduction, stream), 2):
        file.write_text("x,label\n1,0\n" * begun)
        here.answer(b"x")
        assert len(site.started) == begun - 1, "a run that goes on keeps what it was begun with"
        here.answer(request)
        here.answer(introduction)
        assert (len(site.started), site.forgotten) == (begun, begun - 1)
        assert site.started[-2].poll() is not None
    file.unlink()
    here.answer(introduction)
    assert len(site.started) == 5


def test_a_process_that_answers_is_not_ended_for_other_data(site):
    here, looks = None, iter(range(9))
    site.door._server.answer = lambda request: here.answer(b"") if request else b""
    here = SiteOnDemand(site.start, site.socket, site.forget, look=lambda: next(looks))
    here.answer(b"fedstrata stream\n")
    assert (len(site.started), site.forgotten) == (1, 0)


def test_files_of_all_that_a_table_names_are_looked_at(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSTRATA_DATA", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    assert data_files.named_files({"name": "digits"}) == []
    files = data_files.named_files({"name": "own", "path": "scans", "test_path": "more/test.csv", "label": "scans"})
    assert files == [str(tmp_path / name) for name in ("scans", "more/test.csv", "store/own-scans")]
    (tmp_path / "scans/cat").mkdir(parents=True)
    (tmp_path / "scans/cat/1.png").write_bytes(b"1")
    seen = [data_files.look_at(files)]
    for change in (
        lambda: (tmp_path / "scans/cat/2.png").write_bytes(b"2"),
        lambda: os.utime(tmp_path / "scans/cat/1.png", ns=(5, 5)),
        (tmp_path / "scans/cat/2.png").unlink,
        lambda: (tmp_path / "store/own-scans").mkdir(parents=True),
    ):
        change()
        seen.append(data_files.look_at(files))
        assert seen[-1] not in seen[:-1]
    assert data_files.look_at(files) == seen[-1]


def test_what_was_checked_is_read_again_as_it_was(made):
    asked = client.FederationClient("a", "h:8000", made / "sites/a", {"name": "digits"}, 3, patience=7.0)
    checked = client.CheckedClient.of(asked, rest=5.0)
    again = client.CheckedClient.read(checked.write())
    assert again == checked
    assert again.keys == made / "sites/a"
    assert again.config(Path("/s")) == asked.config(Path("/s"))
    assert (again.patience, again.rest) == (7.0, 5.0)


def test_whoever_keeps_a_site_or_a_server_imports_nothing_heavy():
    code = "import sys, fedstrata.deploy.server.auth_proxy, fedstrata.deploy.server.federation_server, fedstrata.cli\n"
    code += "import fedstrata.deploy.site.client\n"
    code += "with fedstrata.cli.deploy._until_stopped('x'): pass\n"
    code += "print([name for name in ('torch', 'numpy', 'flwr') if name in sys.modules])"
    began = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert began.stdout.strip() == "[]"
