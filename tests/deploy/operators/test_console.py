"""The queue of runs, and what operators say to them in the console."""

from __future__ import annotations

import json
import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from deployed import a_run, a_server
from rich.console import Console

from fedstrata.cli import console
from fedstrata.config.experiment import Experiment
from fedstrata.core.errors import RequestError
from fedstrata.core.storage.file_lock import take_lock
from fedstrata.deploy import logs, site_reports, state
from fedstrata.deploy.authority import Authority
from fedstrata.deploy.operators import overview, run_queue, submit
from fedstrata.deploy.operators.board_console import BoardConsole
from fedstrata.deploy.operators.run_queue import tickets, turn
from fedstrata.deploy.operators.submit import Submission
from fedstrata.deploy.server import federation_server
from fedstrata.deploy.site_reports import ReportBook, SiteReport
from fedstrata.remote.flower.app_config import RunConfig
from fedstrata.remote.server import waiting_note
from fedstrata.remote.server.orders import FILE, StoppedError
from fedstrata.remote.server.waiting_note import WaitingNote


@pytest.fixture
def there(made, tmp_path, monkeypatch):
    """A server with keys, whose operator is ann; of its sites, a and b may connect already."""
    own = shutil.copytree(made, tmp_path / "keys")
    Authority.open(own).add_operator("ann")
    here = a_server(keys=str(own / "server"))
    state.private(here.folder)
    known = {name: {"node": str(i), "key": "k"} for i, name in enumerate("ab")}
    (here.folder / "nodes.json").write_text(json.dumps(known))
    monkeypatch.setattr(federation_server, "find_server", lambda *_: here)
    return here


def asked(there, path, **more):
    return Submission(there, Experiment.of({"train": {"rounds": 2}}), path, 2, **more)


def test_a_second_run_waits_for_its_turn_and_says_so(there, tmp_path):
    said, order = [], []
    with turn(asked(there, tmp_path / "one"), said.append) as first:
        assert (first.number, first.submitted, said) == (1, True, [])

        def second():
            with turn(asked(there, tmp_path / "two"), told.append) as ticket:
                order.append(ticket.number)

        told = Waited()
        waiting = threading.Thread(target=second)
        waiting.start()
        told.something.wait(60)
        assert [(t.number, t.submitted) for t in tickets(there.folder)] == [(1, True), (2, False)]
        assert [overview.run_state(there, t) for t in tickets(there.folder)][1] == "waits for its turn"
        assert order == []
    waiting.join(60)
    assert order == [2]
    assert told.lines[0].startswith("run 2 waits for its turn behind 1: run 1 (fedavg in ")
    assert tickets(there.folder) == []
    with turn(asked(there, tmp_path / "three"), said.append) as third:
        assert third.number == 3, "numbers do not come again: what operators said holds for one run"


def test_what_a_kill_left_in_the_queue_stops_no_later_run(there, tmp_path):
    queue = there.folder / run_queue.QUEUE
    queue.mkdir(mode=0o700)
    for name in ("7.json.part", "07x.lock", "lock.part"):
        (queue / name).write_text("half")
    with turn(asked(there, tmp_path / "one"), print) as ticket:
        assert ticket.number == 8, "a number is given once"


def test_a_folder_that_a_run_of_the_queue_has_is_refused(there, tmp_path):
    with turn(asked(there, tmp_path / "one"), print):
        new, again = "--out = .* is taken by run 1 .* another folder", "--resume = .* is over$"
        for more, why in (({}, new), ({"resume": True}, again)):
            with (
                pytest.raises(RequestError, match=why),
                turn(asked(there, tmp_path / "x" / ".." / "one", **more), print),
            ):
                pass
        assert [t.number for t in tickets(there.folder)] == [1], "the run that was first keeps its place"
    with turn(asked(there, tmp_path / "one"), print) as ticket:
        assert ticket.number == 2, "one that is over takes no folder"


class Waited:
    """What was said, and whether something was."""

    def __init__(self):
        self.lines, self.something = [], threading.Event()

    def append(self, line):
        self.lines.append(line)
        self.something.set()


