"""Nothing fails in silence: what sites say of themselves, how it reaches the server, and what status makes of it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from deployed import a_server, node, through

from fedstrata import __version__
from fedstrata.core.errors import FedstrataError, RequestError
from fedstrata.deploy import flower, node_signature, site_reports, state
from fedstrata.deploy.node_signature import KEY, TIME, KnownKeys, NodeKey
from fedstrata.deploy.operators import status
from fedstrata.deploy.processes import Household
from fedstrata.deploy.server import federation_server
from fedstrata.deploy.server.auth_proxy import Gate
from fedstrata.deploy.shut_out import OtherProtocolError, RevokedError
from fedstrata.deploy.site import client, site_reporter
from fedstrata.deploy.site.kept_connection import KeptConnection
from fedstrata.deploy.site.site_reporter import SiteReporter, unwritable
from fedstrata.deploy.site_reports import ReportBook, SiteReport, conditions
from fedstrata.remote.site.process_state import STATE, StatedAnswer


@pytest.fixture
def book(tmp_path, monkeypatch):
    """A book, and a clock that the test sets."""
    clock = [1000.0]
    monkeypatch.setattr(site_reports.time, "time", lambda: clock[0])
    return ReportBook(tmp_path / site_reports.FILE), clock, tmp_path


def test_a_site_that_falls_silent_is_away_since_its_last_word(book):
    reports, clock, folder = book
    reports.take(SiteReport("a", "busy", 5.0, "run x"))
    clock[0] += 5
    reports.take(SiteReport("a", "busy", 5.0, "run x"))
    how = conditions(folder)["a"]
    assert (how.state, how.since, how.heard, how.about) == ("busy", 1000.0, 1005.0, "run x")
    clock[0] += 16
    how = conditions(folder)["a"]
    assert (how.state, how.since, how.about) == ("away", 1005.0, "it fell silent")
    reports.take(SiteReport("a", "ready", 5.0))
    assert (conditions(folder)["a"].state, conditions(folder)["a"].since) == ("ready", 1021.0)
    reports.take(SiteReport("a", "left", 5.0))
    assert conditions(folder)["a"].about == "its owner stopped it"
    assert ReportBook(folder / site_reports.FILE)._known["a"]["state"] == "left", "it outlives the gate"
    reports.take(SiteReport("a", "left", 5.0, "its data cannot be served"))
    assert conditions(folder)["a"].about == "its data cannot be served"


@pytest.mark.parametrize(
    "odd",
    [
        "",
        "!",
        "e30=",
        "x" * 5000,
        SiteReport("../a", "ready", 0.0).header(),
        SiteReport("a", "fine", 0.0).header(),
        SiteReport("a", "ready", 0.0, "\n").header(),
        SiteReport("a", "ready", float("nan")).header(),
        SiteReport("a", "ready", 10**400).header(),
        SiteReport("a", "ready", 0.0, roll=float("inf")).header(),  # a browser reads no such number
        SiteReport("a", "ready", 0.0, roll=-1).header(),
    ],
)
def test_what_is_no_report_is_not_taken(odd):
    assert SiteReport.read(odd) is None


def test_the_gate_takes_reports_of_sites_of_themselves_alone(made, tmp_path):
    pub = (made / "sites/a/node.pub").read_text()
    (tmp_path / "nodes.json").write_text(json.dumps({"a": {"node": "1", "key": pub}}))
    gate = Gate(None, KnownKeys(tmp_path / "nodes.json"), reports=ReportBook(tmp_path / site_reports.FILE))

    def says(site, key="a", **more):
        headers = NodeKey(made / f"sites/{key}/node.key").sign_time()
        return gate._hear({**headers, site_reports.HEADER: SiteReport(site, "disk full", 0.0).header(), **more})

    assert says("a") == 204
    assert conditions(tmp_path)["a"].state == "disk full"
    assert says("b") == 404, "a says it of b"
    assert says("b", key="b") == 404, "the server does not know b"
    assert says("a", origin="https://x") == 404
    assert through(site_reports.PATH, "10.0.0.2") == "http.response.start 404"
    (tmp_path / "nodes.json").write_text("{}")
    assert says("a") == 404, "it was revoked"


def answer(version=__version__, protocol="1", status=204):
    """What a server answers to a report."""
    return status, {site_reports.VERSION: version, site_reports.PROTOCOL: protocol}


def reporter(tmp_path, monkeypatch, answers, said=None):
    """A reporter whose server answers in turn; an exception is raised."""
    sent = []

    class Line:
        def get(self, path, headers):
            assert path == site_reports.PATH
            sent.append(SiteReport.read(headers[site_reports.HEADER]))
            told = answers.pop(0)
            if isinstance(told, Exception):
                raise told
            return told

        def close(self):
            pass

    monkeypatch.setattr(site_reporter, "KeptConnection", lambda *_: Line())
    say = [] if said is None else said
    return SiteReporter("a", "h:8000", None, tmp_path, tmp_path / "nobody", say.append), sent


def test_a_site_reports_with_the_key_that_it_began_with(made, tmp_path, monkeypatch):
    """Else a site whose keys were renewed is taken, while its connection, with the old one, is not."""
    used = []

    class Line:
        def get(self, path, headers):
            used.append(headers[KEY])
            return answer()

    monkeypatch.setattr(site_reporter, "KeptConnection", lambda *_: Line())
    keys = shutil.copytree(made / "sites/a", tmp_path / "a")
    here = SiteReporter("a", "h:8000", keys, tmp_path, tmp_path / "nobody", print)
    here.report()
    shutil.copy(made / "sites/b/node.key", keys / "node.key")
    here.report()
    assert used[0] == used[1] == NodeKey(made / "sites/a/node.key").sign_time()[KEY]
    assert used[1] != NodeKey(keys / "node.key").sign_time()[KEY]


def refusal(code):
    return answer(status=code)


def test_a_site_whose_data_cannot_be_read_says_so_as_it_goes(tmp_path, monkeypatch):
    def begin():
        raise FedstrataError("a value of a patient")

    here, sent = reporter(tmp_path, monkeypatch, [answer(), answer()])
    assert here.begin()
    told = SimpleNamespace(site="a")
    with pytest.raises(client.EndedError, match="its data cannot be served; see above"):
        client._load(told, SimpleNamespace(begin=begin), SimpleNamespace(code=lambda _: 2), here, print)
    assert (sent[-1].state, sent[-1].about) == ("left", "its data cannot be served")


def test_a_full_disk_is_said_here_and_to_the_server(tmp_path, monkeypatch):
    said = []
    here, sent = reporter(tmp_path, monkeypatch, [answer(), answer(), answer()], said)
    here.report()
    with monkeypatch.context() as full:
        full.setattr(site_reporter, "unwritable", lambda _: "No space left on device")
        here.report()
    here.report()
    assert [report.state for report in sent] == ["ready", "disk full", "ready"]
    assert "cannot be written: No space left on device" in sent[1].about
    assert [line.partition(": ")[2][:9] for line in said] == ["DISK FULL", "there is "]
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [(line["event"], line["level"]) for line in lines] == [("disk_full", "error"), ("disk_has_room", "info")]
    assert "cannot be written: No space left on device" in lines[0]["why"]


def test_a_disk_is_known_to_be_full_by_writing_to_it(tmp_path):
    assert unwritable(tmp_path) is None
    assert list(tmp_path.iterdir()) == []
    script = "import resource, sys; from pathlib import Path\n"
    script += "from fedstrata.deploy.site.site_reporter import unwritable\n"
    script += f"resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)); sys.exit(unwritable(Path({str(tmp_path)!r})))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=dict(os.environ), check=False
    )
    assert done.stderr == "no space left on device\n"
    assert list(tmp_path.iterdir()) == []
    assert "No such file" in unwritable(tmp_path / "nowhere")


class Clock:
    """A clock that goes on where somebody sleeps, and nowhere else."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    time = monotonic

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    here = Clock()
    monkeypatch.setattr(site_reporter, "time", here)
    return here


