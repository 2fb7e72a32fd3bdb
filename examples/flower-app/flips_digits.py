"""A Flower app like any other, but for its strategy, and a query by which clients say what labels they have.

Run it with `flwr run examples/flower-app local --stream`, which simulates clients; at real SuperNodes their
`--node-config` says `partition-id` and `num-partitions`.
"""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from sklearn.datasets import load_digits

from fedstrata.flower_strategy import Strategy, describe

client = ClientApp()  # one name a line: `flwr run` looks for them without running this
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    strategy = Strategy("flips", server_step={"kind": "sgd", "momentum": 0.5}, clients_per_round=0.5)
    first = ArrayRecord({"weight": Array(np.zeros((64, 10))), "bias": Array(np.zeros(10))})
    result = strategy.start(grid, first, num_rounds=int(str(context.run_config["rounds"])))
    for number, metrics in result.evaluate_metrics_clientapp.items():
        print(f"round {number}: {metrics['accuracy']:.4f} accuracy")


@client.query("fedstrata")
def tell(message: Message, context: Context) -> Message:
    _, y = samples(context)
    return Message(describe(y, place(context)[0]), reply_to=message)


@client.train()
def train(message: Message, context: Context) -> Message:
    (x, y), (weight, bias) = samples(context), model(message)
    for _ in range(5):  # steps of logistic regression on all samples
        error = probabilities(x, weight, bias) - np.eye(10)[y]
        weight, bias = weight - 0.5 * x.T @ error / len(y), bias - 0.5 * error.mean(0)
    arrays = ArrayRecord({"weight": Array(weight), "bias": Array(bias)})
    metrics = MetricRecord({"num-examples": len(y)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    (x, y), (weight, bias) = samples(context), model(message)
    right = float((probabilities(x, weight, bias).argmax(1) == y).mean())
    metrics = MetricRecord({"num-examples": len(y), "accuracy": right})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def samples(context: Context) -> tuple[np.ndarray, np.ndarray]:
    """Sorted by label, and every client has two stretches of that: neighbours have the same two labels."""
    x, y = load_digits(return_X_y=True)
    part, parts = place(context)
    stretches = np.array_split(np.argsort(y, kind="stable"), 2 * parts)
    rows = np.concatenate([stretches[part], stretches[part + parts]])
    return x[rows] / 16, y[rows]


def place(context: Context) -> tuple[int, int]:
    part, parts = (int(str(context.node_config[key])) for key in ("partition-id", "num-partitions"))
    return part, parts


def model(message: Message) -> tuple[np.ndarray, np.ndarray]:
    arrays = message.content.array_records["arrays"]
    return arrays["weight"].numpy(), arrays["bias"].numpy()


def probabilities(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    scores = x @ weight + bias
    exponential = np.exp(scores - scores.max(1, keepdims=True))
    shares: np.ndarray = exponential / exponential.sum(1, keepdims=True)
    return shares
