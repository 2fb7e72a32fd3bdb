"""FedNova: updates divided by the steps that made them."""

from __future__ import annotations

import pytest
from combining import Moves, Told, close, model_of, moving_work, run_of, view_of
from quadratic import f64

from fedstrata import RequestError
from fedstrata.methods.combiners.fednova import FedNova
from fedstrata.methods.combiners.size import SizeWeighted
from fedstrata.methods.corrections.feddyn import FedDyn
from fedstrata.methods.corrections.prox import Prox
from fedstrata.methods.optimizers.sgd import Sgd
from fedstrata.testing.tiny import session_of


def nova(told, **options):
    return 1.0 + float(FedNova(**options).combine(None, view_of([1] * 9), model_of(1.0), told).total["update"])


def test_fednova_oracle():
    told = Told([f64(-0.4), f64(-0.6)], steps=[2, 6], metrics=[{"a": 2.0}, {"a": 6.0}])
    assert nova(told) == pytest.approx(0.4, abs=1e-12)
    assert 1 + float(SizeWeighted().combine(None, None, None, told).total["update"]) == pytest.approx(0.5, abs=1e-12)


def test_fednova_in_the_loop():
    """Gradients .2 and .1, 2 and 6 steps, p = 1/4 and 3/4: tau_eff = 5, mean d = .125."""
    for combine, expected in (("fednova", 0.375), ("size", 0.45)):
        work = moving_work(
            [(-0.2, -0.2), (-0.1, -0.1)], {"method.combiner": combine, "train.batch_size": 1}, sizes=(2, 6)
        )
        close(run_of(work, weights=(1.0, 1.0)).state.model.params, f64(expected, expected))


@pytest.mark.parametrize(("effective", "expected"), [("normalised", 2.75), ("steps", 4.0)])
def test_fednova_with_steps_that_add_up_to_less(effective, expected):
    """With a proximal term a_k is below the number of steps; the authors' code takes steps for tau_eff."""
    told = Told([f64(-0.3), f64(-0.4)], steps=[2, 6], metrics=[{"a": 1.5}, {"a": 4.0}])
    assert nova(told, effective=effective) == pytest.approx(1 - expected * (0.2 + 0.1) / 2, abs=1e-12)


def test_fednova_ignores_who_took_no_step():
    both = [{"a": 2.0}, {"a": 6.0}]
    told = Told([f64(-0.4), f64(-0.6), f64(0.0)], steps=[2, 6, 0], samples=[1, 1, 50], metrics=[*both, {"a": 0.0}])
    assert nova(told) == pytest.approx(0.4, abs=1e-12)
    nobody = Told([f64(0.0)] * 2, steps=[0, 0], metrics=[{"a": 0.0}] * 2)
    assert nova(nobody) == 1.0


def test_fednova_averages_norm_statistics():
    told = Told(
        [f64(-0.4), f64(-0.6)], steps=[2, 6], metrics=[{"a": 2.0}, {"a": 6.0}], others={"buffers": [f64(1.0), f64(1.0)]}
    )
    sums = FedNova().combine(None, view_of((1, 1)), model_of(1.0), told)
    close(sums.mean("buffers"), f64(1.0))


def test_fednova_counts_momentum_and_proximal_terms():
    """rho = .9: 1, 2.9, 5.61 after three steps; eta mu = .5: 1, 1.5, 1.75."""
    asked = {"method.combiner": "fednova", "train.lr": 0.5, "train.batch_size": 1}
    still = [(0.0, 0.0)] * 2
    momentum = moving_work(still, {**asked, "train.optimizer": {"kind": "sgd", "momentum": 0.9}}, sizes=(3, 1))
    told = [r.metrics["a"] for r in run_of(momentum).rounds[0][0].reports]
    assert told == pytest.approx([5.61, 1.0], abs=1e-12)
    prox = moving_work(still, {**asked, "method.corrections": [Moves(tuple(still)), Prox(mu=1.0)]}, sizes=(3, 1))
    told = [r.metrics["a"] for r in run_of(prox).rounds[0][0].reports]
    assert told == pytest.approx([1.75, 1.0], abs=1e-12)


@pytest.mark.parametrize(
    "others",
    [
        {"train.optimizer": "adam"},
        {"train.optimizer": Sgd(momentum=0.9, state="kept")},
        {"method.corrections": [FedDyn()]},
        {"method.corrections": [Prox(when="unstable")]},
    ],
)
def test_fednova_refuses_steps_that_it_cannot_count(others):
    with pytest.raises(RequestError, match=r"method\.combiner does not fit this plan: it counts steps"):
        session_of({"method.combiner": "fednova", **others})


def test_momentum_of_one_is_refused():
    with pytest.raises(RequestError, match=r"momentum = 1\.0 is not valid"):
        session_of({"method.combiner": "fednova", "train.optimizer": {"kind": "sgd", "momentum": 1.0}})
