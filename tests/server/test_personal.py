"""Personal figures: by hand, only where asked for, and without any trace in the run."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from fedstrata import Federation, RequestError, train
from fedstrata.methods.corrections.scaffold import Scaffold
from fedstrata.runs.session import build_session
from fedstrata.runs.training import describe_experiment

ASKED = {"train.rounds": 3, "train.clients_per_round": "all", "train.evaluate.every": 3, "train.batch_size": 8}


def opposed():
    """Return two clients that call the same samples by opposite names: no one model serves both."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 3)).astype(np.float32)
    y = (x[:, 0] > 0).astype(int)
    y[40:] = 1 - y[40:]
    test = rng.normal(size=(40, 3)).astype(np.float32)
    test_y = (test[:, 0] > 0).astype(int)
    test_y[20:] = 1 - test_y[20:]
    rows, test_rows = [np.arange(40), np.arange(40, 80)], [np.arange(20), np.arange(20, 40)]
    return Federation.from_arrays(x, y, rows, test=(test, test_y), test_clients=test_rows)


def trained(tmp_path, name, **more):
    torch.manual_seed(0)
    return train(overrides=ASKED | more, federation=opposed(), model=nn.Linear(3, 2), out=tmp_path / name)


def test_fine_tuning_serves_clients_that_no_one_model_serves(tmp_path):
    run = trained(tmp_path, "run", **{"train.evaluate.personal": True, "train.lr": 1.0})
    last = run.events()[-1]
    assert last["client_mean"] < 0.75
    assert last["personal_mean"] > 0.8
    assert run.summary["personal_mean"] == last["personal_mean"]
    assert last["personal_worst10"] <= last["personal_mean"]


@pytest.mark.parametrize("corrections", [[], [Scaffold()]])
def test_it_leaves_no_trace(corrections, tmp_path):
    with_it, without = (
        trained(tmp_path, str(on), **{"train.evaluate.personal": on, "method.corrections": corrections})
        for on in (True, False)
    )
    assert {k: v.tolist() for k, v in with_it.model().items()} == {k: v.tolist() for k, v in without.model().items()}
    assert with_it.summary["accuracy"] == without.summary["accuracy"]
    assert "personal_mean" not in without.summary


def test_one_epoch_by_hand(tmp_path):
    """The figure is that of plain SGD over a client's samples, from the model of the run, in its own order."""
    run = trained(tmp_path, "run", **{"train.evaluate.personal": True, "train.batch_size": 40, "train.lr": 0.5})
    federation, start, accuracies = opposed(), run.model(), []
    for client in range(2):
        model = nn.Linear(3, 2)
        model.load_state_dict(start)
        rows, tested = federation.train_split[client], federation.test_split[client]
        loss = nn.functional.cross_entropy(model(federation.train.x[rows]), federation.train.y[rows])
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(0.5 * parameter.grad)
            hits = model(federation.test.x[tested]).argmax(1) == federation.test.y[tested]
        accuracies.append(float(hits.float().mean()))
    assert run.summary["personal_mean"] == pytest.approx(np.mean(accuracies))


@pytest.mark.parametrize("method", ["stratify-batch", "fedbss", "moon"])
def test_it_goes_with_methods_that_choose_samples_or_keep_state(method, tmp_path):
    asked = {"train.rounds": 1, "data.clients": 4, "train.evaluate.personal": True, "method.name": method}
    run = train(overrides=asked, out=tmp_path / "run")
    assert 0 <= run.summary["personal_worst10"] <= run.summary["personal_mean"] <= 1


def test_it_is_refused_where_clients_are_scored_elsewhere():
    experiment = describe_experiment(None, None, {"train.evaluate.personal": True}, opposed(), nn.Linear(3, 2))
    with pytest.raises(RequestError, match=r"train\.evaluate\.personal needs clients on this machine"):
        build_session(experiment, opposed(), nn.Linear(3, 2), remote=SimpleNamespace(set_up=None))
