"""Comparisons: paired, the same side by side as in turn, resumable, refused early, and told honestly."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from interpreters import ADDRESS
from waiting import wait_until

import fedstrata
from fedstrata import Comparison, RequestError, Run
from fedstrata.report.gather import gather
from fedstrata.runs.compare import budget

pytestmark = pytest.mark.usefixtures("quick_processes")

QUICK = {"train.rounds": 2, "data.clients": 6, "train.epochs": 1, "train.batch_size": 64, "engine.vmap": "never"}
SETS = [f"--set={key}={value}" for key, value in QUICK.items()]


def quickly(methods=("fedavg", "fedprox"), out="c", **more):
    return fedstrata.compare(methods=methods, out=out, **{"overrides": QUICK, **more})


def known(out="c"):
    return json.loads(Path(out, "comparison.json").read_text())


def stamps(out="c"):
    return {str(p): p.stat().st_mtime_ns for p in Path(out).rglob("summary.json")}


# ---- what is compared ----------------------------------------------------------------------------------------------


def test_rows_have_mean_and_interval_difference_and_rank(cli):
    code, out, _ = cli("compare", "--methods", "fedavg,sfl", "--seeds", "2", *SETS, "--out", "c", "--json")
    rows = json.loads(out)["rows"]
    assert code == 0
    assert [row["method"] for row in rows] == ["fedavg", "sfl"]
    for row in rows:
        for figure in ("accuracy", "balanced_accuracy", "worst10", "bytes_up", "client_updates", "time", "seconds"):
            low, high = row[figure]["interval"]
            assert low <= row[figure]["mean"] <= high
    accuracies = [[Run(path).summary["accuracy"] for path in row["run_dirs"]] for row in rows]
    over = [b - a for a, b in zip(*accuracies, strict=True)]
    assert rows[0]["accuracy_over_first"] == {"mean": 0.0, "interval": [0.0, 0.0], "p": None, "p_holm": None}
    assert rows[1]["accuracy_over_first"]["interval"] == [min(over), max(over)]
    assert rows[0]["rank"]["mean"] + rows[1]["rank"]["mean"] == 3
    assert known()["rows"] == rows


def test_cells_are_paired_same_partition_first_model_and_draws():
    """With a step size of almost nothing a model stays what it was at first."""
    done = quickly(("fedavg", "fedyogi", "scaffold"), seeds=2, overrides=QUICK | {"train.lr": 1e-30})
    starts = set()
    for seed in range(2):
        runs = [Run(Path("c", method, f"seed-{seed}")) for method in ("fedavg", "fedyogi", "scaffold")]
        events = [run.events() for run in runs]
        listed = {cell["data"] for cell in known()["cells"] if cell["seed"] == seed}
        assert len(listed | {told[0]["fingerprint"] for told in events}) == 1
        chosen = [[[s["clients"] for s in e["steps"]] for e in told if e["event"] == "round"] for told in events]
        assert chosen[0] == chosen[1] == chosen[2]
        models = [run.model() for run in runs]
        assert all(bool((models[0][name] == other[name]).all()) for other in models[1:] for name in models[0])
        starts.add(str(models[0]))
    assert len(starts) == 2, "seeds differ"
    assert [len(runs) for runs in done.runs.values()] == [2, 2, 2]


def test_the_object_says_what_there_is():
    done = quickly()
    assert repr(done).startswith("Comparison('c': fedavg ")
    assert done.table().splitlines()[0].split()[:4] == ["method", "accuracy", "over", "first"]
    assert done.runs["fedprox"][0].summary["method"] == "fedprox"
    assert done.remarks == ["one seed: no interval, no test"]


def test_a_row_that_costs_more_is_told_beside_the_table(cli):
    code, _, err = cli("compare", "--methods", "fedavg,scaffold", *SETS, "-q")
    assert code == 0
    assert "note: beside fedavg, scaffold took 2 times the bytes; --budget bytes=... makes the bytes equal" in err


def test_a_budget_is_not_advised_to_who_has_set_it(cli):
    code, _, err = cli("compare", "--methods", "fedavg,scaffold", *SETS, "--budget", "bytes=1kB", "-q")
    assert code == 0
    assert "note: beside fedavg, scaffold took 2 times the bytes\n" in err
    assert "scaffold: train.stop.bytes = 1,000 was overspent by" in err


def test_the_command_prints_a_table(cli):
    code, out, err = cli("compare", "--methods", "fedavg,sfl", "--seeds", "2", *SETS, "-q")
    assert code == 0
    first = [line.split()[0] for line in out.splitlines()]
    assert first[:4] == ["method", "fedavg", "sfl", "accuracy"]
    assert first[-2:] == ["more", "figures"]
    about = "accuracy in %: mean [95 % interval] over 2 seeds; over first: paired difference in points; p: of its"
    assert about in " ".join(out.split())
    assert "[" in out.splitlines()[1]
    assert [line.split()[0] for line in err.splitlines()] == ["note:", "note:"]


def test_a_line_a_cell_where_there_is_no_terminal(cli):
    _, _, err = cli("compare", "--methods", "fedavg,sfl", *SETS, "--out", "c", "--json")
    assert [line.split(": accuracy")[0] for line in err.splitlines()[:2]] == ["1/2 fedavg, seed 0", "2/2 sfl, seed 0"]
    assert "2 of 2 runs were finished already" in cli("compare", "--resume", "c", "--json")[2]


def test_a_live_table_on_a_terminal(tmp_path):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "fedstrata", "compare", "--methods", "fedavg,sfl", "--json", *SETS]
    process = subprocess.Popen(command, stderr=theirs, stdout=subprocess.PIPE, cwd=tmp_path)
    os.close(theirs)
    open_tensors = b""
    while True:
        try:
            open_tensors += os.read(ours, 4096)
        except OSError:
            break
    out, _ = process.communicate()
    assert len(json.loads(out)["rows"]) == 2
    assert b"running" in open_tensors
    assert b"2/2 runs" in open_tensors


# ---- side by side --------------------------------------------------------------------------------------------------

FUSSY = """
from dataclasses import dataclass
from fedstrata.methods.selectors.random import Random

