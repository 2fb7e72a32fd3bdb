"""Our parts as a strategy of Flower: equal to Flower's own where both have a method, and to our own loop."""

from __future__ import annotations

import importlib
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from flower_run import pretend_to_be_started
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.common.config import validate_config
from flwr.serverapp.strategy import FedAvg, FedYogi

from fedstrata import Combiner, Federation, RequestError, train
from fedstrata.core import registry
from fedstrata.data.partitions.dirichlet import DirichletClass
from fedstrata.flower_strategy import Strategy, describe, utility
from fedstrata.methods.server_steps.adaptive import ServerYogi

SHAPES = {"layer.weight": (3, 2), "layer.bias": (3,), "norm.running_mean": (3,)}


@dataclass(frozen=True)
class OwnWeights(Combiner):
    """Clients say what they count for."""

    def metrics_read(self, kind):
        return ("own_weight",)

    def combine(self, state, view, model, arrived):
        weights = np.array([r.metrics["own_weight"] for r in arrived.reports])
        return arrived.sum(weights / weights.sum())


@pytest.fixture(autouse=True)
def in_a_run(monkeypatch):
    pretend_to_be_started(monkeypatch)


class InMemory:
    """A Grid whose nodes are functions of a message; node ids say nothing of the order of clients."""

    def __init__(self, *clients):
        self.nodes = {1000 - 7 * i if i % 2 else 5 + i: client for i, client in enumerate(clients)}
        self.asked = []  # by round: nodes

    def get_node_ids(self):
        return list(self.nodes)

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        if messages and messages[0].metadata.message_type == "train":
            self.asked.append([m.metadata.dst_node_id for m in messages])
        replies = [(m, self.nodes[m.metadata.dst_node_id](m)) for m in messages]
        return [Message(content, reply_to=m) for m, content in replies if content is not None]


def arrays(seed):
    rng = np.random.default_rng(seed)
    return ArrayRecord({name: Array(rng.standard_normal(shape)) for name, shape in SHAPES.items()})


def client(number, samples=1, labels=(0, 1), **told):
    """A client that moves the model by some random numbers, drawn from its number and the round."""

    def answer(message):
        if message.metadata.message_type == "query.fedstrata":
            return describe(labels, number, told.get("takes", 0.0))
        if message.metadata.message_type == "evaluate":
            return RecordDict({"metrics": MetricRecord({"num-examples": 1, "accuracy": 0.5})})
        move = arrays(100 * number + message.content["config"]["server-round"])
        model = message.content["arrays"]
        new = {n: Array(model[n].numpy() + 0.1 * move[n].numpy()) for n in SHAPES}
        metrics = {"num-examples": samples} | {k: v for k, v in told.items() if k != "takes"}
        return RecordDict({"arrays": ArrayRecord(new), "metrics": MetricRecord(metrics)})

    return answer


def result(strategy, grid, rounds=3):
    found = strategy.start(grid, arrays(0), num_rounds=rounds).arrays
    return {name: array.numpy() for name, array in found.items()}


def close(ours, theirs, names=SHAPES):
    return all(np.allclose(ours[name], theirs[name], rtol=0, atol=1e-12) for name in names)


def test_the_mean_by_size_is_that_of_flower():
    grid = InMemory(*(client(i, samples=i + 1) for i in range(4)))
    ours, theirs = result(Strategy(), grid), result(FedAvg(), grid)
    assert close(ours, theirs)
    assert not close(ours, {name: array.numpy() for name, array in arrays(0).items()})


def test_yogi_is_that_of_flower_but_starts_from_tau_squared_and_leaves_statistics_alone():
    grid, trained = InMemory(*(client(i, samples=i + 1) for i in range(4))), ("layer.weight", "layer.bias")
    theirs = FedYogi(eta=0.02, beta_1=0.8, beta_2=0.95, tau=1e-2)
    theirs.v_t = {name: np.full(shape, 1e-4) for name, shape in SHAPES.items()}  # Flower starts from 0, the paper not
    ours = {"kind": "yogi", "lr": 0.02, "beta1": 0.8, "beta2": 0.95, "tau": 1e-2}
    model, plain = result(Strategy(server_step=ours), grid), result(FedAvg(), grid, rounds=1)
    assert close(model, result(theirs, grid), trained)
    assert close(model, result(Strategy(server_step=ServerYogi(0.02, 0.8, 0.95, 1e-2)), grid))
    assert close(result(Strategy(server_step="yogi"), grid, rounds=1), plain, ["norm.running_mean"])


