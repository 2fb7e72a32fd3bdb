"""What shells are offered at TAB, by the protocol with which they ask."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fedstrata
from fedstrata.cli import completing, words
from fedstrata.core import registry


@pytest.fixture(autouse=True)
def _known(monkeypatch, tmp_path_factory):
    """Collect the words once for all tests here."""
    monkeypatch.setenv("FEDSTRATA_DATA", str(tmp_path_factory.getbasetemp() / "words"))
    monkeypatch.delenv(completing.ASKED, raising=False)


def asked(shell: str, typed: str, **around: str) -> list[str]:
    """Ask as a shell does."""
    source = str(Path(fedstrata.__file__).parents[1])
    call = "import sys; sys.argv = ['fedstrata']; from fedstrata.cli import main; main()"
    env = {**os.environ, "PYTHONPATH": source, completing.ASKED: f"complete_{shell}", **around}
    if shell == "bash":  # which splits at "=" as well
        cut = typed.replace("=", " = ").split() + ([""] if typed.endswith(" ") else [])
        env |= {"COMP_WORDS": "\n".join(cut), "COMP_CWORD": str(len(cut) - 1)}
    else:
        env |= {"_TYPER_COMPLETE_ARGS": typed, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = subprocess.run([sys.executable, "-c", call], env=env, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_offered_parts_by_name(shell):
    said = asked(shell, "fedstrata run --set method.selector=po")
    offered = "power-of-choice" if shell == "bash" else "method.selector=power-of-choice"
    assert [word for word in said if "power" in word and offered in word], said
    assert not [word for word in said if "oort" in word]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("fedstrata li", "list"),
        ("fedstrata list sel", "selectors"),
        ("fedstrata data fetch fash", "fashion-mnist"),
        ("fedstrata reproduce show B1-", "B1-cifar10"),
        ("fedstrata compare --methods fedavg,scaf", "fedavg,scaffold"),
        ("fedstrata run --set=train.optimizer=a", "adam"),
        ("fedstrata run --set train.ep", "train.epochs="),
    ],
)
def test_what_bash_is_offered(typed, offered):
    said = asked("bash", typed)
    assert [word for word in said if word.startswith(offered)], said


def test_keys_come_with_their_values_where_there_is_only_one():
    assert "train.rounds=" in completing.settings("train.r")
    assert set(completing.settings("privacy.lab")) == {
        f"privacy.labels={word}" for word in ("none", "prf", "ckks-paper")
    }
    assert completing.settings("train.evaluate.personal=t") == ["train.evaluate.personal=true"]
    assert completing.settings("no.such.key=") == []


def test_every_kind_of_part_is_offered():
    assert completing.kinds("") == sorted(registry.STAGES)
    assert set(words.PLACES.values()) == set(registry.STAGES)
    assert completing.parts("datasets")("mn") == ["mnist"]


def test_run_folders_are_offered_and_others_are_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for place in ("runs/fedavg-1", "runs/table/cells-1", "elsewhere/one"):
        Path(place).mkdir(parents=True)
        Path(place, "experiment.toml").touch()
    Path("runs/empty").mkdir()
    assert completing.run_folders("") == ["elsewhere/one", "runs/fedavg-1", "runs/table/cells-1"]
    assert completing.run_folders("elsewhere/") == ["elsewhere/one"]
    assert completing.run_folders("els") == ["elsewhere/one"]
    assert completing.run_folders("runs/em") == ["runs/empty/"]


def test_words_are_kept_until_something_changes(monkeypatch):
    first = words.known_words()
    monkeypatch.setattr(words, "_collect", lambda: {"parts": {"methods": ["new"]}})
    assert words.known_words() == first
    monkeypatch.setattr(words, "__version__", "99")
    assert words.known_words()["parts"] == {"methods": ["new"]}


def test_a_damaged_cache_is_made_anew():
    kept = Path(os.environ["FEDSTRATA_DATA"], "completion.json")
    kept.parent.mkdir(exist_ok=True)
    for damage in ("", "[]", "null", '{"state": 1}'):
        kept.write_text(damage)
        assert "fedavg" in words.known_words()["parts"]["methods"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_command_shows_what_sets_a_shell_up(shell, cli, monkeypatch):
    monkeypatch.setattr("shellingham.detect_shell", lambda *_: (shell, shell))
    code, out, _ = cli("--show-completion")
    assert code == 0
    assert f"complete_{shell}" in out