def test_a_run_keeps_its_turn_while_its_process_goes_on_without_the_command_that_asked_for_it(there, tmp_path):
    with turn(asked(there, tmp_path / "one"), print) as ticket:
        config = RunConfig.of(replace(asked(there, tmp_path / "one"), ticket=ticket.id).config(tmp_path / "e.toml"))
        process = take_lock(Path(config.turn))
    assert [t.number for t in tickets(there.folder)] == [1], "it waits for its sites: there is no run folder yet"
    assert overview.run_state(there, tickets(there.folder)[0]) == "waits for sites to begin"
    with (
        pytest.raises(RequestError, match=r"--out = .* is taken by run 1"),
        turn(asked(there, tmp_path / "one"), print),
    ):
        pass
    a_run(tmp_path / "one", 2)
    assert overview.run_state(there, tickets(there.folder)[0]) == "2 rounds done"
    os.close(process)
    assert tickets(there.folder) == []


def test_an_operator_approves_or_refuses_a_run_before_it_begins(there, tmp_path, monkeypatch, cli):
    wants = a_server(keys=there.keys, approval=True)
    monkeypatch.setattr(federation_server, "find_server", lambda *_: wants)
    ann, words = str(tmp_path / "keys/operators/ann"), ["approve"]
    said = []

    def decide(_):  # while the run waits
        said.append(cli("deploy", "console", words[0], str(tickets(wants.folder)[-1].number), "--operator", ann))

    monkeypatch.setattr(run_queue.time, "sleep", decide)
    told = []
    with turn(asked(wants, tmp_path / "one"), told.append) as ticket:
        assert ticket.submitted
    assert told == ["run 1 waits for an operator: fedstrata deploy console approve 1"]
    assert said[0][:2] == (0, f"ann said approve to {tickets_words(1, tmp_path / 'one')}\n")
    words[0] = "refuse"
    with (
        pytest.raises(StoppedError, match="operator ann did not let the run begin"),
        turn(asked(wants, tmp_path / "two"), told.append),
    ):
        pass
    log = [json.loads(line) for line in (wants.folder / FILE).read_text().splitlines()]
    assert [(o["action"], o["run"], o["operator"], bool(o["signature"])) for o in log] == [
        ("approve", "1", "ann", True),
        ("refuse", "2", "ann", True),
    ]


def logged(there):
    """Return what stands in the server's log."""
    return [json.loads(line) for line in (there.folder / logs.FILE).read_text().splitlines()]


def test_who_waits_is_refused_or_gives_up_in_the_queue_is_logged_with_who_asked(there, tmp_path, monkeypatch, cli):
    wants = a_server(keys=there.keys, approval=True)
    monkeypatch.setattr(federation_server, "find_server", lambda *_: wants)
    ann = str(tmp_path / "keys/operators/ann")
    monkeypatch.setattr(run_queue.time, "sleep", lambda _: cli("deploy", "console", "refuse", "1", "--operator", ann))
    with pytest.raises(StoppedError), turn(asked(wants, tmp_path / "one"), print):
        pass

    def give_up(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(run_queue.time, "sleep", give_up)
    with pytest.raises(KeyboardInterrupt), turn(asked(wants, tmp_path / "two"), print):
        pass
    taken = asked(there, tmp_path / "three")
    with turn(taken, print), pytest.raises(RequestError, match="taken"), turn(taken, print):
        pass
    lines = logged(wants)
    assert [(line["event"], line["run"] if "run" in line else line["path"]) for line in lines] == [
        ("run_waits", "one"),
        ("operator_said", "one"),
        ("run_refused", "one"),
        ("run_waits", "two"),
        ("run_withdrawn", "two"),
        ("run_refused", str(tmp_path / "three")),
    ]
    assert all(line["asked_by"] == logs.asker() for line in lines if line["event"] != "operator_said")
    assert all(line["server"] == 8000 for line in lines)
    assert (lines[1]["action"], lines[1]["operator"], lines[1]["ticket"]) == ("refuse", "ann", 1)
    assert (lines[2]["why"], lines[2]["level"]) == ("operator ann did not let the run begin", "warning")
    assert lines[3]["why"] == "run 2 waits for an operator: fedstrata deploy console approve 2"


def tickets_words(number, path):
    import getpass  # noqa: PLC0415

    return f"run {number} (fedavg in {path}, asked for by {getpass.getuser()})"


def test_only_operators_of_the_roll_are_heard(there, tmp_path, cli):
    Authority.open(tmp_path / "keys").revoke("ann")
    with turn(asked(there, tmp_path / "one"), print):
        for args, why in (
            (["stop", "1"], "--operator is required"),
            (["stop", "1", "--operator", str(tmp_path)], "holds no operator's key"),
            (
                ["stop", "1", "--operator", str(tmp_path / "keys/operators/ann")],
                "ann is no operator on the server's roll",
            ),
            (["stop", "9", "--operator", str(tmp_path / "keys/operators/ann")], 'there is no run "9" here'),
        ):
            code, _, err = cli("deploy", "console", *args)
            assert (code, why in err) == (2, True), err
    assert not (there.folder / FILE).exists()


def test_the_console_shows_sites_runs_queue_and_last_answers(there, tmp_path, cli):
    run = a_run(tmp_path / "one", 2)
    run.log("site_refused", round=2, step=0, site="a", client=0, why="no")
    there.begun(run.path)
    book = ReportBook(there.folder / site_reports.FILE)
    book.take(SiteReport("a", "busy", 0.0, "run 7"))
    book.take(SiteReport("b", "disk full", 0.0, "/x cannot be written"))
    with turn(asked(there, run.path), print), run.locked():
        code, out, _ = cli("deploy", "console")
        told = json.loads(cli("deploy", "console", "--json")[1])
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()[1:3]] == [["a", "busy"], ["b", "disk"]]
    assert "2 rounds done" in out
    assert "round 2: site left out: a: no" in out
    assert [row["given"]["last_round"] for row in told["sites"]] == [1, 2]
    assert told["runs"][0]["ticket"]["number"] == 1


