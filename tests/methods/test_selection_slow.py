"""Every selector and Terraform on real data at test scale; the figures are printed, the tables come later."""

from __future__ import annotations

import pytest
from packs import PACKS, needs_packs

from fedstrata import train
from fedstrata.core import registry
from fedstrata.data.sets.mnist import FashionMnist

ASKED = {
    "data.name": "fashion-mnist",
    "data.clients": 100,
    "data.partition": {"kind": "dirichlet-class", "alpha": 0.3},
    "model.name": "lenet5",
    "train.clients_per_round": 0.2,
    "train.rounds": 20,
    "train.epochs": 1,
    "train.batch_size": 32,
    "train.lr": 0.05,
    "system.speed.kind": "lognormal",
}


@pytest.mark.slow
@needs_packs
def test_balanced_accuracy_by_round_of_every_selector(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FEDSTRATA_DATA", str(tmp_path / "data"))
    FashionMnist().fetch(PACKS)
    ways = {name: {"method.selector": name} for name in sorted(registry.names("selectors")) if name != "everyone"}
    for name, way in {**ways, "terraform": {"method.driver": "terraform"}}.items():
        run = train(overrides={**ASKED, **way}, out=tmp_path / name)
        curve, summary = run.curve("balanced_accuracy"), run.summary
        assert len(curve) == 20
        assert max(curve) > 0.2
        with capsys.disabled():
            said = " ".join(f"{value:.2f}" for value in curve)
            print(f"\n{name:16} {said}; updates {summary['client_updates']}, {summary['time']:.1f} s", end="")