def test_a_site_that_was_revoked_ends_with_one_line(tmp_path, monkeypatch, clock):
    answers = [refusal(404), answer(), OSError("away"), OSError("busy"), refusal(404)]
    here, sent = reporter(tmp_path, monkeypatch, answers)
    here.report()  # not yet registered: whoever connects finds out
    here.report()
    here.report()  # a server that is away revokes nobody
    with pytest.raises(RevokedError, match=r"^site a: the server at h:8000 does not take its key any more: it was "):
        here.check_known(90.0)
    here.close()
    assert len(sent) == 5, "who is shut out is nobody, and says no goodbye"
    assert RevokedError.exit_code == 77


def test_a_site_that_is_shut_out_while_its_server_starts_hears_so_when_it_is_up(tmp_path, monkeypatch, clock):
    """A server that starts ends connections before it says whose keys count: that takes seconds for each site."""
    said = []
    here, _ = reporter(tmp_path, monkeypatch, [answer(), *[refusal(503)] * 30, refusal(404)], said)
    here.report()
    with pytest.raises(RevokedError):
        here.check_known(90.0)
    assert clock.now == 1029.0, "a second between two questions"
    assert said == ["site a: asking the server at h:8000 for 90 s whether its key counts"]


def test_a_site_whose_server_is_away_asks_why_only_for_a_while(tmp_path, monkeypatch, clock):
    here, sent = reporter(tmp_path, monkeypatch, [answer(), *[OSError("away")] * 20])
    here.report()
    here.check_known(10.0)
    assert clock.now == 1010.0
    assert len(sent) == 12


