"""What clients keep between client updates, in memory or on disk: the same run, and nothing that is not needed."""

from __future__ import annotations

import gc
import weakref

import pytest

from fedstrata import RequestError, Run, resume, train
from fedstrata.methods.corrections.scaffold import Scaffold
from fedstrata.methods.optimizers.sgd import Sgd
from fedstrata.runs.checkpoints import Checkpoints
from fedstrata.runs.execution import run_session
from fedstrata.runs.session import build_session
from fedstrata.runs.training import describe_experiment
from fedstrata.testing import tiny_federation
from fedstrata.testing.tiny import TINY

STATEFUL = {
    "scaffold": {"method.name": "scaffold"},
    "feddyn": {"method.name": "feddyn", "method.corrections.0.alpha": 0.1},
    "moon": {"method.name": "moon"},
    "kept momentum": {"train.optimizer": Sgd(momentum=0.9, state="kept")},
    "several client updates a round": {
        "method.name": "terraform",
        "method.driver.min_clients": 1,
        "method.corrections": [Scaffold()],
        "train.clients_per_round": 4,
    },
    "probes beside": {
        "method.name": "power-of-choice",
        "method.corrections": [Scaffold()],
        "train.clients_per_round": 2,
    },
    "clients trained at once": {"method.name": "scaffold", "engine.vmap": "always"},
    "cursors of a sampler": {"method.name": "stratify-single", "method.schedule.rounds_per_epoch": 3},
}
LATE = {"system.stragglers.rate": 0.4}
each_policy = pytest.mark.parametrize("policy", ["memory", "disk"])


def asked_for(policy, overrides):
    usual = {**TINY, "train.evaluate.every": 4, "engine.vmap": "never"}
    return {**usual, "engine.client_state": policy, **overrides}


def trained(out, policy, overrides, **how):
    return train(overrides=asked_for(policy, overrides), federation=tiny_federation(), out=out, **how)


def outcome(run):
    """Return what two equal runs share: model and events."""
    summary = {k: v for k, v in run.summary.items() if k not in ("seconds", "run_dir")}
    return {k: t.tolist() for k, t in run.model().items()}, run.events(wall=False), summary


@pytest.fixture
def written(monkeypatch):
    """Look at the files of every checkpoint: {client: (name, inode)}, round by round."""
    put, seen = Checkpoints.put, []

    def watched(self, snapshot):
        put(self, snapshot)
        files = {client: file["file"] for client, _, file in self.manifest()["clients"]}
        on_disk = {path.name: path.stat().st_ino for path in self.path.glob("client-*")}
        assert sorted(on_disk) == sorted(files.values())  # one file a client that ever trained
        seen.append({client: (name, on_disk[name]) for client, name in files.items()})

    monkeypatch.setattr(Checkpoints, "put", watched)
    return seen


@pytest.mark.parametrize("case", STATEFUL)
def test_where_state_is_kept_does_not_change_a_bit(case, tmp_path):
    asked = STATEFUL[case] | (LATE if case in ("scaffold", "feddyn", "moon") else {})
    memory, disk = (trained(tmp_path / policy, policy, asked) for policy in ("memory", "disk"))
    assert outcome(memory) == outcome(disk)
    ours, theirs = (Checkpoints(run.path / "checkpoint").manifest()["clients"] for run in (memory, disk))
    assert len(ours) > 1
    assert ours == theirs  # same clients, same steps, same checksums


@pytest.mark.parametrize(("policy", "held"), [("memory", True), ("disk", False)])
@pytest.mark.parametrize("case", ["feddyn", "moon", "several client updates a round"])
def test_on_disk_no_client_state_stays_in_memory_after_a_round(case, policy, held, tmp_path, monkeypatch):
    take, kept, alive = Checkpoints.take, [], []

    def watched(self, round, state, client_states, *rest):
        kept.append([weakref.ref(t) for _, tensors in client_states.values() for t in tensors.values()])
        return take(self, round, state, client_states, *rest)

    def watch(event):
        if event["event"] == "round":
            gc.collect()  # of what came since the test began
            alive.append(sum(ref() is not None for ref in kept[-1]))  # of what the checkpoint before has written

    monkeypatch.setattr(Checkpoints, "take", watched)
    trained(tmp_path / "run", policy, STATEFUL[case], watch=watch)
    assert len(kept) == 5
    assert all(len(refs) > 0 for refs in kept[1:])
    assert (sum(alive[1:]) > 0) == held


