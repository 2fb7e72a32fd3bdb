"""MLflow: a server, or a local store that needs no account and no server."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from time import time
from typing import Any, ClassVar

from fedstrata.config import tables
from fedstrata.core.storage.file_lock import in_turn
from fedstrata.runs.trackers.base import How, Recording, TrackedRun, Tracker

STORE = "mlflow.db"  # what `mlflow ui` reads in the folder it is started in
BATCH = 100  # parameters that MLflow takes at once
STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


@dataclass(frozen=True)
class MLflow(Tracker):
    """Runs in MLflow: parameters, a metric a figure, models as artefacts; without a server, in mlflow.db here."""

    modules: ClassVar[tuple[str, ...]] = ("mlflow", "sqlalchemy", "alembic")  # the latter two for a local store
    extra: ClassVar[str] = "mlflow"

    uri: str = ""  # of a server or a store; without it $MLFLOW_TRACKING_URI, or mlflow.db in the folder you work in
    experiment: str = "fedstrata"  # under which MLflow lists the runs

    def start(self, run: TrackedRun) -> Recording:
        """Make a run, or find it again."""
        return MLflowRun(run, self.uri or os.environ.get("MLFLOW_TRACKING_URI", ""), self.experiment)


class MLflowRun:
    """One run in MLflow. Nothing global of MLflow is touched: a script may track things of its own."""

    def __init__(self, run: TrackedRun, uri: str, experiment: str):
        entities: Any = import_module("mlflow.entities")
        self._metric = entities.Metric
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # it tells of every table that it makes
        logging.getLogger("alembic").setLevel(logging.WARNING)
        here, local = Path.cwd(), not uri
        uri = uri or f"sqlite:///{here / STORE}"
        with in_turn(here / f".{STORE}.lock") if local else nullcontext():  # two runs must not both make the tables
            self._client: Any = import_module("mlflow").MlflowClient(uri)
            known = self._client.get_experiment_by_name(experiment)
            place = (here / "mlruns").as_uri() if local else None
            home = known.experiment_id if known else self._client.create_experiment(experiment, place)
        again = (run.memory or {}).get("run_id")
        self._id = again or self._client.create_run(home, run_name=run.name).info.run_id
        if again:
            self._client.update_run(self._id, status="RUNNING")
        self.memory: Mapping[str, str] = {"run_id": self._id, "uri": uri}
        self.where = f"mlflow ui --backend-store-uri {uri}" if "://" in uri and not uri.startswith("http") else uri
        given = [entities.Param(key, tables.write_value(value)[:6000]) for key, value in _settings(run).items()]
        for first in range(0, 0 if again else len(given), BATCH):
            self._client.log_batch(self._id, params=given[first : first + BATCH])

    def log(self, round: int, figures: Mapping[str, float]) -> None:
        """Add a point to every metric, in one request."""
        now = int(1000 * time())
        for first in range(0, len(figures), 10 * BATCH):
            some = list(figures.items())[first : first + 10 * BATCH]
            self._client.log_batch(self._id, [self._metric(name, value, now, round) for name, value in some])

    def end(self, how: How, summary: Mapping[str, Any], files: Sequence[Path]) -> None:
        """Keep models and experiment as artefacts, and close the run."""
        for path in files:
            self._client.log_artifact(self._id, str(path))
        if summary:
            self._client.set_tag(self._id, "stopped", str(summary["stopped"]))
        self._client.set_terminated(self._id, STATUS[how])


def _settings(run: TrackedRun) -> dict[str, Any]:
    return tables.flatten({key: value for key, value in run.experiment.items() if key != "track"})
