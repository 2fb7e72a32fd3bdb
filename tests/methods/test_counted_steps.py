"""What FedNova counts: steps under momentum and proximal terms, against closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from quadratic import Given, given_work, run_from, start

from fedstrata.core.errors import RequestError
from fedstrata.methods.corrections.prox import Prox
from fedstrata.methods.optimizers.sgd import Sgd
from fedstrata.testing.tiny import run_rounds, session_of


def counted(steps, momentum=0.0, mu=0.0, rate=0.1):
    """Return what a client's steps add up to, and how far a constant gradient of 1 really came, over the step size."""
    parts = [Given(curve=0.0, slope=(-1.0, -1.0)), *([Prox(mu=mu)] if mu else [])]
    asked = {"method.combiner": "fednova", "train.optimizer": Sgd(momentum=momentum), "train.lr": rate}
    work = given_work((steps, 1), {"method.corrections": parts, "train.batch_size": 1, **asked})
    ((outcome,),) = run_from(work, start(work, 0.0, 0.0))
    report = outcome.reports[0]
    assert report.steps == steps
    return report.metrics["a"], report.update_norm / rate / 2**0.5


def closed_form(tau, momentum, mu, rate=0.1):
    """a with momentum, with a proximal term, or with both: then d = a - 1/m, m = eta mu, is a recurrence of order 2."""
    m = rate * mu
    if not m and not momentum:
        return tau
    if not m:
        return (tau - momentum * (1 - momentum**tau) / (1 - momentum)) / (1 - momentum)
    if not momentum:
        return (1 - (1 - m) ** tau) / m
    roots = np.roots([1, -(1 + momentum - m), momentum])
    weights = np.linalg.solve([[1, 1], roots], [-1 / m, 1 - 1 / m])  # a_0 = 0, a_1 = 1
    return 1 / m + (weights * roots**tau).sum().real


@pytest.mark.parametrize("mu", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("steps", [1, 3, 70])
def test_fednova_counts_steps_under_momentum_and_a_proximal_term(steps, momentum, mu):
    a, came = counted(steps, momentum, mu)
    assert a == pytest.approx(closed_form(steps, momentum, mu), rel=1e-10)
    assert a == pytest.approx(came, rel=1e-10)


def test_fednova_oracle_of_momentum():
    assert counted(3, momentum=0.9)[0] == pytest.approx(5.61, abs=1e-12)


def test_fednova_knows_all_proximal_terms_and_the_rate_of_the_round():
    """Two terms of .5 are one of 1; the rate falls from .1 to .05 in the second round."""
    parts = [Given(curve=0.0, slope=(-1.0, -1.0)), Prox(mu=0.5), Prox(mu=0.5)]
    decay = {"train.lr": 0.1, "train.lr_schedule": {"kind": "step", "every": 1, "by": 0.5}, "train.batch_size": 1}
    work = given_work((5, 1), {"method.corrections": parts, "method.combiner": "fednova", **decay})
    _, rounds = run_rounds(work, 2)
    for (outcome,), rate in zip(rounds, (0.1, 0.05), strict=True):
        assert outcome.reports[0].metrics["a"] == pytest.approx(closed_form(5, 0.0, 1.0, rate), rel=1e-12)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"train.optimizer": "adam"}, "counts steps of sgd"),
        ({"train.optimizer": {"kind": "sgd", "momentum": 0.5, "state": "kept"}}, "momentum starts afresh"),
        ({"method.corrections": ["feddyn"]}, "one proximal term for all"),
        ({"method.corrections": [{"kind": "prox", "when": "unstable"}]}, "one proximal term for all"),
        ({"method.corrections": [{"kind": "prox", "adaptive": True}]}, "one proximal term for all"),
        ({"train.optimizer": {"kind": "sgd", "momentum": 1.0}}, r"momentum = 1\.0 .* a number < 1"),
    ],
    ids=str,
)
def test_fednova_refuses_steps_it_cannot_count(asked, said):
    with pytest.raises(RequestError, match=said):
        session_of({"method.name": "fednova", **asked})
