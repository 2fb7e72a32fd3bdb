"""Runs in trackers: their own files are read back; what a tracker does wrong is an event."""

from __future__ import annotations

import json
import struct
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import ClassVar

import pytest
from waiting import wait_until

import fedstrata
from fedstrata.runs import tracking

SMALL = {"train.rounds": 3, "train.epochs": 1, "train.clients_per_round": 3}
LOGGED = defaultdict(list)
RELEASED = Event()


class Kept:
    """Figures in this process, by run."""

    where = "here"

    def __init__(self, run):
        self.name = run.name
        self.memory = {"began": (run.memory or {}).get("began", f"at {run.rounds_done}")}
        LOGGED[self.name].append(("start", run.rounds_done, self.memory["began"]))

    def log(self, round, figures):
        LOGGED[self.name].append((round, figures))

    def end(self, how, summary, files):
        LOGGED[self.name].append((how, summary.get("rounds"), [path.name for path in files]))


@dataclass(frozen=True)
class Keeping(fedstrata.Tracker):
    """Keeps figures in this process."""

    def start(self, run):
        return Kept(run)


@dataclass(frozen=True)
class Unreachable(fedstrata.Tracker):
    """A server that is not there, or goes away."""

    at: str = "start"

    def start(self, run):
        if self.at == "start":
            raise ConnectionError("no route to tracker")
        recording = Kept(run)
        setattr(recording, self.at, self._break)
        return recording

    def _break(self, *_):
        raise SystemExit("gone") if self.at == "end" else ConnectionError("no route to tracker")


@dataclass(frozen=True)
class Hanging(fedstrata.Tracker):
    """A server that takes a connection and says nothing."""

    def start(self, run):
        RELEASED.wait()
        return Kept(run)


