"""A site with a policy, as its owner starts it: over Flower, with keys, in processes of its own."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from staging import SITES, WHILE, wait_for

from fedstrata.deploy.operators import submit
from fedstrata.remote.protocol import build_request, split, to_json
from fedstrata.remote.site.policy.approvals import Approvals
from fedstrata.remote.site.private_socket import ask

pytestmark = pytest.mark.sites

SMALL = {"train.rounds": 2, "train.clients_per_round": "all", "train.epochs": 1}
POLICY = """
approval = "ask"
methods = ["fedavg"]
[limits]
parameters = 100_000
[resources]
threads = 1
memory_gb = 8
gpu = 0
"""


@pytest.fixture
def ruled(federation):
    """Site a, started again with a policy; without one afterwards. In its folder lies a module of somebody else."""
    federation.mend()
    (federation.folder / "site.toml").write_text(POLICY)
    (federation.folder / "cleanup.py").write_text("from pathlib import Path\nPath('ran').touch()\nx = 1\n")
    restart(federation, "--policy", "site.toml")
    yield federation
    restart(federation)


def restart(federation, *changes):
    a = federation.commands["a"]
    a.process.send_signal(signal.SIGTERM)
    a.process.wait(WHILE)
    federation.start_site("a", *changes)


def test_a_run_waits_for_the_owner_of_a_site_and_what_left_is_written_down(ruled, tmp_path):
    known = Approvals(ruled.folder / "state/site-a/runs")
    with ruled.running(tmp_path / "run", SMALL, wait=300.0) as run:
        wait_for(lambda: known.all() or run.over(), run.said)
        asks = "a: its owner has to approve this run"
        wait_for(lambda: any(asks in said for said in submit._news(run.asked)[-1:]), run.said)  # none may be there yet
        assert not (tmp_path / "run" / "events.jsonl").exists()
        (waiting,) = json.loads(ruled.call("approve", "--site", "a", "--json"))
        assert waiting["experiment"]["method"]["name"] == "fedavg"
        ruled.call("approve", "--site", "a", waiting["id"])
        done = run.ends()
    assert [event["sites"] for event in done.events() if event["event"] == "approval"] == [["a"]]
    rounds = [event for event in done.events() if event["event"] == "round"]
    assert [len(event["steps"][0]["clients"]) for event in rounds] == [len(SITES)] * 2
    told = json.loads(ruled.call("audit", "--site", "a", "--json"))
    assert told["wrong"] is None
    kinds = [reply["kind"] for reply in told["replies"] if reply.get("run") == waiting["run"]]
    assert kinds.count("task") == 2
    assert kinds[0] == "introduce"


def test_a_server_reads_no_file_and_runs_no_program_at_a_site(ruled, tmp_path):
    """Requests as they reach the site's process, whoever wrote them; our own server would not."""
    secret = tmp_path / "netrc"
    secret.write_text("machine example.org password hunter2\n")
    family = [Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid, _ in ruled.commands["a"].family()]
    ((config, command),) = [(line[-2], line) for line in family if line[-2].endswith(b"config.json")]
    assert b"-P" in command
    place = {"run": "r", "client": 0, "sites": list(SITES), "classes": list(range(10)), "speed": 1.0}
    attacks = [
        ({"system": {"availability": {"kind": "trace", "trace": str(secret)}}}, b"system is not what a server decides"),
        ({"model": {"init": str(secret)}}, b"model.init is a path"),
        ({"method": {"selector": {"kind": "cleanup:x"}}}, b'"cleanup:x" is not allowed'),
        ({"method": {"name": "fedprox"}}, b'method.name = "fedprox"; allowed: "fedavg"'),
        ({"method": {"name": "fedavg"}}, b"its owner has to approve this run"),
    ]
    for experiment, why in attacks:
        for request in (
            build_request("begin", to_json(place), to_json(experiment)),
            build_request("introduce", to_json({**place, "experiment": experiment})),
        ):
            reply = ask(Path(config.decode()).with_name("site"), request, 60.0)
            assert split(reply)[0] != b"done"
            assert why in reply
            assert b"hunter2" not in reply
    assert not (ruled.folder / "ran").exists()
    assert json.loads(ruled.call("audit", "--site", "a", "--json"))["wrong"] is None
