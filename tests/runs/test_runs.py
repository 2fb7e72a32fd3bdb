"""Run folders: a run killed at any moment and resumed equals the whole one; nothing saved is ever lost."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from dying_part import DOOMED

from fedstrata import Federation, RequestError, Run, compare, resume, train
from fedstrata.runs import checkpoints
from fedstrata.testing import tiny_federation

SMALL = {"train.rounds": 5, "data.clients": 8, "train.epochs": 1, "train.batch_size": 64, "engine.vmap": "never"}
FULL = "scaffold"  # has server state, broadcast and client state


def equal(a: Run, b: Run) -> bool:
    models = [(a.model(), b.model()), (a.best.model(), b.best.model())]
    same_model = all(torch.equal(t, theirs[name]) for ours, theirs in models for name, t in ours.items())
    timeless = [{k: v for k, v in r.summary.items() if k not in ("seconds", "run_dir")} for r in (a, b)]
    return same_model and a.events(wall=False) == b.events(wall=False) and timeless[0] == timeless[1]


def interrupted(path: Path, after: int, **how) -> None:
    def watch(event):
        if event["event"] == "round" and event["round"] == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(out=path, watch=watch, **how)


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedyogi", "power-of-choice"])
@pytest.mark.parametrize("after", [1, 4])
def test_an_interrupted_run_goes_on_as_if_nothing_happened(tmp_path, method, after):
    overrides = SMALL | {"method.name": method, "system.stragglers.rate": 0.3}
    whole = train(overrides=overrides, out=tmp_path / "whole")
    interrupted(tmp_path / "cut", after, overrides=overrides)
    assert not Run.open(tmp_path / "cut").summary
    assert equal(whole, resume(tmp_path / "cut"))


def test_progress_towards_a_stop_survives_a_resume(tmp_path):
    overrides = SMALL | {"train.rounds": 40, "train.stop.patience": 2, "train.lr": 1e-6}
    whole = train(overrides=overrides, out=tmp_path / "whole")
    assert whole.summary["stopped"].startswith("patience")
    interrupted(tmp_path / "cut", 2, overrides=overrides)
    assert equal(whole, resume(tmp_path / "cut"))


@pytest.mark.usefixtures("quick_processes")
def test_killed_at_random_instants_and_resumed_equals_the_whole_run(tmp_path, monkeypatch):
    (tmp_path / "doomed.py").write_text(DOOMED)
    monkeypatch.syspath_prepend(tmp_path)
    overrides = SMALL | {"method.name": FULL, "train.rounds": 12, "method.selector": "doomed:Doomed"}
    whole = train(overrides=overrides, out=tmp_path / "whole")
    options = [word for key, value in overrides.items() for word in ("--set", f"{key}={value}")]
    cut, kills, dice = tmp_path / "cut", 0, random.Random(0)
    for _ in range(30):
        started = (cut / "experiment.toml").exists()
        command = ["run", "-q", *(["--resume", str(cut)] if started else [*options, "--out", str(cut)])]
        env = os.environ | {"DIES_AFTER": str(dice.randrange(1, 80))}
        done = subprocess.run([sys.executable, "-m", "fedstrata", *command], env=env, check=False)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL
        kills += 1
    assert kills > 5
    assert equal(whole, Run.open(cut) if Run.open(cut).summary else resume(cut))


def test_the_same_run_twice_is_identical_also_with_other_hash_seeds(tmp_path):
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    here = train(overrides=SMALL, out=tmp_path / "here")
    options = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    subprocess.run(
        [sys.executable, "-m", "fedstrata", "run", "-q", *options, "--out", str(tmp_path / "there")],
        env=os.environ | {"PYTHONHASHSEED": seed},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    assert equal(here, Run.open(tmp_path / "there"))


def test_a_finished_run_is_not_run_again(tmp_path):
    done = train(overrides=SMALL, out=tmp_path / "run")
    before = (done.path / "summary.json").read_bytes()
    assert resume(done.path).path == done.path
    assert (done.path / "summary.json").read_bytes() == before


def test_a_kill_before_the_first_checkpoint_loses_nothing(tmp_path):
    whole = train(overrides=SMALL, out=tmp_path / "whole")
    Run.create(tmp_path / "cut", (whole.path / "experiment.toml").read_text())
    assert equal(whole, resume(tmp_path / "cut"))


def test_half_written_files_of_a_kill_are_harmless(tmp_path):
    whole = train(overrides=SMALL, out=tmp_path / "whole")
    interrupted(tmp_path / "cut", 3, overrides=SMALL)
    (tmp_path / "cut/checkpoint/000009.safetensors.part").write_bytes(b"half")
    (tmp_path / "cut/checkpoint/000009.json").write_bytes(b"{")
    with (tmp_path / "cut/events.jsonl").open("a") as file:
        file.write('{"event": "round", "rou')
    assert equal(whole, resume(tmp_path / "cut"))


# ---- refusals ------------------------------------------------------------------------------------------------------


def test_a_folder_that_holds_a_run_is_never_written_over(tmp_path):
    train(overrides=SMALL, out=tmp_path / "run")
    with pytest.raises(RequestError, match="already holds a run"):
        train(overrides=SMALL, out=tmp_path / "run")
    Run.create(tmp_path / "a run", "")
    with pytest.raises(RequestError, match=r"continue it with --resume '.*/a run', or choose another folder"):
        train(overrides=SMALL, out=tmp_path / "a run")


def test_what_nothing_could_score_leaves_no_folder(tmp_path):
    x, y = np.arange(24.0).reshape(12, 2), np.arange(12) % 2
    nothing = Federation.from_clients([(x, y), (x, y)], test=0)
    with pytest.raises(RequestError, match="there are no test samples: hold some out"):
        train(federation=nothing, out=tmp_path / "run")
    with pytest.raises(RequestError, match="there are no test samples: hold some out"):
        compare(methods="fedavg,fedprox", federation=nothing, out=tmp_path / "compared")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_a_run_is_refused(tmp_path):
    with pytest.raises(RequestError, match=r"is not a run folder: it has no experiment\.toml"):
        resume(tmp_path)


def test_an_edited_experiment_is_refused_and_the_edit_is_named(tmp_path):
    interrupted(tmp_path / "run", 2, overrides=SMALL)
    file = tmp_path / "run/experiment.toml"
    file.write_text(file.read_text().replace("lr = 0.1\n", "lr = 0.2\n"))
    with pytest.raises(RequestError, match=r"was edited since the run began \(train\.lr: 0\.1 -> 0\.2\)"):
        resume(tmp_path / "run")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-1] + b"!"), "checksum does not match"),
        (lambda path: path.unlink(), "is missing"),
    ],
)
@pytest.mark.parametrize("file", ["000003.json", "000003.safetensors", "client-*.safetensors"])
def test_a_damaged_checkpoint_is_refused(tmp_path, file, damage, said):
    interrupted(tmp_path / "run", 4, overrides=SMALL | {"method.name": FULL})
    damage(next((tmp_path / "run/checkpoint").glob(file)))
    with pytest.raises(RequestError, match=said):
        resume(tmp_path / "run")


def test_other_data_than_the_run_was_trained_on_is_refused(tmp_path):
    interrupted(tmp_path / "run", 2, overrides={"train.rounds": 4}, federation=tiny_federation())
    with pytest.raises(RequestError, match="not the one"):
        resume(tmp_path / "run", federation=tiny_federation(seed=1))
    with pytest.raises(RequestError, match="came from Python; pass `federation`"):
        resume(tmp_path / "run")
    assert resume(tmp_path / "run", federation=tiny_federation()).summary["rounds"] == 4


# ---- a disk that is full -------------------------------------------------------------------------------------------


def test_a_full_disk_leaves_the_old_checkpoint_valid(tmp_path, monkeypatch):
    whole = train(overrides=SMALL, out=tmp_path / "whole")
    really = checkpoints.write_atomically

    def full(path, *content, **how):
        if path.name == "000003.safetensors":
            path.with_name(path.name + ".part").write_bytes(content[0])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        really(path, *content, **how)

    monkeypatch.setattr(checkpoints, "write_atomically", full)
    with pytest.raises(RequestError, match=r"the disk is full\. What was saved before is still valid"):
        train(overrides=SMALL, out=tmp_path / "cut")
    monkeypatch.undo()
    assert Run.open(tmp_path / "cut").checkpoints.manifest()["round"] == 2
    assert equal(whole, resume(tmp_path / "cut"))


def test_a_checkpoint_is_named_only_after_all_of_it_is_safe_on_disk(tmp_path, monkeypatch):
    done, really = [], os.replace

    def replaced(src, dst):
        done.append(("named", Path(dst).name))
        really(src, dst)

    monkeypatch.setattr(os, "fsync", lambda file: done.append(("safe", Path(f"/proc/self/fd/{file}").readlink().name)))
    monkeypatch.setattr(os, "replace", replaced)
    run = train(overrides=SMALL | {"method.name": FULL, "train.rounds": 2}, out=tmp_path / "run")
    monkeypatch.undo()
    current, files = ("named", "CURRENT"), [p.name for p in (run.path / "checkpoint").iterdir()]
    for name in files:
        assert done.index(("safe", f"{name}.part")) < done.index(("named", name))
    last = len(done) - 1 - done[::-1].index(current)
    before, after = done[:last], done[last + 1 :]
    for name in {*files} - {"CURRENT"}:
        assert ("safe", "checkpoint") in before[before.index(("named", name)) :]
    assert ("safe", "events.jsonl") in before
    assert ("safe", "checkpoint") in after


LIMITED = """
import resource, signal
from dataclasses import dataclass
from fedstrata.methods.selectors.random import Random

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (15_000, 15_000))