def test_a_site_that_was_revoked_is_not_said_to_be_away(there, tmp_path, cli):
    run = a_run(tmp_path / "one", 2)
    there.begun(run.path)
    book = ReportBook(there.folder / site_reports.FILE)
    for site in "ab":
        book.take(SiteReport(site, "ready", 0.0))
    (there.folder / "nodes.json").write_text(json.dumps({"a": {"node": "1", "key": "k"}}))
    assert there.conditions().keys() == {"a"}
    assert [(row.site, row.told[0], row.about) for row in overview.look(there).sites] == [
        ("a", "ready", ""),
        ("b", "not on the roll", ""),
    ]
    code, out, _ = cli("deploy", "console")
    assert (code, [line.split()[:4] for line in out.splitlines()[2:3]]) == (0, [["b", "not", "on", "the"]])
    assert submit.sites_now(there).startswith("a is ready since ")
    assert "b is" not in submit.sites_now(there)
    assert a_server(keys=None).conditions().keys() == {"a", "b"}, "without keys there is no roll"
    (there.folder / "run").unlink()
    assert [row.site for row in overview.look(there).sites] == ["a"], "it is shown only for what it gave"


def test_what_has_no_round_is_shown_without_one(there, tmp_path):
    run = a_run(tmp_path / "one", 1)
    there.begun(run.path)
    run.log("paused", why="operator ann paused it")
    run.log("site_away", site="b", client=1)
    assert overview.look(there).faults == ["paused: operator ann paused it", "site away: b"]


def test_keys_of_the_console_choose_and_order(there, tmp_path):
    ann = tmp_path / "keys/operators/ann"
    with turn(asked(there, tmp_path / "one"), print):
        seen = overview.look(there)
        assert console.react(there, seen, "j", 0, ann) == (0, "")
        assert console.react(there, seen, "x", 0, ann) is None
        assert console.react(there, seen, "p", 0, None)[1].startswith("error: --operator is required")
        assert console.react(there, seen, "p", 0, ann)[1].startswith("ann said pause to run 1 ")
        seen = overview.look(there)
        assert seen.runs[0].state == "paused by ann; waits for sites to begin"
        assert console.react(there, seen, "s", 0, ann)[1].startswith("ann said stop")
        assert overview.look(there).runs[0].state == "stops before its next round"
        shown = Console(width=160)
        with shown.capture() as text:
            shown.print(console.draw(overview.look(there), 0, "done"))
        assert "> " in text.get()
        assert "s stop" in text.get()


