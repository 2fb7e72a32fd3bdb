"""FedAvg by Flower's simulation runtime, written as its PyTorch quickstart is: an actor a core, one thread in each."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.peers.job import Job, Stopwatch, network
from benchmarks.peers.naive import train


class Timed(FedAvg):
    """Takes the time when a new model is there."""

    def __init__(self, watch: Stopwatch, **how: Any):
        super().__init__(**how)
        self.watch = watch

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        """Combine, and end the round."""
        told = list(replies)
        combined = super().aggregate_train(server_round, told)
        self.watch.steps += sum(int(reply.content["metrics"]["steps"]) for reply in told)
        self.watch.lap()
        return combined


def run(job: Job, watch: Stopwatch) -> None:
    """Run the rounds."""
    server, client = ServerApp(), ClientApp()

    @client.train()
    def context(message: Message, context: Context) -> Message:
        torch.set_num_threads(job.threads)
        model, own = network(job.model), job.rows(int(context.node_config["partition-id"]))
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        x, y = job.arrays()
        steps = train(model, x[own], y[own], job.batch)
        metrics = MetricRecord({"num-examples": job.samples, "steps": steps})
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        few = {"min_train_nodes": job.per_round, "min_available_nodes": job.per_round}
        strategy = Timed(watch, fraction_train=job.per_round / job.clients, fraction_evaluate=0.0, **few)
        strategy.start(grid, ArrayRecord(network(job.model).state_dict()), num_rounds=job.rounds)

    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    each = {"client_resources": {"num_cpus": job.threads, "num_gpus": 0.0}, "init_args": {"num_cpus": job.cores}}
    run_simulation(server, client, num_supernodes=job.clients, backend_config=each)
