"""FedBSS under wrong labels: how many biased samples the last epoch may use, and who finds that out."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from fedstrata.core.client_context import SampleScores
from fedstrata.core.rng import Streams
from fedstrata.methods.samplers.bias_aware import BiasAware, seem_wrong
from fedstrata.testing import check_sampler
from fedstrata.testing.tiny import run_rounds, same, session_of


def mixed(seed, right=70, wrong=30):
    """Return losses of right and of wrong labels, in any order, and which are which."""
    rng = np.random.default_rng(seed)
    losses = np.concatenate([rng.exponential(0.3, right), rng.normal(4.0, 0.7, wrong)])
    order = rng.permutation(right + wrong)
    return losses[order], (np.arange(right + wrong) >= right)[order]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("wrong", [8, 30, 60])
def test_wrong_labels_are_found_where_losses_fall_into_two_groups(seed, wrong):
    losses, truth = mixed(seed, wrong=wrong)
    assert (seem_wrong(losses) == truth).mean() > 0.95


def test_losses_of_one_group_are_all_right():
    """In most draws of 70: a mixture that always finds two would leave out what is only hard."""
    rng = np.random.default_rng(0)
    cut = [seem_wrong(rng.exponential(0.5, 70)).mean() for _ in range(40)]
    assert np.mean(cut) < 0.05


@pytest.mark.parametrize(
    "losses", [[], [0.3], [0.5] * 9, [0.0] * 9, [0.1, 9.0], [0.1, np.nan, 3.0, 4.0], [0.0] * 8 + [1e-12]], ids=str
)
def test_what_says_nothing_leaves_nothing_out(losses):
    assert not seem_wrong(np.array(losses, dtype=np.float32)).any()


def seen_of(losses):
    """Let the sample of the lowest loss be the one that the model is least sure about: all others are biased."""
    probabilities = np.tile([0.9, 0.1], (len(losses), 1))
    probabilities[np.argmin(losses)] = 0.5
    return SampleScores(np.array(losses), probabilities)


def sizes_of(sampler, losses, epochs=4):
    """Return how many samples each epoch has, beside the unbiased one."""
    context = SimpleNamespace(
        client=SimpleNamespace(samples=len(losses), speed=1.0),
        task=SimpleNamespace(round=5),
        rounds=10,
        epochs=epochs,
        batch_size=4,
        score_samples=lambda: seen_of(losses),
        rng=Streams(0),
    )
    order = sampler.plan(context)
    return [len(epoch) - 1 for epoch in order.epochs], order


@pytest.mark.parametrize(
    ("ceiling", "expected"),
    [(1.0, [2, 10, 17, 20]), (0.5, [1, 5, 8, 10]), (0.0, [0, 0, 0, 0])],  # a_e = .146, .5, .854, 1 of twenty, of ten
)
def test_a_fixed_ceiling_by_hand(ceiling, expected):
    sizes, order = sizes_of(BiasAware(warmup=0, ceiling=ceiling), np.linspace(0.1, 2.1, 21))
    assert sizes == expected
    assert order.epochs[-1].max(initial=0) == expected[-1]  # those of small loss are taken
    assert "ceiling" not in order.metrics


def test_the_mixture_sets_the_ceiling():
    """Twenty right labels, of which one is unbiased, and ten wrong ones: 19 of 29 biased samples may be used."""
    losses, truth = mixed(0, right=20, wrong=10)
    assert (seem_wrong(losses) == truth).all()
    sizes, order = sizes_of(BiasAware(warmup=0, ceiling="mixture"), losses)
    assert sizes == [2, 9, 16, 19]
    assert not truth[order.epochs[-1]].any()
    assert order.metrics["ceiling"] == 19 / 29


def test_ceilings_of_one_and_zero_are_what_there_was():
    asked = {"method.name": "fedbss", "method.sampler.warmup": 0}

    def state(**options):
        return run_rounds(session_of({**asked, **{f"method.sampler.{key}": value for key, value in options.items()}}))[
            0
        ]

    assert same(state(), state(ceiling=1.0))
    assert same(state(growth="filter"), state(ceiling=0.0))
    assert not same(state(), state(ceiling=0.3))


@pytest.mark.parametrize("ceiling", [0.4, "mixture"])
def test_it_passes_the_suite_of_samplers(ceiling):
    check_sampler(BiasAware(warmup=0, ceiling=ceiling))
