"""The board: which runs there are and how far, what a browser is told and when, and who may look."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import sys
import time
from functools import partial
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from weakref import WeakSet

import httpx
import pytest
import written
from portalocker import LockFlags, lock

from fedstrata import Run
from fedstrata.board import feed as feeds
from fedstrata.board import index as shelves
from fedstrata.board import views
from fedstrata.board.app import FILES, pages
from fedstrata.board.feed import Board
from fedstrata.board.index import RunIndex
from fedstrata.board.views import MOST, BoardView, RunReader
from fedstrata.cli import board as command
from fedstrata.core.errors import RequestError
from fedstrata.core.storage import event_lines
from fedstrata.report.run_data import RunData

TOKEN = "a token of enough letters"


def told(news: list[tuple[str, str]]) -> dict[str, dict]:
    return {kind: json.loads(data) for kind, data in news}


def names(found: dict) -> list[str]:
    return [row["path"] for row in found["changed"]]


@pytest.fixture
def root(tmp_path) -> Path:
    """A finished run, one in the middle, one cell of a comparison, and a folder that is something else."""
    done = written.begun(tmp_path / "runs/done")
    written.write_rounds(done, 1, 5)
    written.conclude(done)
    written.write_rounds(written.begun(tmp_path / "runs/begun", method="scaffold"), 1, 3)
    written.write_rounds(written.begun(tmp_path / "runs/compare-1/fedavg/seed-0"), 1, 2)
    (tmp_path / "runs/foreign/deep").mkdir(parents=True)
    (tmp_path / "runs/foreign/deep/notes.txt").write_text("nothing to see")
    return tmp_path / "runs"


class Browser:
    """A browser whose streams end after some looks at the runs."""

    def __init__(self, root: Path, looks: int = 1, **how):
        left = iter(range(looks))
        app = pages(Board(root, pause=0), ending=lambda: next(left, None) is None, **how)
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost:8765")

    def request(self, method: str, path: str, **how) -> httpx.Response:
        return asyncio.run(self.client.request(method, path, **how))

    def get(self, path: str, **how) -> httpx.Response:
        return self.request("GET", path, **how)


def events(answer: httpx.Response) -> list[tuple[str, dict]]:
    """Read a stream as a browser does."""
    found = []
    for block in answer.text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "event" in lines:
            found.append((lines["event"], json.loads(lines["data"])))
    return found


# ---- the list ------------------------------------------------------------------------------------------------------


def test_runs_are_listed_with_what_they_are_and_how_far(root):
    index = RunIndex(root)
    index.look()
    assert list(index.rows) == ["begun", "compare-1/fedavg/seed-0", "done"]
    done, begun = index.rows["done"], index.rows["begun"]
    assert (done.state, done.rounds, done.planned, done.accuracy) == ("finished", 5, 5, 0.9)
    assert done.why == "all rounds done"
    assert (begun.state, begun.rounds, begun.method, begun.data) == ("stopped", 3, "scaffold", "digits")
    assert begun.accuracy == written.round_event(3)["accuracy"]


def test_a_run_is_running_while_a_process_holds_its_folder(root):
    index = RunIndex(root)
    index.look()
    with Run(root / "begun").locked():  # whoever opens the folder again is another to the system, also in one process
        index.look()
        assert index.rows["begun"].state == "running"
    index.look()
    assert index.rows["begun"].state == "stopped"


def test_looking_at_a_run_does_not_keep_it_from_going_on(root):
    run = Run(root / "begun")
    handle = os.open(run.path / "lock", os.O_RDONLY | os.O_CREAT)
    lock(handle, LockFlags.SHARED)  # somebody looks at the very moment when the run begins
    assert not run.running, "those who look do not take each other for runs"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedstrata.core.storage.file_lock.time.sleep", lambda _: os.close(handle))
        with run.locked():
            assert run.running
    assert not run.running


def test_new_runs_appear_and_removed_ones_go(root):
    watch = Board(root, pause=0).watch([])
    assert names(told(watch.rows())["runs"]) == ["begun", "compare-1/fedavg/seed-0", "done"]
    assert watch.rows() == []
    written.begun(root / "fresh")
    shutil.rmtree(root / "done")
    again = told(watch.rows())["runs"]
    assert names(again) == ["fresh"]
    assert again["gone"] == ["done"]
    assert not again["all"]


def test_a_run_that_is_damaged_says_what_is_wrong_and_hides_no_other(root):
    (root / "begun/experiment.toml").write_text("[[[")
    (root / "done/summary.json").write_text('{"rounds"')
    index = RunIndex(root)
    index.look()
    assert index.rows["begun"].state == index.rows["done"].state == "damaged"
    assert index.rows["begun"].why.startswith("experiment.toml is not valid TOML")
    assert index.rows["compare-1/fedavg/seed-0"].state == "stopped"
    for odd in ("{}", '{"accuracy": 1, "rounds": []}', '{"accuracy": 1, "rounds": "x"}', "[" * 100_000):
        (root / "done/summary.json").write_text(odd)
        index.look()
        assert index.rows["done"].state == "damaged", odd
        assert index.rows["compare-1/fedavg/seed-0"].state == "stopped"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no such pipes")
@pytest.mark.parametrize("name", ["summary.json", "notes.json", "lock"])
@pytest.mark.parametrize("what", ["a pipe that nobody writes to", "a hundred gigabytes of nothing", "a device"])
def test_files_that_would_be_read_for_ever_hide_no_other_run(root, name, what):
    file = root / "done" / name
    file.unlink(missing_ok=True)
    if what == "a device":
        file.symlink_to("/dev/zero")
    elif what == "a pipe that nobody writes to":
        os.mkfifo(file)
    else:
        file.touch()
        os.truncate(file, 100 << 30)
    index = RunIndex(root)
    looking = Thread(target=index.look, daemon=True)
    looking.start()
    looking.join(60)
    assert not looking.is_alive(), "the board waits for it"
    assert index.rows["done"].state == "damaged"
    assert index.rows["done"].why.startswith(f"{name} is no file")
    assert index.rows["begun"].state == "stopped"


def test_links_are_not_followed(root, tmp_path):
    written.begun(tmp_path / "elsewhere")
    (root / "link").symlink_to(tmp_path / "elsewhere")
    (root / "loop").symlink_to(root)
    index = RunIndex(root)
    index.look()
    assert list(index.rows) == ["begun", "compare-1/fedavg/seed-0", "done"]


def test_a_run_folder_itself_can_be_watched(root):
    index = RunIndex(root / "done")
    index.look()
    assert list(index.rows) == ["."]
    assert told(Board(root / "done", pause=0).watch(["."]).rows())["runs"]["changed"][0]["state"] == "finished"


def test_half_a_line_is_not_yet_a_round_and_an_unscored_one_keeps_the_last_accuracy(root):
    index, path = RunIndex(root), root / "begun/events.jsonl"
    index.look()
    scored = index.rows["begun"].accuracy
    unscored = written.round_event(4)
    del unscored["accuracy"]
    with path.open("a") as file:
        file.write(json.dumps(unscored) + "\n" + '{"event": "round", "round": 5, "accur')
    index.look()
    assert (index.rows["begun"].rounds, index.rows["begun"].accuracy) == (4, scored)


def test_200_runs_are_read_once_and_only_their_ends(tmp_path, monkeypatch):
    first = written.begun(tmp_path / "runs/run-0", clients=50)
    written.write_rounds(first, 1, 100, clients=50)  # its events are longer than what is read of them
    for at in range(1, 200):
        shutil.copytree(first.path, tmp_path / f"runs/run-{at}")
    assert (first.path / "events.jsonl").stat().st_size > shelves.TAILS[0]
    parsed, read = [], []
    whole, opened = json.loads, Path.open
    monkeypatch.setattr(event_lines.json, "loads", lambda text: parsed.append(len(text)) or whole(text))

    def noted(path: Path, *how: str, **more):
        read.extend([path] * (path.name == "events.jsonl" and how == ("rb",)))
        return opened(path, *how, **more)

    monkeypatch.setattr(Path, "open", noted)
    index = RunIndex(tmp_path / "runs")
    index.look()
    assert len(index.rows) == len(read) == len(parsed) == 200  # one line of each
    written.write_rounds(Run(tmp_path / "runs/run-7"), 101, 101, clients=50)
    index.look()
    assert len(read) == len(parsed) == 201
    assert index.rows["run-7"].rounds == 101


# ---- figures -------------------------------------------------------------------------------------------------------


class Clock:
    """The time, from which a test can skip some."""

    skipped = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.skipped

    def rest(self) -> None:
        """Let the time pass for which a view rests after it was drawn."""
        self.skipped += 1e6


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(views, "time", clock)
    return clock


def test_figures_of_a_run_grow_as_it_goes_on(root, clock):
    board = Board(root, pause=0)
    watch = board.watch(["begun"])
    watch.rows()
    first = told(watch.figures())["figures"]
    assert {"accuracy", "recall", "participation"} <= set(first["order"]) == set(first["changed"])
    assert "after 3 of 5 rounds" in first["outcome"]
    assert watch.figures() == []  # nothing has happened
    written.write_rounds(Run(root / "begun"), 4, 4)
    clock.rest()
    second = told(watch.figures())["figures"]
    assert "after 4 of 5 rounds" in second["outcome"]
    assert "accuracy" in second["changed"]


def test_only_figures_that_changed_are_sent(root, clock):
    watch = Board(root, pause=0).watch(["done"])
    watch.rows()
    order = told(watch.figures())["figures"]["order"]
    with (root / "done/events.jsonl").open("a") as file:
        file.write('{"event": "dropped", "round": 5, "clients": [1], "why": "late"}\n')
    clock.rest()
    again = told(watch.figures())["figures"]
    assert set(again["order"]) - set(order) == set(again["changed"]) == {"faults"}


def test_several_runs_are_laid_over_each_other_and_seeds_of_a_method_are_one_line(root):
    written.write_rounds(written.begun(root / "compare-1/fedavg/seed-1", seed=1), 1, 2)
    watch = Board(root, pause=0).watch(["begun", "compare-1/fedavg/seed-0", "compare-1/fedavg/seed-1"])
    watch.rows()
    shown = told(watch.figures())["figures"]
    assert shown["title"] == "3 runs on digits"
    lines = [line["name"] for line in shown["changed"]["accuracy"]["data"] if line.get("showlegend", True)]
    assert lines == ["begun", "compare-1/fedavg"]


def test_runs_on_different_data_are_warned_of(root):
    other = written.begun(root / "other", clients=9)
    written.write_rounds(other, 1, 2, clients=9)
    watch = Board(root, pause=0).watch(["begun", "other"])
    watch.rows()
    assert any("different data" in said for said in told(watch.figures())["figures"]["warnings"])


def test_a_run_that_is_removed_while_it_is_watched_keeps_its_figures_and_says_so(root, clock):
    watch = Board(root, pause=0).watch(["begun"])
    watch.rows()
    order = told(watch.figures())["figures"]["order"]
    shutil.rmtree(root / "begun")
    clock.rest()
    assert told(watch.rows())["runs"]["gone"] == ["begun"]
    shown = told(watch.figures())["figures"]
    assert shown["warnings"] == ["begun was removed"]
    assert shown["order"] == order
    written.write_rounds(written.begun(root / "begun", rounds=7), 1, 1)
    clock.rest()
    watch.rows()
    shown = told(watch.figures())["figures"]
    assert shown["warnings"] == []
    assert "after 1 of 7 rounds" in shown["outcome"]


def test_a_foreign_file_in_a_run_folder_is_told(root):
    (root / "begun/events.jsonl").write_text('{"song": 1}\nnot even JSON\n')
    watch = Board(root, pause=0).watch(["begun", "done"])
    watch.rows()
    shown = told(watch.figures())["figures"]
    assert any("is not a run folder" in said for said in shown["warnings"])
    assert "done" in shown["title"]


def test_more_runs_than_can_be_told_apart_are_not_drawn(root):
    chosen = ["begun", *(f"run-{i}" for i in range(MOST + 2))]
    watch = Board(root, pause=0).watch(chosen)
    watch.rows()
    assert f"{MOST} runs can be told apart; the other 3 are not drawn" in told(watch.figures())["figures"]["warnings"]


def test_10000_rounds_are_read_once_and_drawn_with_few_points(tmp_path, monkeypatch, clock):
    run = written.begun(tmp_path / "runs/long", clients=20, rounds=10_000)
    written.write_long(run, 10_000, clients=20)
    taken = []
    monkeypatch.setattr(event_lines, "json", SimpleNamespace(loads=lambda line: taken.append(1) or json.loads(line)))
    board = Board(tmp_path / "runs", pause=0)
    watch, other = board.watch(["long"]), board.watch(["long"])
    watch.rows()
    (sent,) = watch.figures()
    assert len(taken) == 10_002  # every line, and the last one for the list
    assert len(sent[1]) < 600_000  # as much as a run of a few hundred rounds
    assert told(other.figures())["figures"]["order"]  # shares what was read and drawn
    written.write_rounds(run, 10_001, 10_001, clients=20)
    assert watch.figures() == []  # it rests: drawing never takes most of the time
    clock.rest()
    assert "after 10001 of" in told(watch.figures())["figures"]["outcome"]
    assert len(taken) == 10_003


def test_what_nobody_watches_any_more_is_let_go(root, monkeypatch):
    made = WeakSet()
    for kind in (RunReader, BoardView):

        def noted(self, *how, begin=kind.__init__):
            made.add(self)
            begin(self, *how)

        monkeypatch.setattr(kind, "__init__", noted)
    board = Board(root, pause=0)
    watch = board.watch(["begun"])
    watch.rows()
    watch.figures()
    assert {type(found) for found in made} == {RunReader, BoardView}
    assert len(made) == 2
    del watch
    assert len(made) == 0


def test_looks_are_shared_and_paced(root, monkeypatch):
    looks, look, now = [], RunIndex.look, [100.0]
    monkeypatch.setattr(RunIndex, "look", lambda self: looks.append(1) or look(self))
    monkeypatch.setattr(feeds, "time", SimpleNamespace(monotonic=lambda: now[0]))
    board = Board(root, pause=feeds.PAUSE)
    watching = [board.watch([]) for _ in range(50)]
    for watch in watching:
        assert watch.rows()
    assert len(looks) == 1  # not 50: browsers share a look
    now[0] += feeds.PAUSE
    for watch in watching:
        watch.rows()
    assert len(looks) == 2


# ---- over HTTP -----------------------------------------------------------------------------------------------------


def test_the_stream_tells_the_list_first_and_then_the_figures(root):
    found = events(Browser(root).get("/events?run=begun"))
    assert [kind for kind, _ in found] == ["runs", "details", "figures"]
    assert found[0][1]["all"]
    assert found[2][1]["title"] == "begun on digits"
    assert len(events(Browser(root, looks=5).get("/events?run=begun"))) == 3  # then nothing, as nothing happens


def test_the_page_and_all_it_is_made_of_come_from_here(root):
    browser = Browser(root)
    page = browser.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "http://" not in page.text.partition('id="held"')[0]
    for name in FILES:
        answer = browser.get(f"/{name}")
        assert answer.status_code == 200
        assert f'"{name}"' in page.text
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert page.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/..%2f..%2fetc/passwd",
        "/done/events.jsonl",
        "/board.js/../../app.py",
        "//etc/passwd",
        "/%00",
    ],
)
def test_files_cannot_be_had(root, path):
    assert Browser(root).get(path).status_code == 404


@pytest.mark.parametrize("run", ["..", "../runs/done", "/etc", "done/../done", "", "foreign", "done/checkpoint", "\0"])
def test_only_runs_that_are_listed_can_be_opened(root, run, monkeypatch):
    monkeypatch.setattr(RunData, "read", lambda *_: pytest.fail("something was opened"))
    _, (_, details), (_, shown) = events(Browser(root).get("/events", params={"run": run}))
    assert details == []
    assert shown["warnings"] == [f"there is no run {run} here"]
    assert shown["order"] == []


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
@pytest.mark.parametrize("path", ["/events", "/", "/board.js"])
def test_the_board_only_reads_but_for_notes(root, method, path):
    assert Browser(root).request(method, path).status_code == 405


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "", "[::1].evil:1", "["]
)
def test_on_loopback_other_names_are_refused(root, host):
    assert Browser(root).get("/", headers={"host": host}).status_code == 403


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8765", "[::1]:8765", "127.0.0.2"])
def test_on_loopback_its_own_names_are_answered(root, host):
    assert Browser(root).get("/", headers={"host": host}).status_code == 200


def test_beyond_loopback_a_token_is_needed_and_a_cookie_keeps_it(root):
    browser = Browser(root, looks=3, token=TOKEN, only_this_machine=False)
    for path in ("/", "/plotly.js", "/events", "/?token=wrong", "/?token="):
        assert browser.get(path).status_code == 401
    assert browser.get("/", headers={"cookie": "fedstrata-board-8765=wrong"}).status_code == 401
    opened = browser.get("/", params={"token": TOKEN, "run": "begun"}, follow_redirects=False)
    assert (opened.status_code, opened.headers["location"]) == (303, "/?run=begun")
    assert "HttpOnly" in opened.headers["set-cookie"]
    assert browser.get("/").status_code == 200
    assert events(browser.get("/events?run=begun"))[2][1]["title"] == "begun on digits"


# ---- the command ---------------------------------------------------------------------------------------------------


def test_a_bad_request_says_what_is_wrong(tmp_path, monkeypatch):
    with pytest.raises(RequestError, match="nowhere is not a folder"):
        command.board(Path("nowhere"), 0)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(RequestError, match="is taken; choose another"):
        command.board(tmp_path, taken.getsockname()[1])
    with pytest.raises(RequestError, match=r"--host no\.such\.host\.invalid"):
        command.board(tmp_path, 0, "no.such.host.invalid")
    with pytest.raises(RequestError, match="--token has 5 characters"):
        command.board(tmp_path, 0, token="short")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "fedstrata.board.serve", raising=False)
    with pytest.raises(RequestError, match=r"pip install 'fedstrata\[board\]'"):
        command.board(tmp_path, 0)


@pytest.mark.parametrize(("host", "asks"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_beyond_loopback_the_address_that_is_printed_has_a_token(tmp_path, monkeypatch, capsys, host, asks):
    from fedstrata.board import serve  # noqa: PLC0415 - it was taken away above

    monkeypatch.setattr(serve.uvicorn.Server, "run", lambda self, sockets: None)
    quiet = partial(serve.uvicorn.Config, log_config=None)  # its own would close the streams that others log to
    monkeypatch.setattr(serve.uvicorn, "Config", quiet)
    serve.serve(tmp_path, host, 0, None, print)
    said = capsys.readouterr().out
    named = socket.gethostname() if asks else host  # 0.0.0.0 is no address that one can open
    assert said.startswith(f"board of {tmp_path}: http://{named}:")
    assert ("?token=" in said) is asks
