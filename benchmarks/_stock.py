"""FedAvg by Flower alone, with its own strategy and its own loop; clients give back the model that they got."""

from __future__ import annotations

from time import perf_counter

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from benchmarks._telling import measuring

ROUNDS, NUMBERS = 3, 61_706  # as many as LeNet-5 has

client = ClientApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    """Do nothing."""
    metrics = MetricRecord({"num-examples": 1})
    return Message(RecordDict({"arrays": message.content["arrays"], "metrics": metrics}), reply_to=message)


@client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Say something."""
    metrics = MetricRecord({"num-examples": 1, "accuracy": 0.1})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def measured(grid: Grid, sites: int, quick: bool) -> dict[str, float]:
    """Take the time of all rounds."""
    rounds = 1 if quick else ROUNDS
    model = ArrayRecord({"model": Array(np.zeros(NUMBERS, dtype=np.float32))})
    strategy = FedAvg(min_train_nodes=sites, min_evaluate_nodes=sites, min_available_nodes=sites)
    start = perf_counter()
    strategy.start(grid, model, num_rounds=rounds)
    return {"round": (perf_counter() - start) / rounds}


server = measuring(measured)