def test_only_what_a_run_would_heed_is_said_to_it(there, tmp_path, cli):
    ann = ("--operator", str(tmp_path / "keys/operators/ann"))
    with turn(asked(there, tmp_path / "one"), print):
        for word, can in (("refuse", "pause, stop"), ("approve", "pause, stop"), ("continue", "pause, stop")):
            code, _, err = cli("deploy", "console", word, "1", *ann)
            assert (code, f"cannot be told to {word}; what it can be told: {can}" in err) == (2, True), err
        assert cli("deploy", "console", "pause", "1", *ann)[0] == 0
        assert overview.look(there).runs[0].actions == ("continue", "stop")
        assert cli("deploy", "console", "stop", "1", *ann)[0] == 0
        assert "what it can be told: nothing" in cli("deploy", "console", "stop", "1", *ann)[2]


def test_the_board_shows_the_same_and_speaks_with_the_operators_key(there, tmp_path):
    run, ann = a_run(tmp_path / "one", 2), tmp_path / "keys/operators/ann"
    run.log("site_refused", round=2, step=0, site="a", client=0, why="no")
    there.begun(run.path)
    ReportBook(there.folder / site_reports.FILE).take(SiteReport("a", "busy", 0.0, "run 7"))
    page = BoardConsole(there, ann)
    with turn(asked(there, run.path), print), run.locked():
        seen = page.look()
        assert (seen["operator"], seen["may"]) == ("ann", True)
        sites = [(row["site"], row["state"], row["rounds"], row["last_round"]) for row in seen["sites"]]
        assert sites == [("a", "busy", "1", "1"), ("b", "never heard of", "2", "2")]
        assert seen["runs"][0]["actions"] == ["pause", "stop"]
        assert seen["faults"] == ["round 2: site left out: a: no"]
        assert seen["warnings"] == ["the server on port 8000 does not run"]
        assert page.order("pause", "1").startswith("ann said pause to run 1 ")
        assert page.look()["runs"][0]["state"] == "paused by ann; 2 rounds done"
        for action, number, why in (("delete", "1", '"delete" cannot be said'), ("stop", "../1", "there is no run")):
            with pytest.raises(RequestError, match=why):
                page.order(action, number)
        looking = BoardConsole(there, None)
        assert looking.look()["may"] is False
        with pytest.raises(RequestError, match="--operator is required"):
            looking.order("stop", "1")


def test_a_board_is_not_served_for_who_is_no_operator(there, tmp_path, cli):
    Authority.open(tmp_path / "keys").revoke("ann")
    code, _, err = cli("deploy", "console", "--board", "--operator", str(tmp_path / "keys/operators/ann"))
    assert (code, "ann is no operator on the server's roll" in err) == (2, True), err


def test_whom_a_run_waits_for_and_since_when(there, tmp_path, monkeypatch):
    now, awaited = [1000.0], ["a", "b"]
    monkeypatch.setattr(waiting_note.time, "time", lambda: now[0])
    note = WaitingNote(there.folder, tmp_path / "one", lambda: awaited)
    note.look()
    now[0], awaited[:] = 1030.0, ["b"]
    note.look()
    assert overview.waits_for(there.folder, tmp_path / "one", 1030.0).endswith("(30 s)")
    assert overview.waits_for(there.folder, tmp_path / "one", 1030.0).startswith("waiting for b since ")
    assert overview.waits_for(there.folder, tmp_path / "other", 1030.0) == ""
    note.miss({"c"})
    note.look()
    assert "waiting for b since " in (said := overview.waits_for(there.folder, tmp_path / "one", 1030.0))
    assert said.endswith(", c since " + site_reports.clock(1030.0) + " (0 s)"), "who has not come, beside who is silent"
    (there.folder / waiting_note.FILE).write_text('{"run": "of one that was killed", "for": {"d": 1.0}}')
    with note:
        assert "waiting for b since " in overview.waits_for(there.folder, tmp_path / "one", 1030.0)
    assert overview.waits_for(there.folder, None) == "", "a run that is over waits for nobody"


def test_a_run_that_has_not_begun_names_whom_it_waits_for(there, tmp_path):
    path = tmp_path / "one"
    with turn(asked(there, path), lambda _: None) as ticket, WaitingNote(there.folder, path) as note:
        assert overview.run_state(there, ticket) == "waits for sites to begin"
        note.miss(["vienna"])
        note.look()
        assert overview.run_state(there, ticket).startswith("waits for sites to begin; waiting for vienna since ")


def test_a_run_that_is_not_there_cannot_be_found(there):
    with pytest.raises(RequestError, match="known are: none"):
        run_queue.find(there.folder, "1")
