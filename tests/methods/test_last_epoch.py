"""The mean loss of a client's last epoch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedstrata.core.client_parts import Order
from fedstrata.core.sampler import Sampler
from fedstrata.methods.last_epoch import LastEpoch
from fedstrata.testing import check_correction
from fedstrata.testing.tiny import run_rounds, session_of

STILL = {"method.corrections": [LastEpoch()], "train.clients_per_round": "all"}


def test_it_passes_the_suite_of_local_parts():
    check_correction(LastEpoch())


@pytest.mark.parametrize("epochs", [1, 2, 5])
@pytest.mark.parametrize("batch_size", [4, 64])
def test_it_is_the_loss_of_a_last_epoch_of_its_own(epochs, batch_size):
    """E epochs are E - 1 and one more: the means over all of them tell the last one's."""
    asked = {**STILL, "train.batch_size": batch_size}

    def told(epochs):
        (outcome,) = run_rounds(session_of({**asked, "train.epochs": epochs}), rounds=1)[1][0]
        return {r.client: r for r in outcome.reports}

    longer, shorter = told(epochs), told(epochs - 1) if epochs > 1 else {}
    for client, report in longer.items():
        before = (epochs - 1) * shorter[client].loss if shorter else 0.0
        assert report.metrics["last_epoch_loss"] == pytest.approx(epochs * report.loss - before, abs=1e-9)


class Shrinking(Sampler):
    """Epochs of everything, of three samples and of none."""

    def plan(self, context):
        return Order((np.arange(context.client.samples), np.arange(3), np.arange(0)), batch_size=2)


def test_an_epoch_without_samples_is_none():
    """The model stands still, so that both epochs of the client with three samples have the same losses."""
    work = session_of({**STILL, "train.lr": 1e-12})
    plan = replace(work.plan, local=replace(work.plan.local, sampler=Shrinking()))
    (outcome,) = run_rounds(replace(work, plan=plan), rounds=1)[1][0]
    assert all(r.metrics["last_epoch_loss"] > 0 for r in outcome.reports)
    small = next(r for r in outcome.reports if r.samples == 3)
    assert small.metrics["last_epoch_loss"] == pytest.approx(small.loss, abs=1e-9)
