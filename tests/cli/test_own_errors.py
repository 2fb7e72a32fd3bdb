"""An error in the user's own code is told by the user's own lines, once; the whole traceback is kept."""

from __future__ import annotations

import json
import sys
import traceback
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from fedstrata.cli.tracebacks import in_short

PART = '''
from dataclasses import dataclass
from fedstrata import Correction, Selector

@dataclass(frozen=True)
class {name}Selector(Selector):
    """Breaks."""

    def select(self, state, view):
        return self._pick(view)

    def _pick(self, view):
        return {{}}[view.k]

@dataclass(frozen=True)
class {name}Correction(Correction):
    """Breaks."""

    def edit_logits(self, logits, own, context):
        raise ValueError("of mine")
'''
OWN = 'own_errors.py", line '


@pytest.fixture(autouse=True)
def _own_parts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_errors", raising=False)
    Path("own_errors.py").write_text(PART.format(name="Broken"))


def test_a_run_shows_what_was_raised_and_where_and_keeps_the_rest(cli):
    broken = ["--set", "method.selector=own_errors:BrokenSelector", "--out", "out"]
    code, out, error = cli("run", "-q", *broken)
    lines = error.splitlines()
    assert (code, out, lines[0]) == (1, "", "error: KeyError: 10")
    assert [line.split(OWN)[1] for line in lines if OWN in line] == ["10, in select", "13, in _pick"]
    assert lines[-1] == "the whole traceback: out/traceback.txt"
    assert "site-packages" not in error
    assert "fedstrata/" not in error
    kept = Path("out/traceback.txt").read_text()
    assert kept.startswith("Traceback (most recent call last)")
    assert "run_round" in kept
    Path("own_errors.py").write_text(
        PART.format(name="Broken").replace("{}[view.k]", "view.eligible[: view.k].tolist()")
    )
    sys.modules.pop("own_errors")
    assert cli("run", "-q", "--resume", "out")[0] == 0
    assert not Path("out/traceback.txt").exists()


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.extended)])
def test_so_it_does_where_a_client_breaks_here_or_in_a_worker(cli, workers):
    broken = ["--set", "method.corrections=own_errors:BrokenCorrection", "--set", f"engine.workers={workers}"]
    code, _, error = cli("run", "-q", *broken, "--out", "out")
    assert code == 1
    assert "ValueError: of mine" in error.splitlines()[0]
    assert [line.split(OWN)[1] for line in error.splitlines() if OWN in line] == ["20, in edit_logits"]
    assert "train" in Path("out/traceback.txt").read_text()


def test_a_comparison_says_once_what_ended_all_of_its_runs(cli):
    broken = ["--set", "method.selector=own_errors:BrokenSelector", "--out", "out", "--jobs", "1"]
    code, _, error = cli("compare", "-q", "--methods", "fedavg,fedprox", "--seeds", "2", *broken)
    assert code == 1
    said = "error: fedavg, seed 0; fedprox, seed 0; fedavg, seed 1 and 1 more failed: KeyError: 10"
    assert [line for line in error.splitlines() if "error:" in line] == [said]
    assert "whole tracebacks: out/comparison.json" in error
    assert error.count(OWN) == 2
    kept = [cell["why"] for cell in json.loads(Path("out/comparison.json").read_text())["cells"]]
    assert len(kept) == 4
    assert all("run_round" in why for why in kept)


def test_an_error_of_ours_is_shown_whole(cli, monkeypatch):
    monkeypatch.setattr("fedstrata.runs.training.build_federation", partial(divmod, 1, 0))
    with pytest.raises(TypeError):
        cli("run", "-q")


def test_only_the_last_frames_of_own_code_are_shown(tmp_path):
    (tmp_path / "deep.py").write_text("def f(n):\n    return f(n - 1) if n else 1 / 0\n")
    space: dict = {}
    exec(compile((tmp_path / "deep.py").read_text(), tmp_path / "deep.py", "exec"), space)
    with pytest.raises(ZeroDivisionError) as caught:
        space["f"](9)
    said = in_short("".join(traceback.format_exception(caught.value)))
    assert said.startswith("ZeroDivisionError: division by zero\n")
    assert said.count("deep.py") == 3
    assert in_short("no traceback") is None


def test_a_package_that_brings_parts_is_own_code_wherever_it_is_installed(monkeypatch):
    frames = [
        f'  File "/base/lib/site-packages/{name}/a.py", line 1, in f\n    {name}()\n' for name in ("click", "mine")
    ]
    said = f"Traceback (most recent call last):\n{''.join(frames)}KeyError: 3\n"
    assert in_short(said) is None
    entry = EntryPoint("selectors.mine", "mine.a:Mine", "fedstrata.parts")
    monkeypatch.setattr("fedstrata.core.registry.other_packages", lambda: [entry])
    assert in_short(said) == "KeyError: 3\n" + frames[1].rstrip("\n")
