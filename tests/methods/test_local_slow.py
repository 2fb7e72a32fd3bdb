"""FedBSS and FedPBS beside their rivals on real data at test scale: one seed, 20 rounds; figures are printed.

One seed orders no methods: what is checked is that every method trains, not that one of them wins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from packs import PACKS, needs_packs

from fedstrata import train
from fedstrata.data.sets.mnist import FashionMnist
from fedstrata.data.sets.uci_har import UciHar

pytestmark = [
    pytest.mark.slow,
    needs_packs,
]

ROUNDS = 20
BESIDE_FEDBSS = ("fedavg", "fedprox", "scaffold", "fedexp", "fedlc", "fedrs", "fedcda", "inco", "fedbss")
BESIDE_FEDPBS = ("fedavg", "fedprox", "fedbs", "moon", "fedga-greedy", "fedpbs")
FASHION = {
    "data.name": "fashion-mnist",
    "data.clients": 100,
    "data.partition": {"kind": "dirichlet-class", "alpha": 0.1},
    "data.noise": {"labels": 0.3},
    "model.name": "lenet5",
    "train.clients_per_round": 10,
    "train.epochs": 5,
    "train.batch_size": 32,
    "train.lr": 0.05,
}
HAR = {
    "data.name": "uci-har",
    "data.form": "signals",
    "data.proxy": 120,  # for fedga-greedy; held by the server in all of them, so that clients have the same samples
    "model.name": "har-cnn1d",
    "train.epochs": 1,
    "train.batch_size": 32,
    "train.lr": 0.05,
    "system.speed.kind": "lognormal",  # what FedPBS cuts batches by
}
BY_LABEL = {
    "data.clients": 10,
    "data.partition": {"kind": "dirichlet-class", "alpha": 0.2},
    "train.clients_per_round": 5,
}
BY_SUBJECT = {
    "data.test": "within",  # subjects are clients, and each is tested on windows of its own
    "data.partition": "natural",
    "train.clients_per_round": 10,
    "train.epochs": 2,
}


def table(title: str, asked: Mapping[str, Any], methods: Sequence[str], chance: float, out: Path, capsys: Any) -> None:
    """Train by every method, print a line each, and check that it learned something."""
    columns = ("accuracy", "balanced", "last 10", "worst10", "update_norm", "seconds")
    with capsys.disabled():
        print(f"\n\n{title}\n{'':14}" + "".join(f"{column:>10}" for column in columns))
    for method in methods:
        run = train(method=method, overrides={**asked, "train.rounds": ROUNDS}, out=out / method)
        summary, update_norm = run.summary, fmean(run.curve("update_norm"))
        names = ("accuracy", "balanced_accuracy", "accuracy_last10", "worst10")
        figures = [*(summary[name] for name in names), update_norm, summary["seconds"]]
        with capsys.disabled():
            print(f"{method:14}" + "".join(f"{figure:10.3f}" for figure in figures))
        assert len(run.curve("accuracy")) == summary["rounds"] == ROUNDS
        assert all(map(isfinite, figures))
        assert update_norm > 0
        assert summary["best_accuracy"] > 2 * chance


def test_fedbss_and_its_rivals_on_fashion_mnist_with_wrong_labels(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FEDSTRATA_DATA", str(tmp_path / "data"))
    FashionMnist().fetch(PACKS)
    table("Fashion-MNIST, Dirichlet 0.1, label noise 0.3", FASHION, BESIDE_FEDBSS, 1 / 10, tmp_path, capsys)


@pytest.mark.parametrize(("title", "split"), [("Dirichlet 0.2", BY_LABEL), ("by subject", BY_SUBJECT)])
def test_fedpbs_and_its_rivals_on_uci_har(title, split, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FEDSTRATA_DATA", str(tmp_path / "data"))
    UciHar("signals", test=split.get("data.test", "official")).fetch(PACKS)
    table(f"UCI-HAR, {title}", {**HAR, **split}, BESIDE_FEDPBS, 1 / 6, tmp_path, capsys)
