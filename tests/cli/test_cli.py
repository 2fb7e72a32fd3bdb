"""The command line, as the contract says: one JSON object, exit codes, messages that help."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from waiting import wait_until

import fedstrata
from fedstrata.cli import run
from fedstrata.core import registry
from fedstrata.runs import progress

RUN_KEYS = [
    "method",
    "seed",
    "rounds",
    "accuracy",
    "balanced_accuracy",
    "worst10",
    "best_accuracy",
    "best_balanced_accuracy",
    "accuracy_last10",
    "accuracy_last10_std",
    "bytes_up",
    "bytes_down",
    "bytes_p2p",
    "client_updates",
    "seconds",
    "run_dir",
    "rounds_to",
    "bytes_to",
    "remarks",
]
ENDLESS = ["--set", "train.rounds=100000"]
ALONE = ["--set", "engine.workers=1", "--set", "engine.vmap=never"]  # which is quicker to start


def test_run_json_is_one_object_with_the_agreed_keys(cli):
    code, out, err = cli("run", "--json", "--set", "train.rounds=2")
    assert code == 0
    answer = json.loads(out)
    assert [key for key in answer if key != "time"][: len(RUN_KEYS)] == RUN_KEYS
    summary = json.loads((Path(answer["run_dir"]) / "summary.json").read_text())
    assert {"stopped", "privacy", "best"} <= summary.keys()
    assert answer == dict.fromkeys(RUN_KEYS) | summary
    assert answer["method"] == "fedavg"
    assert answer["rounds"] == 2
    assert answer["client_updates"] == 20
    assert 0 <= answer["accuracy"] <= 1
    assert Path(answer["run_dir"]).is_dir()
    assert "round 2/2" in err


def test_run_without_json_prints_a_summary_and_plain_progress(cli):
    code, out, err = cli("run", "--set", "train.rounds=3")
    assert code == 0
    assert "balanced_accuracy" in out
    assert [line.split("  ")[0] for line in err.splitlines()] == [f"fedavg: round {i}/3" for i in (1, 2, 3)]
    assert all("accuracy" in line and "10 clients" in line and "s left" in line for line in err.splitlines())


def test_quiet_says_nothing_beside_the_result(cli):
    assert cli("run", "-q", "--json", "--set", "train.rounds=1")[2] == ""


def test_runs_get_folders_of_their_own(cli):
    folders = [json.loads(cli("run", "-q", "--json", "--set", "train.rounds=1")[1])["run_dir"] for _ in range(2)]
    assert folders == ["runs/fedavg-1", "runs/fedavg-2"]


def test_a_file_and_overrides(cli, tmp_path):
    file = tmp_path / "e.toml"
    file.write_text('[method]\nname = "fedprox"\n[train]\nrounds = 9\nseed = 4\n')
    code, out, _ = cli(
        "run", str(file), "-q", "--json", "--set", "train.rounds=1", "--set", "method.corrections.0.mu=0.5"
    )
    answer = json.loads(out)
    assert (code, answer["method"], answer["rounds"], answer["seed"]) == (0, "fedprox", 1, 4)
    assert "mu = 0.5" in Path(answer["run_dir"], "experiment.toml").read_text()


@pytest.mark.parametrize("kind", registry.STAGES)
def test_list_json_names_every_part_with_its_options(cli, kind):
    code, out, _ = cli("list", kind, "--json")
    parts = json.loads(out)
    assert code == 0
    wrappers = set(registry.names("noises")) if kind == "partitions" else set()
    assert {p["name"] for p in parts} == set(registry.names(kind)) | wrappers
    assert all(set(p) == {"name", "summary", "paper", "options"} and p["summary"] for p in parts)
    assert cli("list", kind)[0] == 0


def test_python_m_fedstrata_is_the_same(tmp_path):
    done = subprocess.run([sys.executable, "-m", "fedstrata", "--help"], capture_output=True, text=True, check=True)
    assert "Federated learning on skewed data" in done.stdout


# ---- what goes wrong -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--set", "method.name=fedavgg"], 'method.name = "fedavgg" is unknown (did you mean "fedavg"?); allowed: '),
        (["--set", "data.partition.alpha=0"], "data.partition.alpha = 0 is not valid; allowed: a number > 0"),
        (["--set", "data.partition.alpha=-1"], "data.partition.alpha = -1 is not valid"),
        (["--set", "data.clients=5000"], "data.clients = 5000 but there are only 1438 training samples"),
        (
            ["--set", "train.clients_per_round=0"],
            "train.clients_per_round = 0 is not valid; allowed: a count such as 20",
        ),
        (["--set", "train.rouns=3"], 'train.rouns is not an option (did you mean "rounds"?)'),
        (["--set", "train.rounds"], "must look like train.rounds=10"),
        (["--resume", "."], "is not a run folder"),
        (["--resume", "x", "--out", "y"], "leave out the file and --out"),
        (["--resume", "x", "--set", "train.lr=3"], "train.lr cannot be changed in a run that has begun; allowed: "),
        (["nowhere.toml"], "nowhere.toml cannot be read"),
        (["--set", "data.partition=natural"], 'data.partition = "natural" deals by group, but the data has no groups'),
        (["--set", "model.head=nose"], 'model.head = "nose" is not a layer'),
    ],
)
def test_a_wrong_request_ends_with_code_2_and_says_what_is_allowed(cli, args, said):
    code, out, err = cli("run", *args)
    assert code == 2
    assert out == ""
    assert said in err
    assert not Path("runs").exists(), "a refused request leaves nothing behind"


def test_a_toml_error_names_the_line(cli, tmp_path):
    (tmp_path / "bad.toml").write_text("[train]\nrounds = 3\nlr = = 2\n")
    code, _, err = cli("run", str(tmp_path / "bad.toml"))
    assert code == 2
    assert "line 3" in err


def test_unknown_things_to_list(cli):
    assert cli("list", "method")[2].startswith('error: KIND = "method" is unknown (did you mean "methods"?)')


@pytest.mark.usefixtures("quick_processes")
def test_ctrl_c_stops_cleanly_and_says_how_to_resume(tmp_path):
    command = [sys.executable, "-m", "fedstrata", "run", *ENDLESS, "--out", str(tmp_path / "run")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    wait_until((tmp_path / "run/checkpoint/CURRENT").exists, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130
    assert out == ""
    assert err.splitlines()[-1] == f"stopped; continue with: fedstrata run --resume {tmp_path / 'run'}"
    assert "Traceback" not in err


def children(pid):
    """Return the file that lists what a process has started."""
    return Path(f"/proc/{pid}/task/{pid}/children")


@pytest.mark.skipif(not children(os.getpid()).exists(), reason="not on this system")
@pytest.mark.parametrize("hear", ["everybody", "the command alone"])
def test_ctrl_c_while_workers_start_is_one_line(tmp_path, hear):
    """A terminal sends it to all processes of the command; those that still import torch had tracebacks for it."""
    command = [sys.executable, "-m", "fedstrata", "run", *ENDLESS, "--set", "engine.workers=2", "--out", "run"]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, cwd=tmp_path, start_new_session=hear == "everybody"
    )
    begun = tmp_path / "run/events.jsonl"  # what is stopped before has nothing to be continued, and says nothing
    wait_until(lambda: children(process.pid).read_text() and begun.exists(), process)
    (os.killpg if hear == "everybody" else os.kill)(process.pid, signal.SIGINT)
    _, err = process.communicate()  # ends when the last worker has closed it
    assert (process.returncode, err) == (130, "stopped; continue with: fedstrata run --resume run\n")


@pytest.mark.usefixtures("quick_processes")
def test_on_a_terminal_progress_is_a_live_table(tmp_path):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "fedstrata", "run", "--json", "--set", "train.rounds=3"]
    process = subprocess.Popen(command, stderr=theirs, stdout=subprocess.PIPE, cwd=tmp_path)
    os.close(theirs)
    shown = b""
    while True:
        try:
            shown += os.read(ours, 4096)
        except OSError:
            break
    out, _ = process.communicate()
    assert json.loads(out)["rounds"] == 3
    assert b"3/3" in shown
    assert b"accuracy" in shown
    assert b"balanced" in shown


# ---- fast to start -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import fedstrata", ["torch", "numpy", "pydantic", "typer"]),
        ("import fedstrata.cli", ["torch", "numpy", "pydantic", "scipy", "sklearn"]),
        ("import fedstrata.runs.training", ["sklearn", "scipy.stats", "torch._dynamo", "plotly"]),
    ],
)
def test_heavy_imports_wait_until_they_are_needed(code, absent):
    check = f"{code}; import sys; print([m for m in {absent!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


RUN = "from fedstrata.cli import app; app(['run', '-q', '--json', '--set', 'train.rounds=1'], standalone_mode=False)"


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        (RUN, ["fedstrata.runs.compare", "sklearn", "scipy.stats", "torch._dynamo", "plotly"]),
        (
            "import fedstrata.engines.local.worker_process",
            ["fedstrata.runs.training", "torch._dynamo"],
        ),
        ("import fedstrata.runs.compare.worker", ["sklearn", "torch._dynamo", "plotly"]),
    ],
)
def test_what_somebody_waits_for_imports_what_it_needs_and_collects_no_garbage_meanwhile(code, absent, tmp_path):
    check = f"{code}; import gc, sys; print([m for m in {absent!r} if m in sys.modules], gc.get_freeze_count() > 0)"
    done = subprocess.run([sys.executable, "-c", check], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[] True"


def test_a_polite_kill_stops_a_background_job_of_a_script(tmp_path):
    """Shells start such jobs with SIGINT ignored; SIGTERM must still work, and say how to go on."""
    command = [sys.executable, "-m", "fedstrata", "run", *ENDLESS, *ALONE]
    ignoring = ["sh", "-c", "trap '' INT; exec \"$@\"", "-", *command, "--out", str(tmp_path / "run")]
    process = subprocess.Popen(ignoring, stderr=subprocess.PIPE, text=True)
    current = tmp_path / "run/checkpoint/CURRENT"
    wait_until(current.exists, process)
    process.send_signal(signal.SIGINT)
    heard = current.read_text()
    wait_until(lambda: current.read_text() != heard, process)
    process.terminate()
    _, err = process.communicate()
    assert process.returncode == 130
    assert "continue with: fedstrata run --resume" in err


def test_divergence_is_said_even_when_quiet(cli):
    code, _, err = cli("run", "-q", "--json", "--set", "train.lr=1e30", "--set", "train.rounds=2")
    assert code == 0
    assert "no update arrived" in err
    assert "not finite" in err


def test_a_folder_of_other_files_is_not_run_in(cli, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("x")
    assert "holds other files" in cli("run", "--out", str(tmp_path / "mine"))[2]
    assert "is a file" in cli("run", "--out", str(tmp_path / "mine/notes.txt"))[2]


@pytest.mark.usefixtures("quick_processes")
def test_parts_in_the_folder_one_works_in_are_found(tmp_path):
    """As with the installed program, Python itself does not look there."""
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\nfrom fedstrata.methods.selectors.random import Random\n\n"
        "@dataclass(frozen=True)\nclass Mine(Random):\n    'Mine.'\n"
    )
    program = [sys.executable, "-P", "-m", "fedstrata", "run", "-q"]
    options = ["--set", "train.rounds=1", "--set", "method.selector=mine:Mine"]
    done = subprocess.run([*program, *options], cwd=tmp_path, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_installed_program_is_the_command_line():
    program = str(Path(sys.executable).with_name("fedstrata"))
    done = subprocess.run([program, "--version"], check=True, capture_output=True, text=True)
    assert done.stdout == f"fedstrata {fedstrata.__version__}\n"


def test_version_and_kinds(cli):
    assert cli("--version")[1].startswith("fedstrata ")
    assert set(json.loads(cli("list", "--json")[1])) == set(registry.STAGES)


def test_a_damaged_summary_is_explained(cli, tmp_path):
    cli("run", "-q", "--set", "train.rounds=1", "--out", str(tmp_path / "run"))
    (tmp_path / "run/summary.json").write_text("{")
    code, _, err = cli("run", "--resume", str(tmp_path / "run"))
    assert code == 2
    assert "summary.json is damaged" in err


WRONG_WIDTH = """
from dataclasses import dataclass
from torch import nn
from fedstrata.models.architecture import Architecture