def test_a_site_whose_key_counts_is_not_kept_from_ending(tmp_path, monkeypatch, clock):
    for told in (answer(), refusal(412)):  # a clock that is off is that of a key that counts
        here, sent = reporter(tmp_path, monkeypatch, [told])
        here.check_known(90.0)
        assert (len(sent), clock.now) == (1, 1000.0)


def test_a_site_that_was_connected_is_known_before_its_first_report_is_answered(made, tmp_path, monkeypatch, clock):
    here = keyed(made, tmp_path, monkeypatch, [OSError("busy"), refusal(404)])
    here.report()
    here.keep_taken()  # Flower has let it in
    with pytest.raises(RevokedError):
        here.check_known(90.0)
    assert keyed(made, tmp_path, monkeypatch, [])._known, "also after a restart"


def test_another_version_is_refused_or_said_to_fit(tmp_path, monkeypatch):
    said = []
    here, _ = reporter(tmp_path, monkeypatch, [answer("0.0.9"), answer("0.0.9"), answer("9.0", "2")], said)
    here.report()
    here.report()
    assert said == [f"the server has fedstrata 0.0.9, this site {__version__}: the same protocol, so they fit"]
    with pytest.raises(OtherProtocolError, match=r"fedstrata 9\.0 with protocol 2, this site .* with protocol 1; "):
        here.report()
    assert OtherProtocolError.exit_code == 76


def keyed(made, tmp_path, monkeypatch, answers, said=None):
    """A reporter with keys whose server answers in turn."""
    reporter(tmp_path, monkeypatch, answers)
    say = [] if said is None else said
    return SiteReporter("a", "h:8000", made / "sites/a", tmp_path, tmp_path / "nobody", say.append)


def test_a_site_that_was_shut_out_while_it_was_away_hears_so_when_it_starts(made, tmp_path, monkeypatch):
    keyed(made, tmp_path, monkeypatch, [answer()]).report()
    again = keyed(made, tmp_path, monkeypatch, [answer(status=503), OSError("away"), refusal(404)])
    assert (again.begin(), again.begin()) == (True, True), "a server that is starting, or away, shuts nobody out"
    with pytest.raises(RevokedError):
        again.begin()


def test_a_key_that_never_counted_may_still_come_onto_the_roll(made, tmp_path, monkeypatch):
    here = keyed(made, tmp_path, monkeypatch, [refusal(404), refusal(404), answer(), refusal(404)])
    assert [here.begin() for _ in range(3)] == [False, False, True]
    with pytest.raises(RevokedError):
        here.begin()
    other = shutil.copytree(made / "sites/b", tmp_path / "renewed")
    monkeypatch.setattr(site_reporter, "KeptConnection", lambda *_: None)
    new = SiteReporter("a", "h:8000", other, tmp_path, tmp_path / "nobody", print)
    assert not new._known, "a renewed key has yet to be taken"


def test_a_site_that_starts_says_so_and_a_proxy_revokes_nobody(made, tmp_path, monkeypatch):
    here, sent = reporter(tmp_path, monkeypatch, [answer(), *[(404, {})] * 4])
    assert here.begin()
    assert (sent[0].state, sent[0].about) == ("busy", "starting")
    here.report()
    here.check_known(0.0)


def test_another_version_is_said_to_who_is_not_known_too(made, tmp_path, monkeypatch):
    with pytest.raises(OtherProtocolError):
        keyed(made, tmp_path, monkeypatch, [answer("9.0", "2", 404)]).begin()


def test_a_clock_that_is_off_shuts_nobody_out_and_is_said_once(made, tmp_path, monkeypatch):
    said = []
    here = keyed(made, tmp_path, monkeypatch, [answer(), answer(status=412), answer(status=412)], said)
    for _ in range(3):
        here.report()
    assert len(said) == 1
    assert "clocks differ by more than five minutes" in said[0]


def test_the_gate_tells_a_wrong_clock_and_a_server_that_starts_from_a_stranger(made, tmp_path, monkeypatch):
    pub = (made / "sites/a/node.pub").read_text()
    (tmp_path / "nodes.json").write_text(json.dumps({"a": {"node": "1", "key": pub}}))
    book, up = ReportBook(tmp_path / site_reports.FILE), tmp_path / "server.json"
    gate = Gate(None, KnownKeys(tmp_path / "nodes.json"), reports=book, settled=up.exists)

    def says(site, **wrong):
        headers = NodeKey(made / f"sites/{site}/node.key").sign_time() | wrong
        return gate._hear({**headers, site_reports.HEADER: SiteReport(site, "ready", 0.0).header()})

    assert (says("a"), says("b")) == (204, 503), "b may be registered in a moment"
    up.touch()
    assert (says("a"), says("b")) == (204, 404)
    assert says("a", **{TIME: "2020-01-01T00:00:00+00:00"}) == 404, "signed is another time"
    early = datetime.now(UTC) + timedelta(hours=1)

    class Clock(datetime):
        @classmethod
        def now(cls, zone=None):
            return early

    with monkeypatch.context() as off:
        off.setattr(node_signature, "datetime", Clock)
        headers = NodeKey(made / "sites/a/node.key").sign_time()
    report = {site_reports.HEADER: SiteReport("a", "ready", 0.0).header()}
    assert gate._hear({**headers, **report}) == 412
    assert gate.keys.signer(headers) is None


