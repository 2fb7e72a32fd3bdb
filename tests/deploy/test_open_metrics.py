"""Figures of servers and sites, as Prometheus gets them."""

from __future__ import annotations

import json
import os
import socket
import urllib.request

import pytest
from deployed import a_run
from test_model_shelf import WHO

from fedstrata.core.errors import RequestError
from fedstrata.core.storage.file_lock import take_lock
from fedstrata.deploy import keys, metrics, site_reports, state
from fedstrata.deploy.server import run_book
from fedstrata.deploy.server.figures import SITE_STATES, EventCounts, ServerFigures
from fedstrata.deploy.server.run_book import BookedRun
from fedstrata.deploy.site.figures import SiteFigures
from fedstrata.deploy.site_reports import ReportBook, SiteReport


def scraped(read) -> dict[str, float]:
    """Serve figures and fetch them, as Prometheus does."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    end = metrics.serve_metrics(read, port)
    try:
        wanted = {"Accept": "application/openmetrics-text"}
        request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=wanted)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
            assert answer.headers["content-type"].startswith("application/openmetrics-text")
            text = answer.read().decode()
    finally:
        end()
    assert text.endswith("# EOF\n")
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def test_figures_of_a_server(tmp_path):
    folder = state.private(state.of_server(8000))
    run = a_run(tmp_path / "first", 3)
    for path in (tmp_path / "second", run.path):
        run_book.book(folder, BookedRun("1", str(path), "fedavg", {}, 3, 2, WHO))
    told = scraped(ServerFigures(folder, lambda: "abc"))
    assert told["fedstrata_sites_registered"] == 3
    assert (told['fedstrata_runs{state="waiting"}'], told['fedstrata_runs{state="stopped"}']) == (1, 1)
    assert told['fedstrata_run_round{method="fedavg",run="first"}'] == 3
    assert told['fedstrata_run_accuracy{method="fedavg",run="first"}'] == 0.5
    assert told['fedstrata_run_events_total{event="round",run="first"}'] == 3
    assert told["fedstrata_memory_bytes"] > 1e6
    assert told["fedstrata_disk_free_bytes"] > 0


def test_figures_of_every_site_tell_how_it_is_doing_and_since_when_it_is_silent(home, monkeypatch):
    folder = state.private(state.of_server(8000))
    book = ReportBook(folder / "reports.json")
    for site, how in (("a", "busy"), ("b", "disk full"), ("c", "left"), ("stranger", "ready")):
        book.take(SiteReport(site, how, 0.0))
    told = scraped(ServerFigures(folder, lambda: "abcd"))
    states = {(site, how) for site in [*"abcd", "stranger"] for how in SITE_STATES}
    on = {(site, how) for site, how in states if told[f'fedstrata_site_state{{site="{site}",state="{how}"}}']}
    assert on == {("a", "busy"), ("b", "disk full"), ("c", "away"), ("d", "unknown"), ("stranger", "ready")}
    heard = told['fedstrata_site_heard_timestamp_seconds{site="a"}']
    assert heard == json.loads((folder / "reports.json").read_text())["a"]["at"]
    assert 'fedstrata_site_heard_timestamp_seconds{site="d"}' not in told
    told = scraped(ServerFigures(folder, lambda: "abcd", home))
    assert not any("stranger" in name for name in told), "with keys, who is not on the roll is none of it"
    monkeypatch.setattr(site_reports.time, "time", lambda: heard + 100)
    told = scraped(ServerFigures(folder, lambda: "a"))
    assert told['fedstrata_site_state{site="a",state="away"}'] == 1, "it fell silent"


def test_figures_count_runs_that_wait_for_their_turn_while_somebody_asks_for_them(home):
    folder = state.private(state.of_server(8000))
    (folder / "queue").mkdir()
    for number, submitted in ((1, True), (2, False), (3, False)):
        (folder / f"queue/{number}.json").write_text(json.dumps({"number": number, "submitted": submitted}))
    (folder / "queue/4.json").write_text("{")
    asks = [take_lock(folder / f"queue/{number}.lock") for number in (1, 2)]  # who asked for 3 is gone
    try:
        told = scraped(ServerFigures(folder, list))
    finally:
        for handle in asks:
            os.close(handle)
    assert (told['fedstrata_runs{state="queued"}'], told['fedstrata_runs{state="waiting"}']) == (1, 0)


def test_figures_tell_when_certificates_end(made, tmp_path):
    ends = {name.removesuffix(".crt"): end.timestamp() for name, end in keys.ends(made / "server").items()}
    told = scraped(ServerFigures(state.private(state.of_server(8000)), list, made / "server"))
    assert set(ends) == {"ca", "server"}
    for name, end in ends.items():
        assert told[f'fedstrata_certificate_end_timestamp_seconds{{certificate="{name}"}}'] == end
    told = scraped(SiteFigures(tmp_path, lambda: False, made / "sites/a"))
    assert told['fedstrata_certificate_end_timestamp_seconds{certificate="ca"}'] == ends["ca"]
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "server.crt").write_text("none")
    assert "fedstrata_build" in str(scraped(SiteFigures(tmp_path, lambda: False, bad)))


def test_figures_of_a_run_are_read_on_and_begin_anew_where_it_was_cut_back(tmp_path):
    counts, events = EventCounts(), tmp_path / "events.jsonl"
    line = json.dumps({"event": "round", "round": 1}) + "\n"
    events.write_text(line + '{"event": "ro')
    counts.read(tmp_path)
    assert counts.counts == {"round": 1}, "what is not whole yet comes later"
    events.write_text(line * 2)
    counts.read(tmp_path)
    assert counts.counts == {"round": 2}
    events.write_text(line)
    counts.read(tmp_path)
    assert counts.counts == {"round": 1}


def test_figures_of_a_site(tmp_path):
    lines = [{"kind": "task", "bytes": 10}, {"kind": "task", "bytes": 5, "refused": "no"}, {"kind": "task", "bytes": 7}]
    (tmp_path / "audit.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    told = scraped(SiteFigures(tmp_path, lambda: True))
    assert told['fedstrata_site_replies_total{kind="task"}'] == 2
    assert told['fedstrata_site_refusals_total{kind="task"}'] == 1
    assert (told["fedstrata_site_reply_bytes_total"], told["fedstrata_site_awake"]) == (22, 1)


def test_figures_need_a_free_port_and_the_library(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(RequestError, match=r"--metrics-port .* cannot be used"):
            metrics.serve_metrics(lambda: iter(()), taken.getsockname()[1])
    monkeypatch.setattr(metrics, "find_spec", lambda _: None)
    with pytest.raises(RequestError, match=r'pip install "fedstrata\[metrics\]"'):
        metrics.serve_metrics(lambda: iter(()), 1)