@dataclass(frozen=True)
class Narrow(Architecture):
    "Seven outputs, whatever the data."
    def build(self, shape, classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 7))
"""


def test_bad_data_and_models_end_with_code_2_too(cli, tmp_path, monkeypatch):
    rows = [f"{i},{i % 3},{'abc'[i % 3]}" for i in range(30)]
    own = ["run", "--set", "data.name=own", "--set", "data.clients=3", "--set", "data.partition=iid"]
    for name, bad, said in (("label", "7,1,", "missing"), ("feature", "7,nan,a", "missing")):
        (tmp_path / f"{name}.csv").write_text("\n".join(["x,z,label", *rows, bad]) + "\n")
        code, out, err = cli(*own, "--set", f"data.path={name}.csv")
        assert (code, out) == (2, "")
        assert said in err
    (tmp_path / "narrow_model.py").write_text(WRONG_WIDTH)
    monkeypatch.syspath_prepend(tmp_path)
    code, _, err = cli("run", "--set", "model.name=narrow_model:Narrow")
    assert code == 2
    assert "outputs of shape (7,) but the data has 10 classes" in err
    assert not Path("runs").exists()


def test_a_stop_that_a_library_swallowed_is_asked_for_again(monkeypatch, capsys):
    def swallowed(*_, **how):
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        how["watch"]({"event": "round", "round": 1})

    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("fedstrata.runs.training.train", swallowed)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored in background jobs
    try:
        with pytest.raises(typer.Exit) as stopped:
            run.run(quiet=True)
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])
        progress.Reporter.asked_to_stop = False
    assert stopped.value.exit_code == 130
    assert capsys.readouterr().err.startswith("stopped")


# ---- what ends a command early ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["run", "compare", "inspect", "predict", "evaluate", "data import new"])
def test_a_file_that_may_not_be_read_is_one_line(cli, monkeypatch, command):
    trained = ["here"] if command in ("predict", "evaluate") else []
    if trained:
        assert cli("run", "-q", *ALONE, "--set", "train.rounds=1", "--out", "here")[0] == 0
    Path("closed.csv").touch()
    read, access = Path.read_text, os.access

    def refuse(path, *args, **kwargs):
        if path.name == "closed.csv":
            raise PermissionError(13, "Permission denied", str(path))
        return read(path, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", refuse)
    monkeypatch.setattr(os, "access", lambda path, *args: "closed" not in str(path) and access(path, *args))
    code, out, err = cli(*command.split(), *trained, "closed.csv")
    assert (code, out) == (2, "")
    assert err == "error: closed.csv cannot be read: [Errno 13] Permission denied: 'closed.csv'\n"


def test_a_model_that_may_not_be_read_is_one_line(cli, monkeypatch):
    Path("model.safetensors").touch()
    monkeypatch.setattr(os, "access", lambda *_: False)
    code, _, err = cli("predict", "model.safetensors", "new.csv")
    assert (code, err) == (2, "error: model.safetensors cannot be read: its permissions do not allow it\n")


def test_a_command_that_is_stopped_before_it_can_say_what_is_left_says_one_word(cli, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedstrata.cli.run.stop_cleanly", stop)
    assert cli("run") == (130, "", "stopped\n")
    monkeypatch.setattr("fedstrata.remote.site.label_names.open_model", stop)
    assert cli("predict", "run", "new.csv") == (130, "", "stopped\n")


def test_a_selector_beside_a_schedule_is_refused_by_the_key_that_was_set(cli):
    for stage, other in (("selector", "size"), ("sampler", "full-batch")):
        _, _, err = cli("run", "--set", "method.name=stratify-batch", "--set", f"method.{stage}={other}")
        assert err.startswith(f"error: method.{stage} does not fit this plan: the schedule chooses the ")
        assert "driver" not in err