@dataclass(frozen=True)
class Fussy(Random):
    "Does not like the second seed."

    def select(self, state, view):
        if view.rng.func.seed == 1:
            raise ValueError("not this one")
        return super().select(state, view)
"""


def test_side_by_side_gives_the_same_bits_and_a_failing_cell_stops_no_other(cli, tmp_path, monkeypatch):
    (tmp_path / "fussy.py").write_text(FUSSY)
    monkeypatch.syspath_prepend(tmp_path)
    fussy = "--set=method.selector=fussy:Fussy"
    args = ["compare", "--methods", "fedavg,scaffold", "--seeds", "3", *SETS, fussy, "--json"]
    code, out, err = cli(*args, "--jobs", "2", "--out", "two")
    assert code == 1
    assert "error: fedavg, seed 1; scaffold, seed 1 failed: ValueError: not this one\n" in err
    assert cli(*args, "--jobs", "1", "--out", "one")[0] == 1
    for method in ("fedavg", "scaffold"):
        for seed in (0, 2):
            a, b = (Run(Path(out, method, f"seed-{seed}")) for out in ("one", "two"))
            assert a.events(wall=False) == b.events(wall=False)
            assert (a.path / "model.safetensors").read_bytes() == (b.path / "model.safetensors").read_bytes()
    answer = json.loads(out)
    assert [row["seeds"] for row in answer["rows"]] == [2, 2]
    assert [(cell["method"], cell["seed"]) for cell in answer["failed"]] == [("fedavg", 1), ("scaffold", 1)]
    states = {(c["method"], c["seed"]): c["state"] for c in known("two")["cells"]}
    assert [states["fedavg", seed] for seed in range(3)] == ["finished", "failed", "finished"]


PATIENT = """
import time
from dataclasses import dataclass
from pathlib import Path
from fedstrata.methods.selectors.random import Random

