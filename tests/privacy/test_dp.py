"""Differential privacy: epsilons by hand, sensitivities attained and not exceeded, noise as it is accounted."""

from __future__ import annotations

import sys
from math import comb, exp, expm1, fsum, inf, log, sqrt

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import chisquare, kstest, norm
from sklearn.metrics import adjusted_rand_score

from fedstrata import RequestError
from fedstrata.methods.selectors.clusters import find_clusters, nearest
from fedstrata.privacy import accounting
from fedstrata.privacy.accounting import Accountant, FixedSize, Fraction
from fedstrata.privacy.histograms import NoisyHistograms
from fedstrata.privacy.noise import at_most_one, central_noise, clip_update, local_noise


def by_hand(sigma, delta):
    """Return the epsilon of a Gaussian mechanism of sensitivity 1: Balle and Wang, 2018, Theorem 8."""

    def excess(epsilon):
        a, b = 1 / (2 * sigma), epsilon * sigma
        return norm.cdf(a - b) - exp(epsilon + norm.logcdf(-a - b)) - delta

    return brentq(excess, 0, 5_000, xtol=1e-12) if excess(0) > 0 else 0.0


# ---- accounting


@pytest.mark.parametrize("noise", [0.6, 1.0, 4.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-3])
@pytest.mark.parametrize("rounds", [1, 7, 100])
def test_rounds_compose_to_one_gaussian_mechanism(noise, delta, rounds):
    central, local = Accountant(noise, delta), Accountant(noise, delta, local=True)
    assert central.epsilon(rounds) == pytest.approx(by_hand(noise / sqrt(rounds), delta), rel=1e-6)
    assert local.epsilon(rounds) == pytest.approx(by_hand(noise / 2 / sqrt(rounds), delta), rel=1e-6)


def test_a_known_epsilon():
    assert Accountant(1.0, 1e-5).epsilon(1) == pytest.approx(4.3772, abs=1e-4)


def test_who_draws_everybody_gains_nothing():
    assert Accountant(1.3, 1e-5, FixedSize(9, 9)).epsilon(4) == Accountant(1.3, 1e-5, local=True).epsilon(4)
    assert Accountant(1.3, 1e-5, Fraction(1.0)).epsilon(4) == Accountant(1.3, 1e-5).epsilon(4)


def renyi_by_hand(q, sigma, delta, rounds):
    """Bound the epsilon as in Wang et al., 2019, Theorem 9, with Mironov's conversion: looser than what is used."""
    epsilons = []
    for order in range(2, 65):
        at = lambda j: j / (2 * sigma**2)  # noqa: E731
        inner = 1 + q**2 * comb(order, 2) * min(4 * expm1(at(2)), 2 * exp(at(2)))
        with np.errstate(over="ignore"):
            inner += fsum(q**j * comb(order, j) * 2 * float(np.exp((j - 1) * at(j))) for j in range(3, order + 1))
        epsilons.append(rounds * log(inner) / (order - 1) + log(1 / delta) / (order - 1))
    return min(epsilons)


def least_by_hand(q, sigma, delta, apart):
    """Return the epsilon of one round of two neighbours: with probability q an update is drawn that was replaced."""
    x = np.linspace(-12 * sigma - 2, 12 * sigma + 2, 200_001)
    zero = norm.pdf(x, 0, sigma)
    p = (1 - q) * zero + q * norm.pdf(x, 1, sigma)
    other = (1 - q) * zero + q * norm.pdf(x, 1 - apart, sigma)
    width = x[1] - x[0]
    return brentq(lambda e: np.maximum(p - exp(e) * other, 0).sum() * width - delta, 0, 50)


@pytest.mark.parametrize(("k", "of", "noise"), [(10, 100, 2.0), (5, 500, 2.5), (50, 100, 4.0)])
def test_drawing_without_replacement_is_between_what_neighbours_attain_and_the_printed_bound(k, of, noise):
    accountant = Accountant(noise, 1e-5, FixedSize(k, of))
    assert least_by_hand(k / of, noise, 1e-5, apart=2) < accountant.epsilon(1) <= by_hand(noise / 2, 1e-5)
    for rounds in (1, 50):
        assert accountant.epsilon(rounds) <= renyi_by_hand(k / of, noise / 2, 1e-5, rounds) * (1 + 1e-9)
    gain = accountant.epsilon(50) / Accountant(noise, 1e-5, local=True).epsilon(50)
    assert gain < 0.5 if k / of <= 0.1 else gain <= 1


@pytest.mark.parametrize(("q", "noise"), [(0.01, 1.0), (0.1, 2.0)])
def test_drawing_each_client_by_chance_amplifies(q, noise):
    accountant = Accountant(noise, 1e-5, Fraction(q))
    assert least_by_hand(q, noise, 1e-5, apart=1) < accountant.epsilon(1)
    assert accountant.epsilon(100) < 0.5 * Accountant(noise, 1e-5).epsilon(100)


