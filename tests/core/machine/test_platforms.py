"""On Windows: one process trains and compares; what needs worker processes or Flower is refused with the reason."""

from __future__ import annotations

import pytest

from fedstrata import RequestError, compare, train
from fedstrata.cli import main
from fedstrata.engines.local import start
from fedstrata.testing import tiny_federation

SMALL = {"train.rounds": 1, "train.epochs": 1, "model.hidden": (5,)}


@pytest.fixture(autouse=True)
def _on_windows(monkeypatch):
    monkeypatch.setattr("fedstrata.core.machine.platforms.POSIX", False)


def test_one_process_does_the_work_where_there_are_no_others(tmp_path, monkeypatch):
    monkeypatch.setattr(start, "WORTH_A_PROCESS", 0.0)
    monkeypatch.setattr(start, "cores", lambda: 2)
    run = train(overrides=SMALL, federation=tiny_federation(), out=tmp_path / "run")
    (told,) = [event["wall"] for event in run.events() if event["event"] == "engine"]
    assert told["workers"] == 1
    assert "worker processes need Linux or macOS" in told["remark"]


def test_worker_processes_that_were_asked_for_are_refused(tmp_path):
    with pytest.raises(
        RequestError, match=r"engine.workers = 2: worker processes need Linux or macOS.*use engine.workers"
    ):
        train(overrides=SMALL | {"engine.workers": 2}, federation=tiny_federation(), out=tmp_path / "run")
    asked = {"methods": ["fedavg", "fedprox"], "overrides": SMALL, "federation": tiny_federation()}
    with pytest.raises(RequestError, match=r"jobs = 2: worker processes need Linux or macOS.*use 1"):
        compare(**asked, jobs=2, out=tmp_path / "two")
    assert len(compare(**asked, jobs=1, out=tmp_path / "one").rows) == 2


def test_deploying_is_refused(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("sys.argv", ["fedstrata", "deploy", "keys", str(tmp_path / "keys"), "--sites", "a,b"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, "fedstrata deploy needs Linux or macOS" in capsys.readouterr().err) == (2, True)
    assert not (tmp_path / "keys").exists()
