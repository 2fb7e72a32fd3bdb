"""Partitions by Dirichlet draws, by class, by client and with mixed alphas: their laws, and that they end."""

from itertools import pairwise

import numpy as np
import pytest
from dealing import counts, deal, held, sizes
from scipy.stats import beta as beta_law
from scipy.stats import kstest

from fedstrata.data.partitions.dirichlet import DirichletClass, drawn
from fedstrata.data.partitions.dirichlet_client import DirichletClient
from fedstrata.data.partitions.mixed_alpha import MixedAlpha, slice_evenly
from fedstrata.data.partitions.shards import Shards

# ---- Dirichlet by class and by client ----------------------------------------------------------------------------


def test_shares_of_a_class_follow_the_dirichlet_law():
    """Without balance, a client's share of a class is Beta(alpha, (N - 1) alpha), independent from class to class."""
    alpha, clients, labels = 0.5, 5, np.arange(8000) % 4
    partition = DirichletClass(alpha=alpha, balance=False, min_size=0)
    shares = np.array([counts(deal(partition, labels, clients, seed=s).train, labels, 4) / 2000 for s in range(250)])
    assert shares.mean((0, 2)) == pytest.approx([1 / clients] * clients, abs=0.03)
    assert shares.var() == pytest.approx((1 / clients) * (1 - 1 / clients) / (clients * alpha + 1), rel=0.1)
    assert kstest(shares[:, 2].ravel(), beta_law(alpha, (clients - 1) * alpha).cdf).pvalue > 0.001
    between = np.corrcoef(shares[:, 0, 0], shares[:, 1, 0])[0, 1]
    assert between == pytest.approx(-1 / (clients - 1), abs=0.15)  # shares add up to 1
    assert abs(np.corrcoef(shares[:, 0, 0], shares[:, 0, 1])[0, 1]) < 0.2


@pytest.mark.parametrize(("prior", "expected"), [("global", [0.1, 0.2, 0.7]), ("uniform", [1 / 3] * 3)])
def test_mixes_of_clients_follow_the_dirichlet_law(prior, expected):
    """A mix of n draws is Dirichlet-multinomial: variance p (1 - p) / n * (n + alpha) / (1 + alpha)."""
    labels, alpha, size = np.repeat([0, 1, 2], [2000, 4000, 14000]), 2.0, 50
    partition = DirichletClient(alpha=alpha, prior=prior, sizes=size)
    mixes = np.concatenate([counts(deal(partition, labels, 8, seed=s).train, labels, 3) / size for s in range(60)])
    p = np.array(expected)
    assert mixes.mean(0) == pytest.approx(p, abs=0.04)
    assert mixes.var(0) == pytest.approx(p * (1 - p) / size * (size + alpha) / (1 + alpha), rel=0.15)


@pytest.mark.parametrize("alpha", [1e-9, 0.001, 0.1, 1e9])
def test_a_class_that_runs_out_is_replaced_by_the_others(alpha):
    labels = np.repeat([0, 1, 2], [5, 200, 95])
    dealt = deal(DirichletClient(alpha=alpha, prior=(1.0, 0.0, 0.0)), labels, 10)  # all want label 0 alone
    assert sizes(dealt.train) == [30] * 10
    assert counts(dealt.train, labels, 3).sum(0).tolist() == [5, 200, 95]


def test_large_alpha_gives_every_client_the_prior():
    labels = np.repeat([0, 1], [3000, 9000])
    mixes = counts(deal(DirichletClient(alpha=1e9, sizes=1000), labels, 5).train, labels, 2) / 1000
    assert abs(mixes[:, 0] - 0.25).max() < 0.06  # four times the deviation of a binomial draw


def test_small_alpha_gives_every_client_one_label():
    labels = np.arange(10000) % 10
    own = held(deal(DirichletClient(alpha=0.001, sizes=20), labels, 30).train, labels)
    assert np.mean([len(o) for o in own]) < 1.1


def test_left_over_samples_stay_unused_unless_asked_for():
    labels = np.arange(103) % 3
    rest = deal(DirichletClient(), labels, 10)
    assert sizes(rest.train) == [10] * 10
    assert any("3 samples are left over" in n for n in rest.notes)
    full = deal(DirichletClient(use_all=True), labels, 10)
    assert sorted(np.concatenate(full.train).tolist()) == list(range(103))
    assert sizes(full.train) == [11] * 3 + [10] * 7
    assert not full.notes


def test_given_sizes_are_kept_or_scaled():
    labels = np.arange(100) % 4
    assert sizes(deal(DirichletClient(sizes=(1, 2, 7)), labels, 3).train) == [1, 2, 7]
    assert sizes(deal(DirichletClient(sizes=(1, 2, 7), use_all=True), labels, 3).train) == [10, 20, 70]