def test_flips_picks_whom_our_own_loop_picks(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((600, 4)).astype(np.float32), rng.integers(0, 5, 600)
    federation = Federation.from_arrays(x, y, 12, partition=DirichletClass(alpha=0.3), seed=3)
    how = {"method.name": "flips", "train.rounds": 6, "train.clients_per_round": 4, "train.seed": 3}
    how |= {"model.hidden": (4,), "train.epochs": 1, "train.batch_size": 64}
    picked = []
    train(federation=federation, overrides=how, out=tmp_path / "run", watch=picked.append)
    owned = [federation.train.y[federation.train_split[i]].tolist() for i in range(12)]
    grid = InMemory(*(client(i, labels=own) for i, own in enumerate(owned)))
    strategy = Strategy("flips", clients_per_round=4, seed=3)
    result(strategy, grid, rounds=6)
    numbers = {node: i for i, node in enumerate(grid.nodes)}
    assert [sorted(numbers[node] for node in nodes) for nodes in grid.asked] == [
        e["steps"][0]["clients"] for e in picked if e["event"] == "round"
    ]
    assert [e["event"] for e in strategy.events if e["event"] != "warning"] == ["clusters"]


def test_tifl_takes_a_round_from_clients_that_take_equally_long():
    grid = InMemory(*(client(i, takes=1.0 + i // 3) for i in range(6)))
    result(Strategy({"kind": "tifl", "tiers": 2}, clients_per_round=3), grid, rounds=8)
    fast, slow = (set(list(grid.nodes)[at]) for at in (slice(0, 3), slice(3, 6)))
    assert {frozenset(nodes) for nodes in grid.asked} == {frozenset(fast), frozenset(slow)}


def test_oort_learns_what_clients_are_worth():
    grid = InMemory(*(client(i, utility=utility([float(i)] * 10), seconds=1.0) for i in range(8)))
    strategy = Strategy("oort", clients_per_round=4)
    result(strategy, grid, rounds=12)
    assert utility([3.0, 4.0]) == pytest.approx(2 * np.sqrt(12.5))
    asked = [node for nodes in grid.asked[6:] for node in nodes]
    worst, *_, best = grid.nodes
    assert asked.count(best) > asked.count(worst)


@pytest.mark.parametrize(
    ("parts", "told"),
    [({"combiner": "fedcda"}, "last_epoch_loss"), ({"combiner": OwnWeights()}, "own_weight")],
    ids=["fedcda", "own"],
)
def test_a_reply_without_a_number_that_a_part_reads_is_left_out(parts, told):
    silent = client(3)
    grid = InMemory(client(1, **{told: 0.5}), client(2, **{told: 1.5}), silent)
    strategy = Strategy(fraction_evaluate=0.0, **parts)
    result(strategy, grid, rounds=2)
    dropped = [e["why"] for e in strategy.events if e["event"] == "dropped"]
    assert dropped == [f"its metrics lack '{told}'"] * 2


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (RecordDict(), "one record of arrays and one of metrics are expected"),
        (RecordDict({"a": arrays(1), "m": MetricRecord({"loss": 1.0})}), "its metrics lack 'num-examples'"),
        (RecordDict({"a": arrays(1), "m": MetricRecord({"num-examples": -1})}), "less than no samples"),
        (
            RecordDict({"a": ArrayRecord({"x": Array(np.zeros(3))}), "m": MetricRecord({"num-examples": 1})}),
            "other names or shapes",
        ),
        (
            RecordDict(
                {
                    "a": ArrayRecord({n: Array(np.full(s, np.nan)) for n, s in SHAPES.items()}),
                    "m": MetricRecord({"num-examples": 1}),
                }
            ),
            "not finite",
        ),
        (Error(2, "out of memory"), "out of memory"),
    ],
)
def test_a_reply_that_is_none_is_left_out(reply, why):
    whole, spoiled = InMemory(client(1), client(2)), InMemory(client(1), client(2), lambda message: reply)
    strategy = Strategy(fraction_evaluate=0.0)
    model = result(Strategy(fraction_evaluate=0.0), whole, rounds=1)
    assert close(result(strategy, spoiled, rounds=1), model)
    (event,) = strategy.events
    assert (event["event"], event["clients"]) == ("dropped", [1])
    assert why in event["why"]


def test_what_needs_our_own_clients_is_refused_by_name():
    refused = {
        "selectors": {"power-of-choice", "hics", "divfl", "sur"},
        "combiners": {"soft", "fednova", "fedga-greedy"},
        "server_steps": set(),
    }
    for stage, key in (("selectors", "selector"), ("combiners", "combiner"), ("server_steps", "server_step")):
        for name in set(registry.names(stage)) - refused[stage]:
            Strategy(**{key: name})
        for name in refused[stage]:
            with pytest.raises(RequestError, match=f"{key} = {name} does not work in an app of somebody else: it"):
                Strategy(**{key: name})


def test_wishes_that_cannot_be_fulfilled_are_refused():
    grid = InMemory(client(0), client(0))
    with pytest.raises(RequestError, match="two nodes say that they are client 0"):
        result(Strategy("flips"), grid)
    with pytest.raises(RequestError, match="how long clients take"):
        result(Strategy("tifl"), InMemory(client(0), client(1)))
    with pytest.raises(RequestError, match="combiner = inverse-probability does not fit"):
        result(Strategy("flips", "inverse-probability"), InMemory(client(0), client(1)))
    with pytest.raises(RequestError, match="otherwise than"):
        result(Strategy("size"), InMemory(*[lambda message: RecordDict()] * 2))
    with pytest.raises(RequestError, match="clients_per_round"):
        Strategy(fraction_train=0.5)


def test_flwr_run_finds_the_apps_of_the_example():
    folder = Path(__file__).parents[2] / "examples/flower-app"
    valid, errors, _ = validate_config(tomllib.loads((folder / "pyproject.toml").read_text()), True, folder)
    assert (valid, errors) == (True, [])


def test_the_example_is_an_app_that_learns(monkeypatch, capsys):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples/flower-app")
    app = importlib.import_module("flips_digits")
    monkeypatch.setattr(app, "load_digits", cache(app.load_digits))  # each of its clients reads them in every round

    def site(i):
        context = Context(1, i, {"partition-id": i, "num-partitions": 10}, RecordDict(), {})
        return lambda message: app.client(message, context).content

    app.server(InMemory(*map(site, range(10))), Context(1, 0, {}, RecordDict(), {"rounds": 20}))
    *_, last = [line for line in capsys.readouterr().out.splitlines() if line.endswith("accuracy")]
    assert float(last.split()[-2]) > 0.8
