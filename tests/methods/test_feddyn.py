"""FedDyn: both halves by hand, and what becomes of stragglers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from correcting import close, one_client
from quadratic import Given, f64, given_work, run_from, start, weights_after_steps

from fedstrata.core.errors import RequestError
from fedstrata.methods.corrections.clip import Clip
from fedstrata.methods.corrections.feddyn import FedDyn
from fedstrata.server.loop import model_to_evaluate
from fedstrata.testing.tiny import in_process, run_rounds, session_of


def test_feddyn_in_the_loop(monkeypatch):
    """f = v^2, w = 1, a = .5, g_k = .2, eta = .1, two steps: .82, .685; one of four clients."""
    parts = [Given(curve=2.0), FedDyn(alpha=0.5)]
    asked = {"train.batch_size": 1, "train.lr": 0.1, "train.clients_per_round": 1, "method.combiner": "uniform"}
    work = given_work((2,) * 4, {"method.corrections": parts, **asked})
    state, engine, seen = start(work, 1.0, 1.0), in_process(work), weights_after_steps(monkeypatch)
    engine.restore({k: ((0, 0), {"feddyn/g": f64(0.2, 0.2)}) for k in range(4)})
    ((outcome,),) = run_from(work, state, engine)

    assert seen == pytest.approx([0.82, 0.685], abs=1e-12)
    close(state.server_steps["feddyn"].h, f64(0.039375, 0.039375), atol=1e-12)
    close(state.model.params, f64(0.60625, 0.60625), atol=1e-12)
    for client, (_, client_state) in engine.client_states().items():
        g = 0.3575 if client == outcome.reports[0].client else 0.2
        close(client_state["feddyn/g"], f64(g, g), atol=1e-12)


def test_feddyn_evaluates_the_mean_of_the_clients_if_asked():
    parts = [Given(curve=2.0), FedDyn(alpha=0.5, evaluate="mean")]
    work, state, engine = one_client(parts, {"train.clients_per_round": "all"})
    run_from(work, state, engine)
    mean = 0.8 - 0.1 * (1.6 + 0.5 * -0.2)  # of ten equal clients
    close(model_to_evaluate(work.plan, state).params, f64(mean, mean), atol=1e-12)
    h = -0.5 * (mean - 1)  # everybody took part
    close(state.model.params, f64(mean - h / 0.5, mean - h / 0.5), atol=1e-12)

    plain = replace(work.plan, server_steps={**work.plan.server_steps, "feddyn": FedDyn(alpha=0.5)})
    assert model_to_evaluate(plain, state) is state.model


def test_feddyn_scales_alpha_by_the_size_of_a_client():
    """a_k = a / (N n_k / n): with 2 and 6 samples and a = .5, 1 and 1/3. Two steps a client from v = 1, f = v^2."""
    parts = [Given(curve=2.0), FedDyn(alpha=0.5, scale_alpha=True)]
    asked = {"train.epochs": 2, "train.lr": 0.1, "train.batch_size": 6, "method.combiner": "uniform"}
    work = given_work((2, 6), {"method.corrections": parts, **asked})
    state, engine = start(work, 1.0, 1.0), in_process(work)
    run_from(work, state, engine)
    moved = []
    for client, alpha in enumerate((1.0, 1 / 3)):
        moved.append(0.8 - 0.1 * (1.6 - 0.2 * alpha) - 1)
        close(engine.client_states()[client][1]["feddyn/g"], f64(*[-alpha * moved[-1]] * 2), atol=1e-12)
    h = -0.5 / 2 * sum(moved)
    close(state.server_steps["feddyn"].h, f64(h, h), atol=1e-12)
    close(state.model.params, f64(*[1 + sum(moved) / 2 - h / 0.5] * 2), atol=1e-12)


def test_feddyn_of_a_straggler_leaves_both_halves_alone():
    parts = [Given(curve=2.0), FedDyn()]
    work = given_work((2, 2), {"method.corrections": parts, "train.lr": 0.1, "system.stragglers.rate": 0.5})
    engine = in_process(work)
    state = start(work, 1.0, 1.0)
    ((outcome,),) = run_from(work, state, engine)
    assert list(engine.client_states()) == [r.client for r in outcome.reports]
    close(state.server_steps["feddyn"].h, f64(0.001, 0.001), atol=1e-12)  # a/N = .005, and one client moved by -.2

    work = given_work((2, 2), {"method.corrections": parts, "system.stragglers.rate": 1.0})
    state = start(work, 1.0, 1.0)
    run_from(work, state, engine := in_process(work))
    assert state.server_steps["feddyn"].h.tolist() == [0.0, 0.0]
    assert not engine.client_states()


def test_feddyn_needs_an_alpha():
    with pytest.raises(RequestError, match=r"alpha = 0\.0 .* a number > 0"):
        session_of({"method.name": "feddyn", "method.corrections.0.alpha": 0.0})


def test_feddyns_recipe_clips_what_feddyn_added():
    """The gradient is 6 and 8; with g_k = (-6, -8) it becomes 12 and 16, which is cut to a length of 10."""
    push = Given(curve=0.0, slope=(6.0, 8.0))
    recipe = list(session_of({"method.name": "feddyn"}).plan.local.parts.values())
    work, state, engine = one_client([push, *recipe], {"train.batch_size": 2})
    engine.restore({k: ((0, 0), {"feddyn/g": f64(-6.0, -8.0)}) for k in range(10)})
    ((outcome,),) = run_from(work, state, engine)
    assert outcome.reports[0].update_norm == pytest.approx(0.1 * 10, abs=1e-12)


@pytest.mark.parametrize("authors", [True, False], ids=["authors", "recipe"])
def test_feddyn_under_clip_by_hand(monkeypatch, authors):
    """f = v^2 from w = (1, 1), a = .5, g_k = 0, two steps of .1; a vector of length 1 is (r, r).

    By the authors 2 v - .5 w is shortened to length 1, then .5 v is added; else all of 2 v + .5 (v - w) is shortened.
    """
    r = 0.5**0.5
    parts = [FedDyn(alpha=0.5, clip=1.0)] if authors else [FedDyn(alpha=0.5), Clip(norm=1.0)]
    work, state, engine = one_client([Given(curve=2.0), *parts], {"train.clients_per_round": "all"})
    seen = weights_after_steps(monkeypatch)
    run_from(work, state, engine)
    first = 1 - 0.1 * (r + 0.5) if authors else 1 - 0.1 * r
    assert 2 * first - 0.5 > r  # still too long in the second step
    second = first - 0.1 * (r + 0.5 * first) if authors else first - 0.1 * r
    assert seen[:2] == pytest.approx([first, second], abs=1e-12)


def test_feddyn_whose_gradients_are_short_is_not_clipped():
    free, wide = (
        run_rounds(session_of({"method.name": "feddyn", "method.corrections": [{"kind": "feddyn", **clip}]}))[0]
        for clip in ({}, {"clip": 1e6})
    )
    close(wide.model.params, free.model.params, atol=1e-12)
