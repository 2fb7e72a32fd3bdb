"""A federation on the board, watched and ordered about as an operator does."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import closing, contextmanager
from dataclasses import asdict

import pytest
from looks import contrast, drawn, unreadable
from playwright.sync_api import Page, expect

from fedstrata.config.experiment import Experiment
from fedstrata.core.storage.file_lock import take_lock
from fedstrata.deploy import keys, site_reports, state
from fedstrata.deploy.authority import Authority
from fedstrata.deploy.operators.run_queue import turn
from fedstrata.deploy.operators.submit import Submission
from fedstrata.deploy.server.federation_server import FederationServer
from fedstrata.deploy.site_reports import ReportBook, SiteReport
from fedstrata.remote.server.orders import FILE
from fedstrata.runs.folder import Run

pytestmark = [pytest.mark.browser, pytest.mark.extended]


@pytest.fixture
def there(tmp_path, monkeypatch):
    """A server with keys as far as its files go: two sites, and a run that has made a round and goes on."""
    monkeypatch.setenv("FEDSTRATA_STATE", str(tmp_path / "state"))
    keys.make(tmp_path / "keys", ["berlin", "lyon"], ["localhost"])
    Authority.open(tmp_path / "keys").add_operator("ann")
    server = FederationServer("127.0.0.1", 8000, 8001, "localhost", str(tmp_path / "keys/server"))
    state.private(server.folder)
    (server.folder / "server.json").write_text(json.dumps(asdict(server)))
    nodes = {site: {"node": str(at), "key": "k"} for at, site in enumerate(("berlin", "lyon"))}
    (server.folder / "nodes.json").write_text(json.dumps(nodes))  # as the server notes who is on its roll
    book = ReportBook(server.folder / site_reports.FILE)
    with monkeypatch.context() as later:  # who falls silent is away, and a browser may take its time
        later.setattr(site_reports.time, "time", lambda: 4e9)
        book.take(SiteReport("berlin", "busy", 0.0, "run 1"))
        book.take(SiteReport("lyon", "disk full", 0.0, "/data cannot be written"))
    run = Run.create(tmp_path / "runs/first", Experiment.of({"train": {"rounds": 9}}).to_toml())
    run.log("start", clients=2)
    run.log("sites", wall={"sites": ["berlin", "lyon"]})
    run.log("round", round=1, steps=[{"kind": "train", "clients": [0]}], accuracy=0.5)
    run.log("site_refused", round=2, step=0, site="lyon", client=1, why="<b>its disk is full</b>")
    server.begun(run.path)
    lock = take_lock(server.folder / "lock")
    with turn(Submission(server, Experiment.of({}), run.path, 2), print), run.locked():
        yield server
    os.close(lock)


@contextmanager
def console(tmp_path, *more: str):
    command = [sys.executable, "-m", "fedstrata", "deploy", "console", "--board", "--port", "0", *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process, closing(process.stdout):
        try:
            yield re.search(r"http://\S+", process.stdout.readline())[0]
        finally:
            process.terminate()


def ordered(server) -> list[tuple[str, str]]:
    file = server.folder / FILE
    lines = file.read_text().splitlines() if file.exists() else []
    return [(order["action"], order["operator"]) for order in map(json.loads, lines)]


def test_an_operator_sees_the_federation_and_pauses_and_stops_a_run(window, there, tmp_path):
    with console(tmp_path, "--operator", str(tmp_path / "keys/operators/ann")) as address:
        page: Page = window(address)
        shown = page.get_by_role("region", name="Federation", exact=True)
        expect(shown).to_contain_text("Federation at 127.0.0.1:8000")
        expect(shown.get_by_role("row").filter(has_text="lyon").first).to_contain_text("disk full")
        expect(shown.get_by_role("row").filter(has_text="berlin").first).to_contain_text("busy")
        expect(shown).to_contain_text("round 2: site left out: lyon: <b>its disk is full</b>")  # plain text
        expect(shown).to_contain_text("Orders are signed by ann.")
        page.get_by_role("button", name="pause run 1").press("Enter")
        expect(shown).to_contain_text("paused by ann; 1 round done")
        expect(shown.get_by_role("status")).to_contain_text("ann said pause to run 1")
        drawn(page)
        assert unreadable(page) == []
        assert contrast(page) >= 4.5
        asked: list[str] = []
        page.once("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
        page.get_by_role("button", name="stop run 1").click()
        assert "Stop it before its next round?" in asked[0]
        assert ordered(there) == [("pause", "ann")]
        page.get_by_role("button", name="continue run 1").click()
        expect(page.get_by_role("button", name="pause run 1")).to_be_visible()
        page.once("dialog", lambda dialog: dialog.accept())
        page.get_by_role("button", name="stop run 1").click()
        expect(shown).to_contain_text("stops before its next round")
        expect(shown.get_by_role("button")).to_have_count(0)
        assert ordered(there) == [("pause", "ann"), ("continue", "ann"), ("stop", "ann")]
        narrow: Page = window(address, width=390, scheme="dark")
        expect(narrow.get_by_role("region", name="Federation", exact=True)).to_contain_text("stops before")
        drawn(narrow)
        assert unreadable(narrow) == []


def test_without_a_key_one_looks_and_without_the_token_one_does_not(window, there, tmp_path):
    with console(tmp_path) as address:
        page = window(address)
        shown = page.get_by_role("region", name="Federation", exact=True)
        expect(shown).to_contain_text("start it with --operator to give orders")
        expect(shown.get_by_role("button")).to_have_count(0)
        stranger = window(address.split("?")[0], forgiven="401")
        expect(stranger.locator("body")).to_contain_text("open the address with the token")
