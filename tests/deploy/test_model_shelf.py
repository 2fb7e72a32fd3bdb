"""The model comes home: who gets which, how it arrives, and what a site is told otherwise."""

from __future__ import annotations

import asyncio
import json
import shlex
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from looping import run_loop

from fedstrata.core.errors import FedstrataError, RequestError
from fedstrata.core.storage.json_log import LARGEST
from fedstrata.deploy import node_signature, state
from fedstrata.deploy.node_signature import KnownKeys, NodeKey
from fedstrata.deploy.served import MODELS, path_of
from fedstrata.deploy.server import model_shelf, run_book
from fedstrata.deploy.server.auth_proxy import Gate
from fedstrata.deploy.server.model_shelf import ModelShelf
from fedstrata.deploy.server.run_book import BookedRun
from fedstrata.deploy.site import fetch
from fedstrata.deploy.site.client import CheckedClient, FederationClient
from fedstrata.deploy.site.fetch import Shelf, choose_run, shelf_of
from fedstrata.remote.flower.failure import write_failure
from fedstrata.remote.server.orders import StoppedError

WHO = {"user": "ada", "uid": 7, "host": "h"}


def booked(folder, path, sites=("a", "b"), finished=True, model=b"the model"):
    path.mkdir(parents=True)
    (path / "sites.json").write_text(json.dumps({"run": "r", "sites": {site: {} for site in sites}}))
    if finished:
        (path / "summary.json").write_text("{}")
        (path / "model.safetensors").write_bytes(model)
    run_book.book(folder, BookedRun("1", str(path), "fedavg", {"labels": "prf"}, 3, len(sites), WHO))


@pytest.fixture
def server(tmp_path):
    folder = tmp_path / "server"
    folder.mkdir()
    booked(folder, tmp_path / "runs/one")
    booked(folder, tmp_path / "more/one", sites=("b",), model=b"another")
    booked(folder, tmp_path / "runs/two", finished=False)
    return folder