@pytest.mark.parametrize("sampling", [None, FixedSize(10, 200), Fraction(0.05)])
@pytest.mark.parametrize("budget", [0.0, 0.5, 3.0, 20.0])
def test_the_budget_stops_at_the_right_round(sampling, budget):
    accountant = Accountant(3.0, 1e-5, sampling)
    rounds = accountant.rounds_within(budget)
    assert accountant.epsilon(rounds) <= budget < accountant.epsilon(rounds + 1)
    assert rounds or budget < 2


def test_epsilon_grows_with_rounds_and_falls_with_noise():
    spent = [Accountant(2.0, 1e-5, FixedSize(5, 100)).epsilon(t) for t in range(40)]
    assert spent[0] == 0
    assert (np.diff(spent) >= 0).all()
    assert (np.diff([Accountant(s, 1e-5).epsilon(10) for s in (0.5, 1, 2, 4)]) < 0).all()


def test_without_noise_there_is_no_privacy():
    for accountant in (Accountant(0, 1e-5), Accountant(0, 1e-5, FixedSize(2, 10)), Accountant(0, 1e-5, local=True)):
        assert accountant.epsilon(1) == inf
        assert accountant.rounds_within(1e9) == 0


def test_little_noise_is_a_large_number_and_no_failure():
    assert 1e3 < Accountant(0.01, 1e-5, FixedSize(2, 10)).epsilon(3) < inf


def test_an_epsilon_is_worked_out_once(monkeypatch):
    accountant = Accountant(1.7, 1e-6, FixedSize(3, 30))
    first = accountant.epsilon(12)
    monkeypatch.setattr(accounting, "library", None)
    assert accountant.epsilon(12) == first


def test_a_description_says_what_is_meant():
    assert "no amplification" in Accountant(1, 1e-5).describe()
    assert "added or removed" in Accountant(1, 1e-5).describe()
    sampled = Accountant(1, 1e-5, FixedSize(3, 30)).describe()
    assert "3 of 30" in sampled
    assert "replaced" in sampled
    assert "2 x clip" in sampled
    assert "every round" in Accountant(1, 1e-5, local=True).describe()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: Accountant(-1, 1e-5), "noise = -1"),
        (lambda: Accountant(float("nan"), 1e-5), "noise = nan"),
        (lambda: Accountant(1, 0), "delta = 0"),
        (lambda: Accountant(1, 1), "delta = 1"),
        (lambda: Accountant(1, 1e-5).epsilon(-1), "rounds = -1"),
        (lambda: Accountant(1, 1e-5).rounds_within(-1), "budget = -1"),
        (lambda: Accountant(1, 1e-5, FixedSize(2, 9), local=True), "local"),
        (lambda: FixedSize(5, 4), "k = 5"),
        (lambda: FixedSize(0, 4), "k = 0"),
        (lambda: Fraction(0), "q = 0"),
        (lambda: clip_update(np.ones(2), 0), "clip = 0"),
        (lambda: clip_update(np.ones(2), -3), "clip = -3"),
        (lambda: central_noise(2, -1, 1, np.random.default_rng()), "clip = -1"),
        (lambda: central_noise(2, 1, -1, np.random.default_rng()), "noise = -1"),
        (lambda: local_noise(2, 1, inf, np.random.default_rng()), "noise = inf"),
        (lambda: at_most_one(np.array([1.0, -0.5])), "not negative"),
        (lambda: NoisyHistograms(0), "epsilon = 0"),
        (lambda: NoisyHistograms(1).spent(-1), "tellings = -1"),
        (lambda: NoisyHistograms(-1), "epsilon = -1"),
    ],
)
def test_wrong_requests_are_refused(wrong, said):
    with pytest.raises(RequestError, match=said):
        wrong()


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(RequestError, match=r'pip install "fedstrata\[dp\]"'):
        Accountant(1, 1e-5)


# ---- clipping and noise


def length(update):
    return sqrt(fsum(float(u) ** 2 for u in update))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("clip", [0.1, 1.0, 30.0])
def test_clipping_is_exact(dtype, clip):
    rng = np.random.default_rng(0)
    for size in (1, 7, 5_000):
        update = (100 * rng.normal(size=size)).astype(dtype)
        short = clip_update(update, clip)
        assert short.dtype == dtype
        assert clip * (1 - 1e-6) < length(short) <= clip or length(update) <= clip
        assert np.allclose(short / length(short), update / length(update), atol=1e-6)


def test_a_short_update_stays_as_it_is_and_one_that_is_not_finite_becomes_zero():
    update = np.array([3.0, 4.0])
    assert clip_update(update, 5.0) is update
    for wrong in (np.nan, np.inf, -np.inf):
        assert clip_update(np.array([1.0, wrong], dtype=np.float32), 5.0).tolist() == [0, 0]
    assert not clip_update(np.full(4, 1e300), 1.0).any()