@dataclass(frozen=True)
class Limited(Random):
    "Whose process may not write large files."
"""


@pytest.mark.usefixtures("quick_processes")
def test_a_file_limit_of_the_system_ends_the_command_with_code_2(tmp_path):
    """A real refusal by the operating system, in the middle of a checkpoint."""
    (tmp_path / "limited.py").write_text(LIMITED)
    options = ["--set", "train.rounds=2", "--set", "method.selector=limited:Limited", "--out", str(tmp_path / "run")]
    command = [sys.executable, "-m", "fedstrata", "run", "-q", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "the disk is full" in done.stderr


# ---- what is in the folder -----------------------------------------------------------------------------------------


def test_the_folder_holds_what_the_contract_says_and_nothing_is_pickled(tmp_path):
    run = train(overrides=SMALL | {"method.name": FULL}, out=tmp_path / "run")
    names = {p.name for p in run.path.iterdir()}
    files = {"experiment.toml", "events.jsonl", "model.safetensors", "best.safetensors", "summary.json", "lock"}
    assert names == files | {"checkpoint"}
    for path in run.path.rglob("*"):
        if path.is_file() and path.suffix != ".safetensors":
            path.read_text()
    assert {p.suffix for p in run.path.rglob("*") if p.is_file()} == {".toml", ".jsonl", ".json", ".safetensors", ""}
    kept = [p.name for p in (run.path / "checkpoint").glob("[0-9]*.json")]
    assert kept == ["000005.json"]


def test_only_clients_that_trained_have_state_on_disk(tmp_path):
    run = train(overrides=SMALL | {"method.name": FULL, "train.clients_per_round": 1}, out=tmp_path / "run")
    trained = {c for e in run.events() if e["event"] == "round" for s in e["steps"] for c in s["clients"]}
    files = {int(p.name.split("-")[1]) for p in (run.path / "checkpoint").glob("client-*")}
    assert files == trained
    assert len(trained) < 8


def test_events_are_json_lines_with_bytes_that_add_up(tmp_path):
    run = train(overrides=SMALL, out=tmp_path / "run")
    kinds = [json.loads(line)["event"] for line in (run.path / "events.jsonl").read_text().splitlines()]
    assert kinds == ["start", "clients", "engine", *["round"] * 5]
    start, clients = run.events()[:2]
    assert np.sum(clients["counts"]) == start["samples"] == 1438
    assert np.shape(clients["counts"]) == (8, 10)
    assert run.summary["bytes_up"] == run.summary["bytes_down"] == 5 * 4 * 4 * start["parameters"]


def test_the_final_model_starts_another_run(tmp_path):
    first = train(overrides=SMALL, out=tmp_path / "first")
    init = str(first.path / "model.safetensors")
    second = train(overrides=SMALL | {"model.init": init, "train.rounds": 1, "train.lr": 1e-9}, out=tmp_path / "second")
    assert second.summary["accuracy"] == first.summary["accuracy"]
    with pytest.raises(RequestError, match=r"model\.init .* layer0\.weight needs shape"):
        train(overrides=SMALL | {"model.init": init, "model.hidden": [3]}, out=tmp_path / "third")


def test_lost_rounds_and_broken_clients_are_events(tmp_path):
    lost = train(overrides=SMALL | {"system.stragglers.rate": 1.0, "train.rounds": 2}, out=tmp_path / "lost")
    assert [e["event"] for e in lost.events()].count("no_update") == 2
    assert lost.summary["bytes_up"] == 0 < lost.summary["bytes_down"]
    broken = train(overrides=SMALL | {"train.lr": 1e30, "train.rounds": 2}, out=tmp_path / "broken")
    assert {e["why"] for e in broken.events() if e["event"] == "dropped"} == {"not finite"}


def test_a_model_of_ones_own_on_data_of_ones_own(tmp_path):
    fed = tiny_federation()
    assert isinstance(fed, Federation)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    before = {k: v.clone() for k, v in net.state_dict().items()}
    whole = train(federation=fed, model=net, overrides={"train.rounds": 4}, out=tmp_path / "whole")
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items()), "the user's own model is not touched"
    assert set(whole.model()) == set(before)
    interrupted(tmp_path / "cut", 2, federation=fed, model=net, overrides={"train.rounds": 4})
    assert equal(whole, resume(tmp_path / "cut", federation=fed, model=net))


# ---- found in review -----------------------------------------------------------------------------------------------


def test_a_run_goes_on_only_with_its_own_data_and_model(tmp_path):
    fed, net = tiny_federation(), torch.nn.Linear(4, 3)
    interrupted(tmp_path / "named", 1, overrides=SMALL)
    with pytest.raises(RequestError, match="the data given is not the one"):
        resume(tmp_path / "named", federation=fed)
    with pytest.raises(RequestError, match="was trained with mlp; it needs no model"):
        resume(tmp_path / "named", model=net)
    interrupted(tmp_path / "given", 1, overrides={"train.rounds": 3}, federation=fed, model=net)
    with pytest.raises(RequestError, match="the model given is not the one"):
        resume(tmp_path / "given", federation=fed, model=torch.nn.Linear(4, 3, bias=False))


def test_a_run_does_not_go_on_with_other_frozen_layers(tmp_path):
    def build():
        net = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
        net[0].requires_grad_(False)
        return net

    fed, net, other, again = tiny_federation(), build(), build(), build()
    again[0].load_state_dict(net[0].state_dict())  # what is trained comes from the checkpoint
    asked = {"train.rounds": 3}
    whole = train(federation=fed, model=net, overrides=asked, out=tmp_path / "whole")
    interrupted(tmp_path / "cut", 1, federation=fed, model=net, overrides=asked)
    with pytest.raises(RequestError, match=r"the model given is not the one .*; its frozen layers count as well"):
        resume(tmp_path / "cut", federation=fed, model=other)
    assert equal(whole, resume(tmp_path / "cut", federation=fed, model=again))


def test_a_finished_run_that_was_edited_is_refused_too(tmp_path):
    run = train(overrides=SMALL, out=tmp_path / "run")
    file = run.path / "experiment.toml"
    file.write_text(file.read_text().replace("epochs = 1\n", "epochs = 9\n"))
    with pytest.raises(RequestError, match=r"train\.epochs: 1 -> 9"):
        resume(run.path)


def test_a_run_from_a_given_model_resumes_without_that_file(tmp_path, monkeypatch):
    first = train(overrides=SMALL, out=tmp_path / "first")
    monkeypatch.chdir(first.path)
    interrupted(tmp_path / "cut", 2, overrides=SMALL | {"model.init": "model.safetensors"})
    monkeypatch.chdir(tmp_path)
    assert resume(tmp_path / "cut").summary["rounds"] == 5


@pytest.mark.usefixtures("quick_processes")
def test_two_processes_never_share_a_folder(tmp_path):
    command = [sys.executable, "-m", "fedstrata", "run", "-q", "--json", "--set", "train.rounds=1"]
    both = [subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    folders = {json.loads(process.communicate()[0])["run_dir"] for process in both}
    assert folders == {"runs/fedavg-1", "runs/fedavg-2"}
    with Run.open(tmp_path / "runs/fedavg-1").locked(), pytest.raises(RequestError, match="another process is running"):
        resume(tmp_path / "runs/fedavg-1")


def test_more_clients_asked_for_than_there_are_is_said_once(tmp_path):
    run = train(overrides=SMALL | {"train.clients_per_round": 100}, out=tmp_path / "run")
    said = [(e["what"], e["used"]) for e in run.events() if e["event"] == "fallback"]
    assert said == [("train.clients_per_round", 8)]


def test_the_final_model_holds_frozen_parameters_and_loads_into_the_network(tmp_path):
    net = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3))
    net[0].requires_grad_(False)
    run = train(federation=tiny_federation(), model=net, overrides={"train.rounds": 1}, out=tmp_path / "run")
    other = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3))
    other.load_state_dict(run.model())
    assert torch.equal(other[0].weight, net[0].weight)
    assert list(run.model()) == list(run.best.model()) == list(net.state_dict())
    assert list(Run(tmp_path / "run").model()) == sorted(net.state_dict())


def test_where_a_run_is_executed_may_change_on_the_way(tmp_path):
    asked = {**SMALL, "method.name": "scaffold", "engine.device": "cpu"}
    whole = train(overrides=asked, out=tmp_path / "whole")
    interrupted(tmp_path / "run", 2, overrides=asked)
    file = tmp_path / "run/experiment.toml"
    changed = file.read_text().replace('client_state = "memory"', 'client_state = "disk"')
    file.write_text(changed.replace('workers = "auto"', "workers = 1"))
    run = resume(tmp_path / "run")
    assert all(torch.equal(t, run.model()[name]) for name, t in whole.model().items())


def test_a_run_is_opened_by_the_name_of_its_folder(tmp_path):
    Run.create(tmp_path / "run", "")
    assert Run.open(str(tmp_path / "run")).path == tmp_path / "run"
    with pytest.raises(RequestError, match=f"is not a run folder: .* such as {tmp_path / 'run'}$"):
        Run.open(str(tmp_path))


def test_a_run_that_is_not_there_tells_nothing(tmp_path):
    Run.create(tmp_path / "compared/fedavg/seed-0", "")
    (tmp_path / "empty").mkdir()
    ask = {
        "summary": lambda run: run.summary,
        "best": lambda run: run.best,
        "curve": lambda run: run.curve("accuracy"),
        "events": Run.events,
        "to_pandas": Run.to_pandas,
    }
    for path, why in (
        ("nowhere", "there is no such folder"),
        ("empty", "it has no experiment.toml"),
        ("compared", "it has no experiment.toml; name one of the runs in it, such as .*/compared/fedavg/seed-0"),
    ):
        run = Run(tmp_path / path)
        assert repr(run).endswith(": no run)")
        for what, read in ask.items():
            with pytest.raises(RequestError, match=f"{path} is not a run folder: {why}$"):
                pytest.fail(f"{what}: {read(run)}")
    begun = Run(tmp_path / "compared/fedavg/seed-0")
    assert (begun.summary, begun.events(), begun.curve("accuracy")) == ({}, [], [])


def test_a_comparison_is_no_run_and_has_a_command_of_its_own(tmp_path):
    (tmp_path / "cmp").mkdir()
    (tmp_path / "cmp" / "comparison.json").write_text("{}")
    said = (
        f"is not a run folder: it is a comparison, which `fedstrata compare --resume {tmp_path / 'cmp'}` goes on with"
    )
    with pytest.raises(RequestError, match=re.escape(said)):
        resume(tmp_path / "cmp")


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("mlp", 'a network by name is overrides={"model.name": "mlp"}'),
        (torch.nn.Linear, "which is a class; call it: Linear(...)"),
        (3, "model must be a torch module, not 3"),
    ],
)
def test_what_is_no_module_is_refused_with_what_was_meant(model, said):
    with pytest.raises(RequestError, match=re.escape(said)):
        train(model=model)


def test_a_misspelt_curve_is_told_those_that_can_be_drawn(tmp_path):
    run = train(overrides={"train.rounds": 1, "engine.workers": 1}, out=tmp_path / "run", progress=False)
    with pytest.raises(RequestError) as caught:
        run.curve("acuracy")
    assert 'no round has "acuracy" (did you mean "accuracy"?); there are accuracy, ' in str(caught.value)
    offered = str(caught.value).partition("there are ")[2].split(", ")
    assert not {"event", "wall", "steps", "round", "recall"} & set(offered)


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ("ab", []),
        ("abc", ["models were tested on no sample of label c: no figure tells how well they know it"]),
        ("abcdefgh", ["models were tested on no sample of labels c, d, e, f, g and 1 more: no figure tells"]),
    ],
)
def test_labels_that_no_test_sample_has_are_remarked(tmp_path, labels, said):
    """Accuracy was 100 % where the only sick patient was a training sample, and nothing said so."""
    x, y = np.eye(len(labels)).repeat(6, 0), np.repeat(list(labels), 6)
    federation = Federation.from_arrays(x, y, np.arange(len(y)) % 3, test=(x[:12], y[:12]))
    run = train(overrides={"train.rounds": 1, "engine.workers": 1}, federation=federation, out=tmp_path / "run")
    assert [remark[: len(text)] for remark, text in zip(run.summary["remarks"], said, strict=True)] == said