@dataclass(frozen=True)
class NotInstalled(fedstrata.Tracker):
    """A tracker whose package is not there."""

    modules: ClassVar = ("no_such_package_here",)
    extra: ClassVar = "track"

    def start(self, run):
        raise AssertionError("never reached")


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    LOGGED.clear()
    for name in ("MLFLOW_TRACKING_URI", "WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def told(run, kind):
    return [event for event in run.events() if event["event"] == kind]


def test_a_tracker_is_told_all_figures_and_the_outcome_and_changes_nothing():
    run = fedstrata.train(overrides={**SMALL, "track": [Keeping()]}, out="runs/kept")
    plain = fedstrata.train(overrides=SMALL, out="runs/plain")
    assert run.events(wall=False) == plain.events(wall=False)
    start, *rounds, end = LOGGED["kept"]
    assert start == ("start", 0, "at 0")
    assert end == ("finished", 3, ["model.safetensors", "best.safetensors", "experiment.toml"])
    for (round, figures), event in zip(rounds, told(run, "round"), strict=True):
        assert round == event["round"]
        assert {key: event[key] for key in ("accuracy", "loss_test", "bytes_up", "jain")}.items() <= figures.items()
        assert figures["recall/3"] == event["recall"][3]
        assert figures["seconds"] == event["wall"]["seconds"]
    assert told(run, "tracked")[0] == {"event": "tracked", "what": "Keeping", "where": "here"}


def test_a_resumed_run_goes_on_in_the_same_run_of_its_tracker():
    def interrupt(event):
        if event["event"] == "round" and event["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedstrata.train(overrides={**SMALL, "track": [Keeping()]}, out="runs/cut", watch=interrupt)
    assert LOGGED["cut"][-1] == ("stopped", None, [])
    LOGGED.clear()
    fedstrata.resume("runs/cut")
    start, *rounds, end = LOGGED["cut"]
    assert start[2] == "at 0"  # what it remembers of the first time
    assert [round for round, _ in rounds] == list(range(start[1] + 1, 4))
    assert end[0] == "finished"


@pytest.mark.parametrize("rounds", [None, 4])
def test_a_tracker_that_comes_later_is_told_what_was_before(rounds):
    fedstrata.train(overrides=SMALL, out="runs/old")
    more = {"track": [Keeping()]} | ({} if rounds is None else {"train.rounds": rounds})
    run = fedstrata.resume("runs/old", overrides=more)
    assert [first for first, *_ in LOGGED["old"]] == ["start", *range(1, 1 + (rounds or 3)), "finished"]
    assert told(run, "tracked")


@pytest.mark.parametrize(("at", "said"), [("start", "no route"), ("log", "no route"), ("end", "gone")])
def test_an_unreachable_tracker_is_an_event_and_never_the_end_of_a_run(at, said, capsys):
    run = fedstrata.train(overrides={**SMALL, "track": [Unreachable(at), Keeping()]}, out="runs/r")
    assert run.summary["rounds"] == 3
    (event,) = told(run, "tracker")
    assert event["what"] == "Unreachable"
    assert said in event["why"]
    assert ("finished", 3, ["model.safetensors", "best.safetensors", "experiment.toml"]) in LOGGED["r"]


def test_a_tracker_that_hangs_is_left_behind(monkeypatch):
    monkeypatch.setitem(tracking.PATIENCE, "finished", 0.01)
    run = fedstrata.train(overrides={**SMALL, "track": [Hanging()]})
    RELEASED.set()
    assert "left behind" in told(run, "tracker")[0]["why"]


def test_a_tracker_that_is_not_installed_is_refused_before_there_is_a_folder():
    with pytest.raises(fedstrata.RequestError, match=r"track.0 .* pip install 'fedstrata\[track\]'"):
        fedstrata.train(overrides={**SMALL, "track": [NotInstalled()]})
    assert not Path("runs").exists()


@pytest.mark.parametrize("asked", ["tensorboard,wandb", ["tensorboard", {"kind": "wandb"}]])
def test_trackers_are_named_in_a_list_or_with_commas(asked):
    found = fedstrata.Experiment.of(None, track=asked)
    assert [part["kind"] for part in found.track] == ["tensorboard", "wandb"]
    assert "track" not in fedstrata.Experiment.of(found, track=[]).dump()
    assert fedstrata.Experiment.of(found.dump()) == found


def test_a_wrong_tracker_is_refused_with_what_is_allowed():
    with pytest.raises(fedstrata.RequestError, match=r'track.0.kind = "tensorbord" .*did you mean "tensorboard"'):
        fedstrata.Experiment.of(None, track="tensorbord")


# ---- the real packages ---------------------------------------------------------------------------------------------


def test_tensorboard_reads_its_files_back():
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = fedstrata.train(overrides={**SMALL, "track": "tensorboard"})
    files = accumulator.EventAccumulator(str(run.path / "tensorboard")).Reload()
    points = {point.step: point.value for point in files.Scalars("accuracy")}
    assert points == pytest.approx(dict(enumerate(run.curve("accuracy"), start=1)))
    assert {"recall/0", "bytes_up", "client_mean"} <= set(files.Tags()["scalars"])
    (text,) = files.Tensors("experiment/text_summary")
    assert b"[data.partition]" in text.tensor_proto.string_val[0]
    again = fedstrata.resume(run.path, overrides={"train.rounds": 4})
    files = accumulator.EventAccumulator(str(run.path / "tensorboard")).Reload()
    assert [point.step for point in files.Scalars("accuracy")] == [1, 2, 3, 4]
    assert again.summary["rounds"] == 4


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_mlflow_reads_its_local_store_back(monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    monkeypatch.setitem(tracking.PATIENCE, "finished", 300.0)
    run = fedstrata.train(overrides={**SMALL, "track": "mlflow"}, out="runs/tracked")
    run = fedstrata.resume(run.path, overrides={"train.rounds": 4})
    store = mlflow.MlflowClient(f"sqlite:///{Path.cwd() / 'mlflow.db'}")
    home = store.get_experiment_by_name("fedstrata").experiment_id
    (found,) = store.search_runs([home])
    assert (found.info.run_name, found.info.status) == ("tracked", "FINISHED")
    assert found.data.params["data.partition"].startswith("dirichlet-class(alpha=0.1")
    points = {point.step: point.value for point in store.get_metric_history(found.info.run_id, "accuracy")}
    assert points == pytest.approx(dict(enumerate(run.curve("accuracy"), start=1)))
    kept = {file.path for file in store.list_artifacts(found.info.run_id)}
    assert kept == {"model.safetensors", "best.safetensors", "experiment.toml"}
    place = store.download_artifacts(found.info.run_id, "model.safetensors", ".")
    assert Path(place).read_bytes() == (run.path / "model.safetensors").read_bytes()
    assert not told(run, "tracker")


def wandb_records(path: Path):
    """Read what wandb wrote: after its own header, blocks of LevelDB's log format with a message each record."""
    pb = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        if at + 7 + size > len(data):  # still being written
            return
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or its last piece
            yield pb.Record.FromString(whole)
            whole = b""


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore")  # wandb's own
def test_wandb_offline_is_read_back(monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setitem(tracking.PATIENCE, "finished", 300.0)
    run = fedstrata.train(overrides={**SMALL, "track": "wandb"}, out="runs/tracked")
    run = fedstrata.resume(run.path, overrides={"train.rounds": 4})
    assert not told(run, "tracker")
    files = sorted((run.path / "wandb").glob("offline-run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime_ns)
    assert len({path.name for path in files}) == 1  # both are of one run, which `wandb sync` puts together
    for path in files:  # a service of wandb's writes them, and may still be at it
        wait_until(lambda path=path: any(record.HasField("exit") for record in wandb_records(path)))
    records = [record for path in files for record in wandb_records(path)]
    points, config, artefacts = {}, {}, set()
    for record in records:
        for item in record.history.item:
            if (item.key or item.nested_key[0]) == "accuracy":
                points[record.history.step.num] = json.loads(item.value_json)
        config |= {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.run.config.update}
        artefacts |= {entry.path for entry in record.request.log_artifact.artifact.manifest.contents}
        artefacts |= {entry.path for entry in record.artifact.manifest.contents}
    assert points == pytest.approx(dict(enumerate(run.curve("accuracy"), start=1)))
    assert config["train"]["rounds"] == 4
    assert {"model.safetensors", "experiment.toml"} <= artefacts


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_tracker_passes_the_suite(name):
    pytest.importorskip(name)
    fedstrata.check_tracker(fedstrata.make_part("trackers", name))
