"""What a client app tells a strategy that chooses clients by their data: the answer to the query "fedstrata"."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from flwr.app import ConfigRecord, RecordDict

QUERY = "fedstrata"  # in a client app: @app.query("fedstrata")


def describe(labels: Iterable[int | str], client: int = -1, seconds: float = 0.0) -> RecordDict:
    """Say how many samples of each label a client has, and how long a round takes it.

    Flower draws node ids anew for every run; who says which client he is, as by `context.node_config["partition-id"]`,
    is chosen alike in every run with the same seed.
    """
    found, counts = np.unique(np.asarray(list(labels)), return_counts=True)
    told = {"client": client, "labels": found.tolist(), "counts": counts.tolist(), "seconds": float(seconds)}
    return RecordDict({QUERY: ConfigRecord(told)})


def utility(losses: Iterable[float]) -> float:
    """Return what Oort wants to know of a client, from the losses of the samples it trained on.

    A metric of its reply.
    """
    squares = np.square(np.asarray(list(losses), dtype=np.float64))
    return float(len(squares) * np.sqrt(squares.mean())) if len(squares) else 0.0