@each_policy
def test_the_engine_reads_only_what_a_step_needs(policy, tmp_path, monkeypatch):
    client, read = Checkpoints.client, []

    def watched(self, entry):
        read.append(int(entry["file"].split("-")[1]))
        return client(self, entry)

    monkeypatch.setattr(Checkpoints, "client", watched)
    run = trained(tmp_path / "run", policy, STATEFUL["scaffold"])
    selected = [set(e["steps"][0]["clients"]) for e in run.events() if e["event"] == "round"]
    known, again = set(), []
    for clients in selected:
        again += sorted(clients & known)
        known |= clients
    assert read == ([] if policy == "memory" else again)


@each_policy
@pytest.mark.parametrize("case", ["scaffold", "probes beside"])
def test_files_are_written_only_for_clients_whose_report_counted(case, policy, tmp_path, written):
    run = trained(tmp_path / "run", policy, STATEFUL[case] | LATE)
    rounds = [e for e in run.events() if e["event"] == "round"]
    late = 0
    for before, after, event in zip(written[:-1], written[1:], rounds, strict=True):
        (step,) = (step for step in event["steps"] if step["kind"] == "train")
        here = set(step["clients"])
        late += len(set(step.get("missing", [])) & set(before))
        assert here <= set(after)
        for client, file in before.items():
            assert (after[client] == file) == (client not in here)
        assert set(after) == set(before) | here
    assert late > 0  # somebody who kept something already came too late


def interrupted(out, policy, overrides, after=2):
    def watch(event):
        if event["event"] == "round" and event["round"] == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(out, policy, overrides, watch=watch)


def run(out, policy, overrides):
    """Continue under a policy that may not be the one that the run began with."""
    experiment = describe_experiment(None, None, asked_for(policy, overrides), tiny_federation(), None)
    folder, work = Run.open(out), build_session(experiment, tiny_federation(), None)
    manifest = folder.checkpoints.manifest()
    state, client_states = folder.checkpoints.read(manifest, like=work.initial_state())
    folder.cut_events(manifest["events"])
    return run_session(work, folder, state, None, client_states=client_states)


@pytest.mark.parametrize(("before", "after"), [("memory", "disk"), ("disk", "memory")])
@pytest.mark.parametrize("case", ["scaffold", "feddyn", "moon"])
def test_a_run_goes_on_under_either_policy(case, before, after, tmp_path):
    whole = trained(tmp_path / "whole", before, STATEFUL[case] | LATE)
    interrupted(tmp_path / "cut", before, STATEFUL[case] | LATE)
    assert outcome(whole) == outcome(run(tmp_path / "cut", after, STATEFUL[case] | LATE))


def test_an_interrupted_run_on_disk_is_resumed(tmp_path):
    whole = trained(tmp_path / "whole", "disk", STATEFUL["scaffold"])
    interrupted(tmp_path / "cut", "disk", STATEFUL["scaffold"])
    assert outcome(whole) == outcome(resume(tmp_path / "cut", federation=tiny_federation()))


def test_state_that_was_damaged_on_disk_ends_the_run(tmp_path):
    def watch(event):
        if event["event"] == "round":
            for path in (tmp_path / "run" / "checkpoint").glob("client-*"):
                path.write_bytes(path.read_bytes()[:-1] + b"?")

    with pytest.raises(RequestError, match="its checksum does not match"):
        trained(tmp_path / "run", "disk", STATEFUL["scaffold"] | {"train.rounds": 9}, watch=watch)


def test_a_policy_that_does_not_exist_is_refused():
    with pytest.raises(RequestError, match=r"engine\.client_state"):
        describe_experiment(None, None, {"engine.client_state": "cloud"}, None, None)
