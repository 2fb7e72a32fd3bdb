"""A site that rests hears that a run was submitted, and wakes up before the run has said anything to it."""

from __future__ import annotations

import json

import pytest
from staging import wait_for

from fedstrata.deploy.server.federation_server import hand_in
from fedstrata.remote.flower.app_config import BLANK

pytestmark = pytest.mark.sites


def test_a_site_that_rests_wakes_up_when_a_run_is_submitted_and_rests_again_when_none_comes(federation, tmp_path):
    restart(federation, "--rest", "1")
    log = federation.folder / "state/site-a/log.jsonl"
    begin = max(i for i, event in enumerate(events(log)) if event == "site_started")
    wait_for(lambda: "process_rests" in events(log)[begin:])
    awake = len(events(log))
    run = submit_nothing(federation, tmp_path)
    wait_for(lambda: "process_started" in events(log)[awake:])
    wait_for(lambda: "process_rests" in events(log)[awake:])
    assert "run config experiment" in (run / "failed.json").read_text()
    assert "run_admitted" not in events(log)[awake:]
    restart(federation)


def test_a_site_that_does_not_rest_yet_reads_data_that_changed_again_when_a_run_is_submitted(federation, tmp_path):
    file = tmp_path / "patients.csv"
    file.write_text("x,label\n" + "1.5,yes\n2.5,no\n" * 20)
    restart(federation, "--data", str(file))
    log = federation.folder / "state/site-a/log.jsonl"
    before = len(events(log))
    file.write_text("x,label\n" + "1.5,yes\n2.5,no\n" * 19)
    submit_nothing(federation, tmp_path)
    wait_for(lambda: "data_changed" in events(log)[before:])
    wait_for(lambda: "process_started" in events(log)[before:])
    restart(federation)


def submit_nothing(federation, folder):
    """Submit a run without an experiment, which ends before it looks for sites; return its folder."""
    run = folder / "run"
    run.mkdir()  # as deploy run makes it
    hand_in(federation.there, {**BLANK, "out": str(run)})
    return run


def restart(federation, *changes):
    federation.commands["a"].process.terminate()
    federation.commands["a"].ends(0)
    federation.start_site("a", *changes)


def events(log):
    return [json.loads(line)["event"] for line in log.read_text().splitlines()]