@dataclass(frozen=True)
class Patient(Random):
    "Does not begin the third round before it may."

    def select(self, state, view):
        while view.round == 2 and not Path("go").exists():
            time.sleep(0.01)
        return super().select(state, view)
"""


def test_ctrl_c_ends_all_workers_and_the_comparison_goes_on_where_it_was(tmp_path, cli, monkeypatch):
    monkeypatch.delenv(ADDRESS)  # its workers shall be its own children
    Path("patient.py").write_text(PATIENT)
    args = [
        "compare",
        "--methods",
        "fedavg,fedprox",
        *SETS,
        "--set=train.rounds=4",
        "--set=method.selector=patient:Patient",
    ]
    command = [sys.executable, "-m", "fedstrata", *args, "--jobs", "2", "--out", str(tmp_path / "c")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    cells = [tmp_path / "c" / method / "seed-0" for method in ("fedavg", "fedprox")]
    wait_until(lambda: all((cell / "checkpoint/000002.json").exists() for cell in cells), process)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 2
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130
    assert out == ""
    assert err.splitlines()[-1] == f"stopped; continue with: fedstrata compare --resume {tmp_path / 'c'}"
    assert "Traceback" not in err
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    stopped = [tmp_path / "c" / cell["run_dir"] for cell in known()["cells"] if cell["state"] == "stopped"]
    assert sorted(stopped) == sorted(cells)
    assert not any((cell / "summary.json").exists() for cell in stopped)
    Path("go").touch()
    code, out, _ = cli("compare", "--resume", str(tmp_path / "c"), "--jobs", "1", "--json", "-q")
    assert code == 0
    assert [row["rounds"]["mean"] for row in json.loads(out)["rows"]] == [4, 4]
    resumed = [[e["event"] for e in Run(cell).events()].count("resumed") for cell in stopped]
    assert resumed == [1, 1], "a half-done cell goes on from its checkpoint"


def test_a_process_that_dies_takes_only_its_own_cell_with_it(tmp_path, monkeypatch):
    text = FUSSY.replace('raise ValueError("not this one")', "__import__('os')._exit(7)")
    (tmp_path / "deadly.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    how = {"overrides": QUICK | {"method.selector": "deadly:Fussy", "train.rounds": 1}, "seeds": 3, "jobs": 2}
    done = quickly(("fedavg",), **how)
    assert [cell.state for cell in done.cells] == ["finished", "failed", "finished"]
    assert "ended unexpectedly with exit code 7" in done.failed[0].why


# ---- going on ------------------------------------------------------------------------------------------------------


def test_finished_cells_are_never_run_again_and_new_methods_and_seeds_are_added():
    quickly(("fedavg",))
    first = stamps()
    quickly(("fedavg", "fedprox"))
    quickly(("fedprox", "fedavg"), seeds=2)
    assert {path: stamp for path, stamp in stamps().items() if path in first} == first
    assert len(stamps()) == 4
    grown = quickly(("sfl",))
    assert [row["method"] for row in grown.rows] == ["sfl"]
    assert len(known()["cells"]) == 5, "cells of earlier requests stay listed"
    assert [row["method"] for row in Comparison.open("c").rows] == ["sfl"]
    said = "c also has finished runs of fedprox, fedavg; name them, too, to compare them"
    assert said in grown.remarks
    assert {run_data.row for run_data in gather(["c"]).runs_data} == {"sfl"}, "what the table has, the figures have"
    assert not [one for one in quickly(("sfl", "fedavg", "fedprox"), seeds=2).remarks if "also has" in one]


def test_tables_for_papers_tell_once_what_is_the_same_for_all(tmp_path):
    done = quickly(("fedavg", "fedprox"))
    for name, mark in (("t.tex", "% the same for all: "), ("t.md", "The same for all: ")):
        done.write_table(tmp_path / name)
        text = (tmp_path / name).read_text()
        (shared,) = [line for line in text.splitlines() if line.startswith(mark)]
        assert "updates" in shared
        assert "updates" not in text.replace(shared, "")
    done.write_table(tmp_path / "t.csv")
    assert "client_updates" in (tmp_path / "t.csv").read_text()


def test_data_from_python_are_asked_for_where_a_comparison_is_opened():
    given = fedstrata.Federation.from_clients([(torch.rand(8, 3), torch.arange(8) % 2)] * 2)
    fedstrata.compare(methods=["fedavg"], federation=given, overrides={"train.rounds": 1}, out="given")
    with pytest.raises(RequestError, match=r"Comparison\.open"):
        Comparison.open("given")
    assert len(Comparison.open("given", federation=given).rows) == 1


def test_a_cell_without_its_summary_is_concluded_again(cli):
    first = quickly(("fedavg", "fedprox")).rows
    Path("c/fedprox/seed-0/summary.json").unlink()
    again = Comparison.open("c").run()
    assert [row["accuracy"] for row in again.rows] == [row["accuracy"] for row in first]


def test_a_folder_with_something_else_is_refused(cli, tmp_path):
    quickly()
    with pytest.raises(RequestError, match=r"c holds a comparison of another experiment \(train.rounds: 2 -> 3\)"):
        quickly(overrides=QUICK | {"train.rounds": 3})
    with pytest.raises(RequestError, match="another experiment"):
        quickly(("sfl",), budget="bytes=5MB")
    Path("notes").mkdir()
    Path("notes/a.txt").write_text("mine")
    with pytest.raises(RequestError, match="notes holds other files"):
        quickly(out="notes")
    with pytest.raises(RequestError, match="is a file"):
        quickly(out="notes/a.txt")
    with pytest.raises(RequestError, match="is not the folder of a comparison"):
        Comparison.open("nowhere")
    assert cli("compare", "--resume", "c", "--seeds", "3")[0] == 2
    Path("c/comparison.json").write_text('{"rows": []}')
    with pytest.raises(RequestError, match="has no version and no experiment"):
        quickly()


def test_one_that_was_killed_before_it_wrote_anything_is_asked_for_again():
    Path("c").mkdir()
    Path("c/lock").touch()
    Path("c/comparison.json.part").write_text('{"cel')
    assert [row["method"] for row in quickly().rows] == ["fedavg", "fedprox"]


def test_another_version_is_not_mixed_in():
    quickly(("fedavg",))
    edited = known() | {"version": "fedstrata 0.0.9, torch 2.13"}
    Path("c/comparison.json").write_text(json.dumps(edited))
    with pytest.raises(RequestError, match=r"was made by fedstrata 0\.0\.9"):
        quickly(("fedavg",))


def test_other_data_are_not_mixed_in(tmp_path):
    rows = [f"{i % 7},{i % 5},{'ab'[i % 2]}" for i in range(60)]
    own = {"data.name": "own", "data.path": "d.csv", "data.clients": 3, "data.partition": "iid", "train.rounds": 1}
    Path("d.csv").write_text("\n".join(["x,z,label", *rows]) + "\n")
    quickly(("fedavg",), overrides=own)
    Path("d.csv").write_text("\n".join(["x,z,label", *rows[:-1], "9,9,a"]) + "\n")
    with pytest.raises(RequestError, match="the data of seed 0 are not those"):
        quickly(("fedavg",), overrides=own)


def test_other_first_weights_are_not_mixed_in():
    first, second = (fedstrata.train(out=f"r{seed}", overrides=QUICK | {"train.seed": seed}) for seed in (0, 1))
    init = Path("start.safetensors")
    init.write_bytes((first.path / "model.safetensors").read_bytes())
    quickly(("fedavg",), overrides=QUICK | {"model.init": str(init)})
    init.write_bytes((second.path / "model.safetensors").read_bytes())
    with pytest.raises(RequestError, match="its first weights differ"):
        quickly(("fedavg",), overrides=QUICK | {"model.init": str(init)})


# ---- refused early -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--methods", ""], "at least one method"),
        (["--methods", "fedavg,fedavg"], "named twice"),
        (["--methods", "fedavg,fedproxx"], 'method.name = "fedproxx" is unknown (did you mean "fedprox"?)'),
        (["--methods", "fedavg", "--seeds", "0"], "seeds = 0 must be at least 1"),
        (["--methods", "fedavg", "--set", "method.name=fedprox"], "method.name cannot be set"),
        (["--methods", "fedavg,sfl", "--set", "privacy.aggregate=masked"], "sfl cannot be compared: privacy.aggregate"),
        (["--methods", "fedavg,fedga-greedy", "--set", "method.driver=chain"], "fedga-greedy cannot be compared"),
        (["--methods", "fedavg", "--budget", "money=3"], 'budget = "money=3" cannot be read; allowed: rounds=100'),
        (["--methods", "fedavg", "--budget", "bytes=much"], "cannot be read"),
        (["--methods", "fedavg", "--budget", "rounds=5MB"], "cannot be read"),
        (["--methods", "fedavg", "--budget", "bytes=0"], "must be a whole number above 0"),
        (
            ["--methods", "fedprox", "--ablate", "corections"],
            'ablate = "corections" is unknown (did you mean "corrections"?)',
        ),
        (["--methods", "fedprox,fedavg", "--ablate", "corrections"], "takes one method apart"),
        (["--methods", "fedprox", "--ablate", "selector"], "fedprox is FedAvg in selector: there is nothing to ablate"),
        (["--methods", "stratify-batch", "--ablate", "schedule"], "stratify-batch-without-schedule cannot be compared"),
        (["--methods", "fedavg", "--variant", "lock: train.lr=0.6", *SETS, "--out", "runs"], 'method "lock"'),
        (["--methods", "fedavg", "--variant", "x train.lr=0.6", *SETS, "--out", "runs"], "must look like NAME: KEY"),
        (["--methods", "fedavg,sfl", "--jobs", "0", *SETS, "--out", "runs"], "jobs = 0 must be at least 1"),
    ],
)
def test_what_does_not_fit_is_named_before_the_first_cell_runs(cli, args, said):
    code, out, err = cli("compare", *args)
    assert (code, out) == (2, "")
    assert said in err
    assert not Path("runs").exists()
    assert not list(Path().rglob("events.jsonl"))


def test_methods_that_an_experiment_makes_the_same_are_not_compared(cli, tmp_path):
    (tmp_path / "e.toml").write_text('[method]\ncorrections = [{ kind = "prox", mu = 0.1 }]\n')
    code, _, err = cli("compare", str(tmp_path / "e.toml"), "--methods", "fedavg,fedprox")
    assert code == 2
    assert "fedavg and fedprox are the same here" in err
    assert not Path("runs").exists()


def test_a_method_that_may_only_choose_what_another_row_has_is_not_compared(cli, tmp_path):
    stages = ['selector = "power-of-choice"', 'corrections = ["prox"]', 'server_step = "yogi"']
    (tmp_path / "e.toml").write_text("\n".join(["[method]", *stages]))
    asked = ("compare", str(tmp_path / "e.toml"), "--methods", "fedavg,strata", "--seeds", "2")
    code, _, err = cli(*asked)
    assert code == 2
    assert "fedavg and strata are the same here: what the experiment sets for all" in err
    assert not Path("runs").exists()
    (tmp_path / "e.toml").write_text("\n".join(["[method]", *stages[:2]]))
    code, _, err = cli(*asked, *SETS)
    assert code == 0
    assert "note: strata runs with the experiment's selector, corrections, whatever it would choose" in err


# ---- budgets -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("rounds=100", {"train.rounds": 100}),
        ("bytes=50MB", {"train.stop.bytes": 50_000_000}),
        ("bytes=1.5 kib", {"train.stop.bytes": 1536}),
        ("client_updates=2e3", {"train.stop.client_updates": 2000}),
        ("time=0.5", {"train.stop.time": 0.5}),
        (None, {}),
    ],
)
def test_budgets_are_keys_of_the_experiment(text, keys):
    assert budget.overrides(text) == keys


def test_runs_end_with_the_round_that_spends_the_budget():
    """Fedavg sends a model either way for 3 of 6 clients; sfl hands it on, and sends it to and fro once a round."""
    rounds = {"train.rounds": 50, "train.evaluate.every": 50}
    done = quickly(("fedavg", "sfl"), overrides=QUICK | rounds, budget="bytes=200000")
    for row in done.rows:
        (run,) = done.runs[row["method"]]
        spent = [e["bytes_up"] + e["bytes_down"] + e["bytes_p2p"] for e in run.events() if e["event"] == "round"]
        assert spent[-2] < 200_000 <= spent[-1]
        assert row["stopped"] == [f"budget: bytes {spent[-1]:,} of 200,000"]
        assert "accuracy" in run.events()[-1], "the last round is evaluated"
    assert done.rows[0]["rounds"]["mean"] < done.rows[1]["rounds"]["mean"]
    assert done.base["train"]["stop"] == {"bytes": 200_000}


def test_rounds_that_end_before_the_budget_are_remarked():
    done = quickly(("fedavg",), budget="client_updates=2000")
    assert done.remarks == [
        "fedavg: only 6 of train.stop.client_updates = 2,000 was spent: train.rounds = 2 came first; raise it (seed 0)"
    ]
    timed = quickly(("fedavg",), out="t", budget="time=0.001")
    assert timed.rows[0]["rounds"]["mean"] == 1
    assert "train.stop.time = 0.001 was overspent by" in timed.remarks[0]


# ---- ablation ------------------------------------------------------------------------------------------------------


def test_each_stage_is_put_back_alone_and_what_it_brings_is_shown(cli):
    stages = "selector,sampler,corrections,combiner"
    code, out, err = cli("compare", "--methods", "scaffold", "--ablate", stages, "--seeds", "2", *SETS, "--out", "c")
    assert code == 0
    assert "scaffold has FedAvg's selector already" in err
    assert "scaffold has FedAvg's sampler already" in err
    whole, *without = known()["rows"]
    assert [row["without"] for row in without] == ["corrections", "combiner"]
    for row in without:
        assert row["brings"]["mean"] == pytest.approx(whole["accuracy"]["mean"] - row["accuracy"]["mean"])
    methods = {name: one.dump()["method"] for (_, name), one in Comparison.open("c").design.experiments.items()}
    assert methods["scaffold-without-corrections"]["corrections"] == []
    assert methods["scaffold-without-corrections"]["combiner"]["kind"] == "uniform"
    assert methods["scaffold-without-combiner"]["combiner"]["kind"] == "size"
    assert methods["scaffold-without-combiner"]["corrections"] == methods["scaffold"]["corrections"]
    first = [line.split()[0] for line in out.splitlines()[-5:]]
    assert first == ["stage", "corrections", "combiner", "brings:", "figures"]
    assert [row["method"] for row in Comparison.open("c").rows] == [row["method"] for row in known()["rows"]]


def test_an_experiment_of_ones_own_can_be_ablated():
    own = {"method": {"name": "fedavg", "selector": "size", "corrections": ["prox"]}}
    done = fedstrata.compare(own, ablate=["selector", "corrections"], overrides=QUICK, out="c")
    assert [row["method"] for row in done.rows] == ["fedavg", "fedavg-without-selector", "fedavg-without-corrections"]