def test_sensitivities_are_attained_and_not_exceeded():
    rng, clip = np.random.default_rng(1), 0.7
    updates = rng.normal(size=(6, 40)) * rng.lognormal(0, 2, (6, 1))
    weights, coefficient = at_most_one(rng.random(6))
    assert weights.max() == 1
    total = lambda us: sum(w * clip_update(u, clip) for w, u in zip(weights, us, strict=True))  # noqa: E731
    removed, replaced = [], []
    for i in range(6):
        for other in (0 * updates[i], -1e3 * updates[i], rng.normal(size=40)):
            changed = updates.copy()
            changed[i] = other
            (replaced if other.any() else removed).append(np.linalg.norm(total(changed) - total(updates)))
    assert max(removed) <= clip
    assert max(replaced) <= 2 * clip
    loudest = np.where(np.arange(6)[:, None] == weights.argmax(), 100 * updates, updates)
    opposite = np.where(np.arange(6)[:, None] == weights.argmax(), -100 * updates, updates)
    assert np.linalg.norm(total(loudest) - total(opposite)) == pytest.approx(2 * clip)
    assert coefficient > 0


@pytest.mark.parametrize("draw", [central_noise, local_noise])
def test_noise_has_the_variance_that_is_accounted(draw):
    clip, multiplier = 0.3, 1.7
    noise = draw((200, 100), clip, multiplier, np.random.default_rng(5))
    assert noise.shape == (200, 100)
    assert kstest(noise.ravel(), norm(0, clip * multiplier).cdf).pvalue > 0.01
    accountant = Accountant(multiplier, 1e-5, local=draw is local_noise)
    reached = noise.std() / (clip * accountant.sensitivity)
    assert reached == pytest.approx(accountant.effective, rel=0.02)


def test_noise_is_a_function_of_the_generator_and_none_of_it_is_zero():
    a, b, c = (central_noise(5, 1.0, 1.0, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)
    assert not central_noise(5, 1.0, 0.0, np.random.default_rng(0)).any()


# ---- histograms


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_geometric_noise_falls_by_e_to_the_epsilon(epsilon):
    many, most = 200_000, 6
    noise = NoisyHistograms(epsilon).told(np.full((many, 1), 1_000), np.random.default_rng(3))[:, 0] - 1_000
    heard = np.array([(noise == n).sum() for n in range(-most, most + 1)])
    chance = np.exp(-epsilon * np.abs(np.arange(-most, most + 1))) * np.tanh(epsilon / 2)
    expected = np.append(many * chance, many * (1 - chance.sum()))
    enough = expected > 20
    heard = np.append(heard, many - heard.sum())
    assert chisquare(heard[enough], expected[enough] * heard[enough].sum() / expected[enough].sum()).pvalue > 0.01


def test_laplace_noise_has_the_scale_of_one_sample():
    noise = NoisyHistograms(0.8, whole=False).told(np.full(20_000, 1e3), np.random.default_rng(3)) - 1e3
    assert kstest(noise, "laplace", (0, 1 / 0.8)).pvalue > 0.01


@pytest.mark.parametrize("whole", [True, False])
def test_told_counts_are_never_negative_and_never_nothing(whole):
    told = NoisyHistograms(0.3, whole).told(np.tile([0, 1, 0], (400, 1)), np.random.default_rng(0))
    assert (told >= 0).all()
    assert told.any(1).all()
    assert (told == 1).all(1).any()
    assert told.dtype == (np.int64 if whole else np.float64)


def test_epsilon_of_histograms_adds_up_over_tellings_only():
    histograms = NoisyHistograms(0.5)
    assert [histograms.spent(t) for t in (0, 1, 4)] == [0, 0.5, 2.0]
    assert "2-differential" in histograms.describe(4)


def kinds(seed, clients=200, many=10, labels=10, samples=300):
    """Return label counts of clients of clear kinds, and the kinds: each prefers labels of its own."""
    rng = np.random.default_rng(seed)
    mixes = rng.dirichlet(np.full(labels, 0.3), many)
    kind = np.arange(clients) % many
    return np.array([rng.multinomial(samples, mixes[k]) for k in kind]), kind


def agreement(shares, kind, seed):
    shares = shares / np.maximum(shares.sum(1, keepdims=True), 1e-9)
    found = find_clusters(shares, 10, "curvature", 10, np.random.default_rng(seed), lambda *_, **__: None)
    return adjusted_rand_score(kind, nearest(shares, found.centres))


@pytest.mark.parametrize("seed", range(3))
def test_clusters_survive_noise_for_samples_but_not_noise_for_parties(seed):
    counts, kind = kinds(seed)
    rng = np.random.default_rng(seed)
    assert agreement(NoisyHistograms(1.0).told(counts, rng), kind, seed) > 0.9
    shares = counts / counts.sum(1, keepdims=True)  # of any two parties, at most 2 apart
    noisy = np.maximum(shares + rng.laplace(0, 2 / 8.0, shares.shape), 0)
    assert agreement(noisy, kind, seed) < 0.5