def test_clients_are_tested_on_the_mix_they_train_on():
    labels, test = np.arange(4000) % 4, np.arange(800) % 4
    for partition in (DirichletClient(alpha=0.5, use_all=True), Shards(shards=2)):
        dealt = deal(partition, labels, 5, test)
        assert (abs(counts(dealt.train, labels, 4) / 5 - counts(dealt.test, test, 4)) <= 1).all()


def test_a_test_label_that_nobody_trains_on_is_left_out_and_listed():
    dealt = deal(DirichletClient(), np.arange(40) % 2, 4, [0, 1, 2, 2])
    assert sorted(np.concatenate(dealt.test).tolist()) == [0, 1]
    assert any("2 test samples belong to no client: nobody trains on labels [2]" in n for n in dealt.notes)


@pytest.mark.parametrize("clients", [100, 2000])
def test_alpha_of_a_tenth_with_balance_ends(clients):
    """Other libraries draw for ever; with many clients there is no hope, and drawing ends early."""
    labels = np.arange(20 * clients) % 10
    dealt = deal(DirichletClass(alpha=0.1, balance=True), labels, clients)
    assert min(sizes(dealt.train)) == 10
    assert sorted(np.concatenate(dealt.train).tolist()) == list(range(20 * clients))
    assert any("some were moved" in n for n in dealt.notes)


def test_drawing_goes_on_while_there_is_hope():
    draws = []

    def draw():
        draws.append(1)
        good = len(draws) == 37
        return np.full((1, 4), 0.25) if good else np.array([[1.0, 0.0, 0.0, 0.0]])

    tables, notes = drawn(draw, [(np.array([40]), 10), (np.array([8]), 0)], 1000)
    assert [t.tolist() for t in tables] == [[[10] * 4], [[2] * 4]]
    assert (len(draws), notes) == (37, [])
    draws.clear()
    tables, notes = drawn(draw, [(np.array([40]), 10)], 20)
    assert tables[0].tolist() == [[10] * 4]
    assert (len(draws), notes) == (20, ["no draw of 20 gave every client 10 samples; some were moved"])


# ---- mixed alpha -------------------------------------------------------------------------------------------------


def test_mean_labels_per_client_are_those_of_the_table():
    alphas, expected = (0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5), [1.04, 1.1, 1.4, 2.1, 3.6, 5.6, 8.4]
    labels, test = np.arange(70000) % 10, np.arange(14000) % 10  # 1000 samples a class and group, as of CIFAR-10
    seen = []
    for seed in range(25):
        dealt = deal(MixedAlpha(alphas=alphas), labels, 70, test, seed)
        kinds = (counts(dealt.train, labels, 10) > 0).sum(1)
        seen.append(kinds.reshape(7, 10).mean(1))
        assert min(sizes(dealt.train)) >= 200
        assert min(sizes(dealt.test)) >= 40
    assert np.mean(seen, axis=0) == pytest.approx(expected, rel=0.12)


@pytest.mark.parametrize(("clients", "members"), [(10, [4, 3, 3]), (11, [4, 4, 3]), (12, [4] * 3), (3, [1] * 3)])
def test_groups_are_consecutive_and_the_first_get_one_more(clients, members):
    labels, test = np.arange(1200) % 4, np.arange(240) % 4
    dealt = deal(MixedAlpha(alphas=(0.1, 1.0, 10.0)), labels, clients, test)
    ends = np.cumsum([0, *members])
    for parts, of, slice_size in ((dealt.train, labels, 100), (dealt.test, test, 20)):
        by_group = [counts(parts[a:b], of, 4).sum(0) for a, b in pairwise(ends)]
        assert np.array(by_group).tolist() == [[slice_size] * 4] * 3
        assert min(sizes(parts)) >= int(0.2 * len(of) / clients)


def test_slices_differ_by_one_and_so_do_groups():
    assert slice_evenly(np.array([5, 5, 6]), 3).tolist() == [[2, 2, 1], [2, 1, 2], [2, 2, 2]]
    sizes = np.random.default_rng(0).integers(0, 50, 20)
    assert slice_evenly(sizes, 7).sum(1).tolist() == sizes.tolist()
    assert np.ptp(slice_evenly(sizes, 7).sum(0)) <= 1


def test_groups_of_mixed_alpha_are_skewed_by_their_own_alpha():
    labels = np.arange(4000) % 10
    kinds = (counts(deal(MixedAlpha(alphas=(0.001, 100.0)), labels, 20).train, labels, 10) > 0).sum(1)
    assert kinds[:10].mean() < 1.6
    assert kinds[10:].tolist() == [10] * 10