def test_a_site_s_process_says_at_once_whether_it_is_busy():
    seen = []

    def work(request):
        seen.append(json.loads(stated(STATE)))
        return b"done"

    stated = StatedAnswer(work, lambda: {"run": "r", "roll": 3})
    assert json.loads(stated(STATE)) == {"busy": False, "run": "r", "roll": 3}
    assert stated(b"x") == b"done"
    assert seen == [{"busy": True, "run": "r", "roll": 3}]


def test_status_says_busy_away_and_disk_full_since_when(monkeypatch, cli, flower_is_there):
    there = a_server()
    state.private(there.folder)
    known = {name: {"node": str(i), "key": ""} for i, name in enumerate("abcd")}
    (there.folder / "nodes.json").write_text(json.dumps(known))
    monkeypatch.setattr(federation_server, "find_server", lambda _: there)
    monkeypatch.setattr(flower, "flwr", lambda *_: {"nodes": [node(str(i), "online") for i in range(4)]})
    book = ReportBook(there.folder / site_reports.FILE)
    book.take(SiteReport("a", "busy", 0.0, "run 12ab"))
    book.take(SiteReport("b", "disk full", 0.0, "/state cannot be written: no space left"))
    book.take(SiteReport("c", "left", 0.0))
    book.take(SiteReport("e", "left", 0.0, "its data cannot be served"))
    book.take(SiteReport("f", "left", 0.0))
    rows = status.sites(there)
    assert [(r["site"], r["up"], r["state"]) for r in rows] == [
        ("a", True, "busy"),
        ("b", True, "disk full"),
        ("c", False, "away"),
        ("d", True, None),
        ("e", False, "away"),
    ], "f was never connected, and its owner knows why it is gone"
    assert all(rows[i]["since"] for i in range(3))
    code, out, _ = cli("deploy", "status")
    assert code == 0
    assert "site b: disk full: /state cannot be written: no space left" in out
    assert "site c: away: its owner stopped it" in out
    assert "site e: away: its data cannot be served" in out
    assert "3 of 5 sites are up" in out


def test_a_server_that_is_starting_is_waited_for(home, monkeypatch):
    there = a_server()
    household = Household(state.private(there.folder), "a server")
    said = []

    def up(seconds):  # while it is waited for
        (there.folder / "server.json").write_text(json.dumps(vars(there)))

    monkeypatch.setattr(federation_server.time, "sleep", up)
    try:
        assert federation_server.find_server("127.0.0.1:8000", said.append) == there
    finally:
        household.close()
    assert said == ["the server on port 8000 is starting; waiting until it is up"]
    with pytest.raises(RequestError, match="no server of yours runs"):
        federation_server.find_server("127.0.0.1:8000")
    assert Path(there.folder / "server.json").exists()


def test_reports_go_over_one_connection_and_a_new_one_where_it_was_closed():
    callers = []

    class Server(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            callers.append(self.client_address)
            self.send_response(204)
            self.end_headers()
            self.close_connection = len(callers) == 2  # without a word, as a server does that waited long enough

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as there:
        threading.Thread(target=there.serve_forever, daemon=True).start()
        line = KeptConnection(f"127.0.0.1:{there.server_port}", None)
        assert [line.get("/", {})[0] for _ in range(3)] == [204] * 3
        line.close()
        there.shutdown()
    assert callers[0] == callers[1] != callers[2]
    with pytest.raises(OSError, match="refused"):
        line.get("/", {})


def test_the_gate_keeps_the_connection_of_a_site_that_reports_and_of_nobody_else(tmp_path):
    gate = Gate(None, None, reports=ReportBook(tmp_path / site_reports.FILE))

    def told(header):
        heard = []

        async def send(message):
            heard.append(message)

        headers = [(site_reports.HEADER.encode(), header.encode())]
        scope = {"type": "http", "path": site_reports.PATH, "headers": headers, "client": ("10.0.0.2", 1)}
        asyncio.run(gate(scope, None, send))
        return heard[0]["status"], (b"connection", b"close") in heard[0]["headers"]

    assert told(SiteReport("a", "ready", 0.0).header()) == (204, False)
    assert told("odd") == (404, True)