async def nobody(scope, receive, send):
    await send({"type": "http.response.start", "status": 418, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def got(app, path: str, **headers: str) -> tuple[int, bytes, dict]:
    sent = []

    async def send(part):
        sent.append(part)

    scope = {"type": "http", "path": path, "client": ("10.0.0.2", 5), "server": ("10.0.0.1", 8000)}
    scope["headers"] = [(name.encode(), value.encode()) for name, value in {"host": "x", **headers}.items()]
    run_loop(app(scope, None, send))
    about = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], b"".join(part.get("body", b"") for part in sent[1:]), about


def test_a_site_gets_the_models_of_finished_runs_in_which_it_took_part(server):
    def shelf(site):
        return ModelShelf(nobody, server, lambda _: site)

    def names(site):
        return [run["run"] for run in json.loads(got(shelf(site), MODELS)[1])]

    assert (names("a"), names("b"), names("c"), names("")) == (["one"], ["one", "one.2"], [], [])
    assert names(None) == ["one", "one.2"], "without keys, nobody is asked who he is"
    status, body, about = got(shelf("a"), path_of("one", "model.safetensors"))
    assert (status, body, about["content-length"]) == (200, b"the model", "9")
    assert got(shelf("b"), path_of("one.2", "model.safetensors"))[1] == b"another"
    for path in ("one.2/model.safetensors", "two/model.safetensors", "one/sites.json", "../server/runs.jsonl", "one"):
        assert got(shelf("a"), f"{MODELS}/{path}")[0] == 404, path
    assert got(shelf("a"), f"{MODELS}x")[0] == 418, "whatever else is asked for is not for the shelf"


def test_the_gate_lets_only_sites_with_a_known_key_to_the_shelf(server, made, tmp_path):
    key = (made / "sites/a/node.pub").read_text()
    (tmp_path / "nodes.json").write_text(json.dumps({"a": {"node": "1", "key": key}}))
    keys = KnownKeys(tmp_path / "nodes.json")
    signed, stranger = NodeKey(made / "sites/a/node.key").sign_time(), NodeKey(made / "sites/b/node.key").sign_time()
    by_key = lambda scope: keys.signer({n.decode(): v.decode() for n, v in scope["headers"]}) or ""  # noqa: E731
    gate = Gate(ModelShelf(nobody, server, by_key), keys)
    status, body, _ = got(gate, MODELS, **signed)
    assert (status, [run["run"] for run in json.loads(body)]) == (200, ["one"])
    assert got(gate, MODELS)[0] == 404
    assert got(gate, MODELS, **stranger)[0] == 404
    assert got(gate, path_of("one", "model.safetensors"), **(signed | {node_signature.TIME: "2020-01-01"}))[0] == 404
    assert got(gate, MODELS, **signed, origin="https://evil.example")[0] == 403


# ---- the site's side -----------------------------------------------------------------------------------------------


@pytest.fixture
def web(server):
    """Serve a shelf as a web server does."""
    shelf, lies = ModelShelf(nobody, server, lambda _: "a"), {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            status, body, about = got(shelf, self.path)
            body = lies.get("body", body)
            self.send_response(status)
            for name, value in (about | lies.get("headers", {})).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    here = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=here.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"127.0.0.1:{here.server_address[1]}", lies
    finally:
        here.shutdown()
        here.server_close()
        thread.join()


def test_a_model_arrives_whole_or_not_at_all(web, tmp_path):
    address, lies = web
    shelf = Shelf("a", address, None)
    assert [run["run"] for run in shelf.runs()] == ["one"]
    assert shelf.fetch("one", "model.safetensors", tmp_path / "m").read_bytes() == b"the model"
    lies["body"] = b"another 9"
    with pytest.raises(FedstrataError, match="did not arrive whole"):
        shelf.fetch("one", "model.safetensors", tmp_path / "n")
    assert list((tmp_path / "n").iterdir()) == []
    true = {"run": "x", "method": "fedavg", "rounds": 3, "privacy": {}, "files": {}}
    lies["body"] = json.dumps([true]).encode()
    lies["headers"] = {"content-length": str(len(lies["body"]))}
    assert shelf.runs() == [true]
    wrong = [{"run": "../x"}, {"run": ".."}, {"run": "\x1b[2J"}, {"method": "\x9b2J"}, {"rounds": "\n"}, {"privacy": 1}]
    wrong += [{"files": {"../model.safetensors": 1}}, {"files": None}]
    for text in (b"[1]", b"x", *(json.dumps([true | lie]).encode() for lie in wrong)):
        lies["body"], lies["headers"] = text, {"content-length": str(len(text))}
        with pytest.raises(FedstrataError, match="a list of models that is none"):
            shelf.runs()
    with pytest.raises(RequestError, match="gives site a no models"):
        lies.clear() or shelf.fetch("two", "model.safetensors", tmp_path / "o")


def test_fetch_goes_by_what_the_client_of_the_site_was_told(web, cli, tmp_path, monkeypatch):
    address, _ = web
    monkeypatch.chdir(tmp_path)
    code, _, err = cli("deploy", "fetch")
    assert (code, "--site is needed: none is known here" in err) == (2, True)
    code, _, err = cli("deploy", "fetch", "--site", "a")
    assert (code, "no client of site a was started here" in err) == (2, True)
    asked = FederationClient("a", address, None, {"name": "digits"}, 0)
    (state.private(state.of_site("a")) / "attend.json").write_text(CheckedClient.of(asked).write())
    assert cli("deploy", "fetch", "--list")[1] == "one  fedavg, 3 rounds\n"
    code, out, _ = cli("deploy", "fetch")
    assert code == 0
    assert (tmp_path / "models/one/model.safetensors").read_bytes() == b"the model"
    assert "fedstrata predict models/one INPUT" in out
    code, _, err = cli("deploy", "fetch")
    assert (code, "models/one is there already" in err) == (2, True)
    code, _, err = cli("deploy", "fetch", "two")
    assert (code, "there is no finished run two of this site; there are: one" in err) == (2, True)


def test_the_line_to_copy_is_a_command_of_ours_whatever_a_server_calls_its_run(web, server, cli, tmp_path, monkeypatch):
    address, _ = web
    monkeypatch.chdir(tmp_path)
    booked(server, tmp_path / "runs/x; touch pwned")
    code, out, _ = cli("deploy", "fetch", "--site", "a", "--server", address, "--insecure")
    assert code == 0
    (line,) = [line for line in out.splitlines() if line.startswith("the model at work:")]
    assert shlex.split(line.split(":", 1)[1]) == ["fedstrata", "predict", "models/x; touch pwned", "INPUT"]


def test_a_server_that_is_away_is_said_in_one_line(made):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(FedstrataError, match=f"the server at {address} cannot be asked"):
        Shelf("a", address, made / "sites/a").runs()
    assert shelf_of("a", "h:1", made / "sites/a", False) == Shelf("a", "h:1", made / "sites/a")
    with pytest.raises(RequestError, match="no finished run yet"):
        choose_run([], None)
    assert fetch.WAIT > 0


# ---- the book of runs ----------------------------------------------------------------------------------------------


def test_a_server_answers_others_while_it_reads_a_model(server, monkeypatch):
    """One model of gigabytes took all sites off the gate for as long as it was hashed."""
    others = threading.Event()

    class Slow:
        def update(self, _):
            assert others.wait(5), "nobody else was answered meanwhile"

        def hexdigest(self):
            return "0"

    monkeypatch.setattr(model_shelf, "sha256", Slow)
    sent = []

    async def send(part):
        sent.append(part)

    async def both():
        scope = {"type": "http", "path": path_of("one", "model.safetensors"), "headers": []}
        asking = asyncio.create_task(ModelShelf(nobody, server, lambda _: "a")(scope, None, send))
        await asyncio.sleep(0)
        others.set()
        await asking

    run_loop(both())
    assert b"".join(part.get("body", b"") for part in sent) == b"the model"


def test_a_run_is_in_the_book_for_good_however_many_there_were(tmp_path):
    booked(tmp_path, tmp_path / "one")
    with (tmp_path / run_book.FILE).open("a") as file:
        file.write(" " * LARGEST + "\n")
    booked(tmp_path, tmp_path / "two")
    assert [run.name for run in run_book.read_booked(tmp_path)] == ["one", "two"]


def test_the_server_logs_who_asked_for_which_run_and_what_became_of_it(tmp_path):
    from fedstrata.deploy.logs import FILE, keep_log, note  # noqa: PLC0415
    from fedstrata.deploy.server.run_book import RunWatch  # noqa: PLC0415

    booked(tmp_path, tmp_path / "old")
    keep_log(tmp_path, server=8000)
    watch = RunWatch(tmp_path)

    def turn():
        watch._next = 0.0
        watch.turn()
        return [json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()]

    note("server_started")
    assert [line["event"] for line in turn()] == ["server_started"], "what was over before is not told again"
    path = tmp_path / "new"
    run_book.book(tmp_path, BookedRun("2", str(path), "flips", {"aggregate": "masked"}, 5, 3, WHO))
    (line,) = turn()[1:]
    assert (line["event"], line["run"], line["method"]) == ("run_submitted", "new", "flips")
    assert (line["privacy"], line["asked_by"], line["server"]) == ({"aggregate": "masked"}, WHO, 8000)
    assert line["time"].endswith("+00:00")
    path.mkdir()
    (path / "failed.json").write_text(json.dumps({"message": "no site came"}))
    assert [(e["event"], e["level"], e["why"]) for e in turn()[2:]] == [("run_failed", "error", "no site came")]
    (path / "failed.json").unlink()
    (path / "summary.json").write_text(json.dumps({"rounds": 5, "accuracy": 0.5}))
    run_book.book(tmp_path, BookedRun("3", str(path), "flips", {}, 5, 3, WHO, resumed=True, at=time.time() + 1))
    assert [e["event"] for e in turn()[3:]] == ["run_submitted", "run_finished"]
    assert turn()[-1]["accuracy"] == 0.5
    third = BookedRun("4", str(tmp_path / "third"), "flips", {}, 5, 3, WHO)
    run_book.book(tmp_path, third)
    write_failure(tmp_path / "third", StoppedError("operator ann stopped the run"))
    (tmp_path / "third/sites.json").write_text(json.dumps({"run": "2e5b", "sites": {}}))
    stopped = turn()[-1]
    assert (stopped["event"], stopped["level"]) == ("run_stopped", "info")
    assert (stopped["why"], stopped["id"]) == ("operator ann stopped the run", "2e5b"), "sites call it so"
    assert third.state() == "stopped", "and so figures count it"
