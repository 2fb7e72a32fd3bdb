"""An extended run equals, bit for bit, one that had all rounds from the start; or it is refused with the reason."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from dying_part import DOOMED

import fedstrata
from fedstrata import RequestError, Run, resume, train
from fedstrata.testing import tiny_federation

SMALL = {"train.rounds": 3, "data.clients": 8, "train.epochs": 1, "train.batch_size": 64, "engine.vmap": "never"}


def equal(a: Run, b: Run) -> bool:
    models = [(a.model(), b.model()), (a.best.model(), b.best.model())]
    same_model = all(torch.equal(t, theirs[name]) for ours, theirs in models for name, t in ours.items())
    timeless = [{k: v for k, v in r.summary.items() if k not in ("seconds", "run_dir")} for r in (a, b)]
    return same_model and a.events(wall=False) == b.events(wall=False) and timeless[0] == timeless[1]


@pytest.mark.parametrize(
    "how",
    [
        {"method.name": "fedavg", "system.stragglers.rate": 0.3},
        {"method.name": "scaffold"},
        {"method.name": "fedyogi", "train.lr_schedule": {"kind": "step", "every": 2}},
        {"method.name": "feddyn"},
        {"method.name": "fedexp"},
        {"method.name": "moon"},
        {"method.name": "terraform"},
        {"method.name": "flips"},
        {"method.selector": "oort"},
        {"method.selector": {"kind": "tifl", "credits": 9}},
        {"method.name": "fedbss", "method.sampler.warmup": 2},
        {"method.name": "fedcda", "method.combiner.warmup": 2},
        {"method.name": "stratify-batch"},
        {"train.optimizer": {"kind": "adam", "state": "kept"}, "train.lr": 0.001},
        {"train.stop.patience": 30, "train.targets": [0.2]},
        {"privacy.dp": {"clip": 1.0, "noise": 0.5}},
        {"data.stream": {"start": 0.3, "until": 4}},
    ],
    ids=lambda how: "-".join(str(v) if isinstance(v, str) else k for k, v in how.items()),
)
def test_an_extended_run_equals_one_that_was_longer_from_the_start(tmp_path, how):
    overrides = SMALL | how
    whole = train(overrides=overrides | {"train.rounds": 6}, out=tmp_path / "whole")
    short = train(overrides=overrides, out=tmp_path / "short")
    assert short.summary["rounds"] == 3
    assert equal(whole, resume(short.path, overrides={"train.rounds": 6}))
    assert (short.path / "experiment.toml").read_bytes() == (whole.path / "experiment.toml").read_bytes()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            {"train.lr_schedule": "cosine"},
            r"train\.lr_schedule depends on it: the learning rate of round 1 was .* and would have been",
        ),
        ({"train.lr_schedule": "one-cycle"}, r"train\.lr_schedule depends on it: the learning rate of round 1 was"),
        ({"method.selector": "hics"}, r"method\.selector \(Hics\) plans with the number of rounds"),
        ({"method.selector": "tifl"}, r"method\.selector \(Tifl\) plans with the number of rounds"),
        ({"method.name": "fedbss"}, r"method\.sampler \(BiasAware\) plans with the number of rounds"),
        ({"method.name": "fedcda"}, r"method\.combiner \(FedCda\) plans with the number of rounds"),
        ({"train.evaluate.every": 2}, r"round 3 was evaluated as the last one, and in a longer run .* is not"),
        ({"train.stop.target": 0.01}, r"the run was ended by something else \(target: accuracy"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(value),
)
def test_a_run_that_would_have_been_another_is_refused_and_left_as_it_was(tmp_path, how, said):
    run = train(overrides=SMALL | how, out=tmp_path / "run")
    before = {p.name: p.read_bytes() for p in run.path.iterdir() if p.is_file()}
    with pytest.raises(RequestError, match=r"train\.rounds cannot be changed from 3 to 6: " + said):
        resume(run.path, overrides={"train.rounds": 6})
    assert {p.name: p.read_bytes() for p in run.path.iterdir() if p.is_file()} == before
    assert resume(run.path).summary == run.summary


def test_what_is_evaluated_in_turn_can_be_extended(tmp_path):
    how = SMALL | {"train.evaluate.every": 3}
    whole = train(overrides=how | {"train.rounds": 7}, out=tmp_path / "whole")
    assert equal(whole, resume(train(overrides=how, out=tmp_path / "short").path, overrides={"train.rounds": 7}))


def test_fewer_rounds_than_are_done_are_refused(tmp_path):
    run = train(overrides=SMALL, out=tmp_path / "run")
    with pytest.raises(RequestError, match=r"from 3 to 2: 3 are done already"):
        resume(run.path, overrides={"train.rounds": 2})


def test_more_rounds_without_a_checkpoint_are_refused_and_nothing_is_lost(tmp_path):
    done = train(overrides=SMALL | {"train.rounds": 2}, out=tmp_path / "run")
    shutil.rmtree(done.path / "checkpoint")
    before = {file.name: file.read_bytes() for file in done.path.iterdir() if file.is_file()}
    with pytest.raises(RequestError, match=r"from 2 to 3: .*run has no checkpoint to go on from; .* model\.init"):
        resume(done.path, overrides={"train.rounds": 3})
    assert {file.name: file.read_bytes() for file in done.path.iterdir() if file.is_file()} == before
    assert resume(done.path).summary["rounds"] == 2  # as it is


def test_other_keys_cannot_be_changed(tmp_path):
    run = train(overrides=SMALL, out=tmp_path / "run")
    with pytest.raises(
        RequestError, match=r"train\.lr cannot be changed in a run that has begun; allowed: train\.rounds"
    ):
        resume(run.path, overrides={"train.rounds": 6, "train.lr": 0.2})
    with pytest.raises(RequestError, match=r"train\.rounds = 0 is not valid"):
        resume(run.path, overrides={"train.rounds": 0})
    assert run.summary["rounds"] == 3


def test_an_unfinished_run_and_one_whose_file_was_edited_are_extended_too(tmp_path):
    whole = train(overrides=SMALL | {"train.rounds": 5}, out=tmp_path / "whole")

    def stop(event):
        if event["event"] == "round" and event["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(overrides=SMALL, out=tmp_path / "cut", watch=stop)
    assert equal(whole, resume(tmp_path / "cut", overrides={"train.rounds": 5, "engine.workers": 1}))
    assert "workers = 1" in (tmp_path / "cut/experiment.toml").read_text()
    edited = train(overrides=SMALL, out=tmp_path / "edited")
    file = edited.path / "experiment.toml"
    file.write_text(file.read_text().replace("rounds = 3\n", "rounds = 5\n"))
    assert equal(whole, resume(edited.path))


def test_data_from_python(tmp_path):
    how = {"federation": tiny_federation(), "model": torch.nn.Linear(4, 3)}
    whole = train(overrides={"train.rounds": 4}, out=tmp_path / "whole", **how)
    short = train(overrides={"train.rounds": 2}, out=tmp_path / "short", **how)
    assert equal(whole, resume(short.path, overrides={"train.rounds": 4}, **how))


def test_a_run_of_a_comparison_stays_as_long_as_the_others(tmp_path):
    done = fedstrata.compare(methods=["fedavg"], overrides=SMALL, out=tmp_path / "c")
    with pytest.raises(RequestError, match="belongs to the comparison in"):
        resume(done.runs["fedavg"][0].path, overrides={"train.rounds": 6})


@pytest.mark.usefixtures("quick_processes")
def test_killed_while_it_is_extended(tmp_path, monkeypatch):
    """At every instant at which a file changes; the command that asks for more rounds is given again each time."""
    (tmp_path / "doomed.py").write_text(DOOMED)
    monkeypatch.syspath_prepend(tmp_path)
    overrides = SMALL | {"method.selector": "doomed:Doomed", "engine.workers": 1}
    whole = train(overrides=overrides | {"train.rounds": 5}, out=tmp_path / "whole")
    cut, kills = train(overrides=overrides, out=tmp_path / "cut"), 0
    for after in (6, 8, 9, 10, 11, 12, 13, 15, 20, 40, 0):
        command = [sys.executable, "-m", "fedstrata", "run", "-q", "--resume", str(cut.path)]
        asked = ["--set", "train.rounds=5"] if after != 11 else []  # once without: what was begun goes on
        env = os.environ | {"DIES_AFTER": str(after)}
        done = subprocess.run([*command, *asked], env=env, check=False, capture_output=True, text=True)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        kills += done.returncode != 0
    assert kills > 5
    assert equal(whole, Run(cut.path))


def test_the_command(cli, tmp_path):
    sets = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    assert cli("run", "-q", *sets, "--out", "short")[0] == 0
    code, out, err = cli("run", "--resume", "short", "--set", "train.rounds=5", "--json")
    assert (code, json.loads(out)["rounds"]) == (0, 5)
    assert "round 5/5" in err
    code, _, err = cli("run", "--resume", "short", "--set", "train.rounds=4")
    assert (code, "cannot be changed from 5 to 4: 5 are done already" in err) == (2, True)


def test_an_engine_that_is_refused_is_not_remembered(tmp_path, monkeypatch):
    run = train(overrides=SMALL, out=tmp_path / "run")
    before = (run.path / "experiment.toml").read_bytes()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RequestError, match="torch sees no GPU"):
        resume(run.path, overrides={"train.rounds": 4, "engine.device": "cuda"})
    assert (run.path / "experiment.toml").read_bytes() == before
    assert resume(run.path, overrides={"train.rounds": 4}).summary["rounds"] == 4
