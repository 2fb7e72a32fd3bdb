"""Sites that die as in a power cut, and a clean end. Last, because Flower lets no such site come back for a minute."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from staging import SMALL, A, B, C, of, taught, wait_for

from fedstrata.deploy import processes
from fedstrata.deploy.server import federation_server
from fedstrata.deploy.site_reports import conditions

pytestmark = pytest.mark.sites


def test_a_site_that_dies_in_the_middle_of_a_round_stops_nobody(federation, tmp_path):
    federation.mend()
    federation.wish("c", 2, "hold")
    with federation.running(tmp_path / "run", SMALL | {"train.rounds": 4}, stream=True, deadline=30.0) as run:
        run.holds("c", 2)
        federation.commands["c"].kill()
        done = run.ends()
    assert of(done, "dropped")[0]["round"] == 2
    assert taught(done) == {1: [A, B, C], 2: [A, B], 3: [A, B], 4: [A, B]}


def test_a_site_that_was_killed_is_away_within_seconds_whatever_flower_believes(federation):
    wait_for(lambda: conditions(federation.there.folder)["b"].state == "ready")
    federation.commands["b"].kill()
    wait_for(lambda: conditions(federation.there.folder)["b"].state == "away")
    rows = json.loads(federation.call("status", "--server", federation.address, "--json"))["sites"]
    assert [(row["up"], row["about"]) for row in rows if row["site"] == "b"] == [(False, "it fell silent")]


def test_a_clean_end_leaves_no_processes(federation):
    commands = {"a": signal.SIGINT, "server": signal.SIGHUP}  # and SIGTERM in test_faults
    members = set().union(*(federation.commands[name].family() for name in commands))
    assert len(members) >= 2 + 3, "each command, what it started of Flower, and the site"
    for name, sign in commands.items():
        federation.commands[name].process.send_signal(sign)
        federation.commands[name].ends(0)
        assert "has ended" in federation.commands[name].said
    assert processes.alive(members) == set()


def test_commands_that_are_killed_take_with_them_what_they_started(federation):
    """Whoever kills the command of a site ends its part in every run, and a server's port is free again."""
    federation.start_server()
    federation.start_site("a")
    members = federation.commands["a"].family() | federation.commands["server"].family()
    assert len(members) >= 2 + 3
    for name in ("a", "server"):
        federation.commands[name].process.kill()
        federation.commands[name].process.wait()
    wait_for(lambda: not processes.alive(members))
    federation_server._free("127.0.0.1", federation.port)
    notes = [federation.folder / "state" / name / "sockets" for name in ("site-a", f"server-{federation.port}")]
    left = [Path(note.read_text()) for note in notes]
    assert all(folder.is_dir() for folder in left)
    federation.start_server()
    federation.start_site("a")
    assert not any(folder.exists() for folder in left), "what they left in /tmp goes with their next start"
