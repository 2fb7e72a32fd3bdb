"""What Stratify promises: balanced batches with less variance, and accuracy that does not fall with the skew."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from packs import PACKS, needs_packs
from scipy.stats import binomtest
from torch.nn.functional import cross_entropy

from fedstrata import train
from fedstrata.client.local_step import Batches
from fedstrata.client.trainer import Trainer
from fedstrata.config.build import build_federation
from fedstrata.config.experiment import Experiment
from fedstrata.data.sets.mnist import FashionMnist
from fedstrata.runs.session import build_session
from fedstrata.server.loop import run_round
from fedstrata.testing.tiny import in_process

BATCH, EPOCHS = 64, 4
ONE_LABEL = {"data.clients": 10, "data.partition": {"kind": "labels-per-client", "labels": 1}}
IID = {"data.clients": 10, "data.partition": "iid"}


def batches(monkeypatch, seed, **schedule):
    """Return a federation, a first model, and the rows of the batches that a schedule draws over some epochs."""
    asked = {"method.name": "stratify-batch", "train.batch_size": BATCH, "train.rounds": EPOCHS, "train.seed": seed}
    experiment = Experiment.of(None, **asked, **{f"method.schedule.{k}": v for k, v in schedule.items()})
    federation = build_federation(experiment)
    work, seen, train_fused = build_session(experiment, federation, None), [], Trainer.train_fused

    def watched(trainer, task, drawn):
        seen.extend(np.split(drawn.rows, drawn.starts[1:-1]))
        return train_fused(trainer, task, Batches(drawn.rows[: drawn.sizes[0]], drawn.sizes[:1], drawn.rates[:1]))

    monkeypatch.setattr(Trainer, "train_fused", watched)
    state, engine = work.initial_state(), in_process(work)
    for round in range(EPOCHS):
        run_round(work.plan, state, work.plan.view(work.client_info, round, lambda *_, **__: None), engine)
    monkeypatch.setattr(Trainer, "train_fused", train_fused)
    return federation, work.plan.local.build(), [rows for rows in seen if len(rows) == BATCH]


def variance(federation, module, drawn):
    """Return the mean squared distance of the batches' gradients from their mean."""
    gradients = []
    for rows in drawn:
        module.zero_grad()
        cross_entropy(module(federation.train.x[rows]), federation.train.y[rows]).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in module.parameters()]))
    table = torch.stack(gradients)
    return float(((table - table.mean(0)) ** 2).sum(1).mean())


def distance(federation, drawn):
    """Return the mean total variation between a batch's labels and the uniform target."""
    labels = federation.labels
    shares = [np.bincount(labels[rows], minlength=10) / len(rows) for rows in drawn]
    return float(np.mean([np.abs(share - 0.1).sum() / 2 for share in shares]))


def test_scheduled_batches_vary_less_and_are_nearer_the_target_than_random_ones_from_the_same_clients(monkeypatch):
    pairs = []
    for seed in range(8):
        ours = batches(monkeypatch, seed)
        random = batches(monkeypatch, seed, strata="none")
        pairs.append((variance(*ours) < variance(*random), distance(ours[0], ours[2]) < distance(random[0], random[2])))
    for wins in zip(*pairs, strict=True):
        assert binomtest(sum(wins), len(wins), alternative="greater").pvalue < 0.01


def test_a_shuffled_schedule_barely_helps_against_random_draws_that_are_balanced_already(monkeypatch):
    """A finding: section III-B holds for the whole schedule. Inside a batch, labels are drawn without replacement
    from it, which takes away only the share BATCH / length of their variance. Spreading them does what is claimed."""
    one_each = {"clients": "weighted", "strata": "none"}
    shuffled = np.array([variance(*batches(monkeypatch, seed)) for seed in range(4)])
    balanced = np.array([variance(*batches(monkeypatch, seed, **one_each)) for seed in range(4)])
    spread = np.array([variance(*batches(monkeypatch, seed, order="spread")) for seed in range(4)])
    assert 0.75 < (shuffled / balanced).mean() < 1.05
    assert (spread / balanced).mean() < 0.5


def test_over_a_whole_schedule_exposure_is_the_target(tmp_path):
    run = train(method="stratify-batch", overrides={"train.rounds": 2}, out=tmp_path / "run")
    seen = [event["exposure"] for event in run.events() if event["event"] == "schedule"]
    assert [set(labels) for labels in seen] == [{144}, {144}]  # 1438 samples, 10 labels, rounded up


def test_one_label_a_client_costs_nothing_on_digits_and_fedavg_collapses(tmp_path):
    def accuracy(method, **asked):
        name = f"{method}-{len(list(tmp_path.iterdir()))}"
        return train(method=method, overrides={**asked, "train.rounds": 4}, out=tmp_path / name).summary["accuracy"]

    for method in ("stratify-batch", "stratify-single"):
        assert accuracy(method, **ONE_LABEL) > accuracy(method, **IID) - 0.02
    assert accuracy("fedavg", **ONE_LABEL) < accuracy("fedavg", **IID) - 0.3


@pytest.mark.slow
@needs_packs
def test_one_label_a_client_costs_nothing_on_fashion_mnist(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FEDSTRATA_DATA", str(tmp_path / "data"))
    FashionMnist().fetch(PACKS)
    asked = {"data.name": "fashion-mnist", "model.name": "lenet5"}
    budgets = {
        "stratify-batch": {"train.rounds": 4},
        "stratify-single": {"train.rounds": 2},
        "fedavg": {"train.rounds": 10, "train.epochs": 1, "train.clients_per_round": "all"},
    }
    got = {}
    for method, budget in budgets.items():
        for name, split in (("one label", ONE_LABEL), ("iid", IID)):
            out = tmp_path / f"{method}-{name}"
            run = train(method=method, overrides={**asked, **budget, **split}, out=out)
            got[method, name] = run.summary["accuracy"]
            with capsys.disabled():
                print(
                    f"\n{method:16} {name:10} accuracy {got[method, name]:.4f} in {run.summary['seconds']:.0f} s",
                    end="",
                )
    for method in ("stratify-batch", "stratify-single"):
        assert got[method, "one label"] > got[method, "iid"] - 0.02
    assert got["fedavg", "one label"] < got["fedavg", "iid"] - 0.3
