"""Weights by inverse probability: what was unlikely to be asked counts more; the chances of draws by size."""

from __future__ import annotations

import numpy as np
import pytest
from combining import Told, close, model_of, run_of, view_of, weighed
from quadratic import f64

from fedstrata import RequestError
from fedstrata.core import registry
from fedstrata.methods.combiners.inverse_probability import InverseProbability
from fedstrata.methods.combiners.size import SizeWeighted
from fedstrata.methods.combiners.uniform import Uniform
from fedstrata.methods.selectors.random import Random
from fedstrata.methods.selectors.size import SelectBySize as BySize
from fedstrata.methods.selectors.size import chances_by_size, draw_by_size
from fedstrata.testing.tiny import session_of


def test_equal_chances_make_weights_by_size_exactly():
    samples = [3, 7, 1, 12, 5]
    by_size = weighed(SizeWeighted(), samples=samples).tolist()
    for chance in (1.0, *(k / n for n in range(2, 12) for k in range(1, n)), 1e-6):
        assert weighed(InverseProbability(), samples=samples, chances=[chance] * 5).tolist() == by_size


def test_what_was_unlikely_to_be_asked_counts_more():
    found = weighed(InverseProbability(), samples=[2, 2, 4], chances=[0.5, 0.25, 0.5])
    close(found, f64(0.2, 0.4, 0.4))
    doubled = weighed(InverseProbability(), samples=[2, 2, 4], chances=[0.5, 0.25, 0.5], weights=[2, 1, 1])
    close(doubled, f64(2 / 6, 2 / 6, 2 / 6))


def test_chances_that_follow_sizes_make_nearly_equal_weights():
    sizes = np.random.default_rng(0).integers(10, 100, 200)
    chances = chances_by_size(sizes.astype(float), 10)
    weights = weighed(InverseProbability(), samples=sizes.tolist(), chances=chances).numpy()
    assert weights == pytest.approx(
        1 / 200, rel=0.05
    )  # where few of many are drawn, chances are in proportion to sizes
    assert np.corrcoef(weights, sizes)[0, 1] > 0.9  # less than that for large clients, which cannot be drawn twice


@pytest.mark.parametrize("selector", [Random(), BySize()])
def test_the_weighted_mean_is_that_of_all_clients_on_average(selector):
    """A quantity that grows with a client's size: its mean by size over everybody is what is wanted."""
    rng = np.random.default_rng(1)
    sizes = rng.integers(1, 30, 40)
    values = f64(*(sizes + rng.normal(size=40)))[:, None]
    truth = float((sizes / sizes.sum()) @ values[:, 0].numpy())
    means = {InverseProbability: [], Uniform: [], SizeWeighted: []}
    for round in range(500):
        view = view_of(sizes, k=10, round=round)
        asks = selector.select(None, view)
        drawn = [a.client for a in asks]
        told = Told(list(values[drawn]), samples=sizes[drawn].tolist(), chances=[a.chance for a in asks])
        for kind, seen in means.items():
            seen.append(float(kind().combine(None, view, model_of(0.0), told).total["update"]))
    error = {kind: abs(np.mean(seen) - truth) for kind, seen in means.items()}
    assert error[InverseProbability] < 0.03 * truth
    assert max(error.values()) > 0.1 * truth  # other weights are biased for one of the two selectors


@pytest.mark.parametrize("count", [1, 3, 10, 25])
def test_chances_by_size_are_those_of_the_draws(count):
    sizes, draws = np.random.default_rng(2).integers(1, 40, 30), 2000
    drawn = np.concatenate([draw_by_size(view_of(sizes, round=r), count) for r in range(draws)])
    share, chances = np.bincount(drawn, minlength=30) / draws, chances_by_size(sizes.astype(float), count)
    assert chances.sum() == pytest.approx(count, abs=1e-9)
    assert np.abs(share - chances).max() < 0.015 + 4 * np.sqrt(0.25 / draws)  # the formula is for many clients
    assert (np.diff(chances[np.argsort(sizes)]) >= 0).all()


@pytest.mark.parametrize(
    ("sizes", "count", "expected"),
    [((4, 4, 4, 4), 2, (0.5,) * 4), ((3, 1, 9), 3, (1, 1, 1)), ((3, 0, 9), 2, (1, 0, 1)), ((3, 1), 5, (1, 1))],
)
def test_chances_that_are_known_without_a_formula(sizes, count, expected):
    assert chances_by_size(np.array(sizes, dtype=float), count) == pytest.approx(expected, abs=1e-12)


def test_chances_of_one_client_that_holds_nearly_everything():
    chances = chances_by_size(np.array([1e9, 1.0, 1.0, 1.0]), 2)
    assert chances == pytest.approx([1, 1 / 3, 1 / 3, 1 / 3], abs=1e-6)


@pytest.mark.parametrize("name", sorted(registry.names("selectors")))
def test_inverse_probability_asks_for_selectors_that_tell_chances(name):
    asked = {"method.selector": name, "method.combiner": "inverse-probability"}
    if name not in ("random", "size", "everyone"):
        with pytest.raises(RequestError, match=r"method\.combiner does not fit this plan: it needs the chance"):
            session_of(asked)
        return
    seen = run_of(session_of(asked))
    assert all(0 < ask.chance <= 1 for ask in seen.rounds[0][0].step.asks)
    assert sum(seen.weights[0].values()) == pytest.approx(1.0)


@pytest.mark.parametrize("method", ["stratify-single", "stratify-batch"])
def test_inverse_probability_does_not_follow_a_schedule(method):
    with pytest.raises(RequestError, match="side by side"):
        session_of({"method.name": method, "method.combiner": "inverse-probability"})
