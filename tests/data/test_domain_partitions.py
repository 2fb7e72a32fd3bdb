"""How samples are handed out, and partitions by domain."""

import numpy as np
import pytest
from dealing import DOMAINS, counts, deal, domain_data, held, sizes
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstrata import testing
from fedstrata.core import registry
from fedstrata.core.errors import RequestError
from fedstrata.data.partitions.concentrated import ConcentratedDomain
from fedstrata.data.partitions.dealing import apportion, cut, evenly, interleave
from fedstrata.data.partitions.dirichlet import DirichletDomain, top_up
from fedstrata.data.partitions.dirichlet_client import DirichletClient
from fedstrata.data.partitions.labels import DomainsPerClient
from fedstrata.data.partitions.mixed_alpha import MixedAlpha
from fedstrata.data.partitions.natural import Natural
from fedstrata.data.partitions.quantity import Quantity
from fedstrata.data.partitions.shards import Shards


def test_the_list_is_that_of_the_design():
    assert set(registry.names("partitions")) == {
        "iid",
        "labels-per-client",
        "domains-per-client",
        "concentrated-domain",
        "dirichlet-class",
        "dirichlet-client",
        "dirichlet-domain",
        "mixed-alpha",
        "shards",
        "quantity",
        "natural",
        "flwr",
    }


@pytest.mark.parametrize(
    "partition",
    [
        DomainsPerClient(unowned="drop"),
        DomainsPerClient(domains=2, unowned="round-robin"),
        DomainsPerClient(domains=20),
        ConcentratedDomain(),
        DirichletDomain(alpha=0.001, balance=False, min_size=1),
        DirichletClient(alpha=1e-6, use_all=True),
        DirichletClient(sizes=1, prior="uniform"),
        DirichletClient(prior=(0.0, 0.0, 1.0, 2.0, 0.0)),
        MixedAlpha(alphas=(0.001,)),
        MixedAlpha(alphas=(1.0, 1e-6, 1e9), max_tries=1),
        Shards(shards=3, remainder="drop"),
        Shards(shards=20),
        Quantity(beta=1e-6, min_size=20),
        Quantity(beta=1e9, min_size=0),
        Natural(min_samples=8),
    ],
)
def test_conformance_with_other_options(partition):
    testing.check_partition(partition)


# ---- how samples are handed out ----------------------------------------------------------------------------------


def test_shares_that_sum_to_more_or_less_than_one_by_rounding_lose_nothing():
    table = cut(np.array([[0.1] * 10, [0.5, 0.5 + 2e-9] + [0.0] * 8]), np.array([7, 10**9]))
    assert table.sum(1).tolist() == [7, 10**9]
    assert (table >= 0).all()


def test_even_parts_by_hand():
    owns = np.array([[True, False], [True, True], [True, False]])
    assert evenly(np.array([7, 5]), owns).tolist() == [[3, 2, 2], [0, 5, 0]]


@pytest.mark.parametrize(
    ("weights", "total", "expected"), [([1, 1, 1], 10, [4, 3, 3]), ([1, 2], 6, [2, 4]), ([3, 1, 1], 7, [4, 2, 1])]
)
def test_apportioning_by_hand(weights, total, expected):
    """3 of 5 of 7 is 4.2, 1 of 5 is 1.4: the sample over goes to the first of the larger fractions."""
    assert apportion(np.array(weights), total).tolist() == expected


@given(
    table=st.lists(st.lists(st.integers(0, 9), min_size=4, max_size=4), min_size=1, max_size=4), least=st.integers(0, 9)
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_topping_up_is_moving_one_at_a_time_from_the_largest(table, least):
    start = np.array(table)
    least = min(least, int(start.sum()) // 4)
    expected, total = start.copy(), start.sum(0)
    for poor in np.flatnonzero(total < least):
        while total[poor] < least:
            rich = int(total.argmax())
            kind = int(expected[:, rich].argmax())
            expected[kind, rich] -= 1
            expected[kind, poor] += 1
            total = expected.sum(0)
    top_up(start, least)
    assert start.tolist() == expected.tolist()


@given(st.lists(st.tuples(st.integers(-1, 2), st.integers(0, 3)), max_size=60), st.integers(0, 9))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_every_stretch_of_an_interleaved_kind_has_its_mix(samples, seed):
    kinds, labels = (np.array([s[i] for s in samples], dtype=np.int64) for i in (0, 1))
    order = interleave(kinds, labels, np.random.default_rng(seed))
    assert sorted(order.tolist()) == np.flatnonzero(kinds >= 0).tolist()
    assert (np.diff(kinds[order]) >= 0).all()
    for kind in range(3):
        own = labels[order[kinds[order] == kind]]
        mix = np.bincount(own, minlength=4)
        for stop in range(len(own)):
            # Each label is off by less than one at a place; a stretch is cut by number, where all four may be off.
            assert (abs(np.bincount(own[:stop], minlength=4) - mix * stop / len(own)) < 4).all()


# ---- domains -----------------------------------------------------------------------------------------------------


def test_six_clients_with_one_of_six_domains_each_as_in_fedbss():
    train, test = domain_data(), domain_data(20, seed=1)
    dealt = deal(DomainsPerClient(), train, 6, test)
    assert held(dealt.train, train[1]) == [[d] for d in DOMAINS]
    assert held(dealt.test, test[1]) == [[d] for d in DOMAINS]
    assert sizes(dealt.train) == [120] * 6
    assert sizes(dealt.test) == [20] * 6


@pytest.mark.parametrize("unowned", ["error", "round-robin"])
@pytest.mark.parametrize("domains", [1, 2, 5, 6])
def test_every_client_holds_exactly_so_many_domains(domains, unowned):
    train = domain_data()
    own = held(deal(DomainsPerClient(domains, unowned), train, 12).train, train[1])
    assert [len(o) for o in own] == [domains] * 12
    if unowned == "error":
        assert all(DOMAINS[client % 6] in o for client, o in enumerate(own))


@pytest.mark.parametrize("domain", [None, DOMAINS[2]])
def test_one_domain_lies_with_one_client_and_the_others_are_spread_as_in_stratify(domain):
    (labels, groups), test = domain_data(), domain_data(20, seed=1)
    groups = np.where((groups == DOMAINS[4]) & (np.arange(len(groups)) % 2 == 0), DOMAINS[3], groups)  # now the largest
    apart = domain or DOMAINS[3]
    dealt = deal(ConcentratedDomain(domain), (labels, groups), 10, test)
    own, own_test = held(dealt.train, groups), held(dealt.test, test[1])
    others = sorted(set(DOMAINS) - {apart})
    assert own[0] == own_test[0] == [apart]
    assert sizes(dealt.train)[0] == (groups == apart).sum()
    assert sum(sizes(dealt.train)) == len(labels)
    assert all(set(o) <= set(others) for o in own[1:] + own_test[1:])
    assert max(sizes(dealt.train)[1:]) - min(sizes(dealt.train)[1:]) <= len(others)
    assert len(dealt.notes) == (domain is None)


@pytest.mark.parametrize(
    ("partition", "clients", "said"),
    [
        (ConcentratedDomain("mars"), 4, 'data.partition.domain = "mars"; allowed: '),
        (ConcentratedDomain(), 1, "data.clients = 1"),
    ],
)
def test_a_domain_that_cannot_be_concentrated_is_refused(partition, clients, said):
    with pytest.raises(RequestError, match=said):
        deal(partition, domain_data(), clients)


def test_a_domain_is_split_evenly_and_keeps_its_labels():
    train = domain_data(per_domain=101, domains=2)
    dealt = deal(DomainsPerClient(), train, 8)
    assert sizes(dealt.train) == [26, 26, 25, 25, 25, 25, 25, 25]  # 101 among 4: the first gets one more
    for client, own in enumerate(counts(dealt.train, train[0], 4)):
        whole = np.bincount(train[0][train[1] == DOMAINS[client % 2]], minlength=4)
        assert (abs(own - whole / 4) <= 2).all()


@pytest.mark.parametrize("alpha", [0.3, 100.0])
def test_dirichlet_over_domains_keeps_the_labels_of_each(alpha):
    train, test = domain_data(2000, domains=3), domain_data(400, domains=3, seed=1)
    dealt = deal(DirichletDomain(alpha=alpha), train, 5, test)
    for parts, (labels, groups) in ((dealt.train, train), (dealt.test, test)):
        assert sum(sizes(parts)) == len(labels)
        for domain in DOMAINS[:3]:
            whole = np.bincount(labels[groups == domain], minlength=4) / (groups == domain).sum()
            for rows in parts:
                own = labels[rows[groups[rows] == domain]]
                assert (abs(np.bincount(own, minlength=4) - whole * len(own)) < 4).all()
    shares = [counts(p, np.searchsorted(DOMAINS, g), 3) for p, (_, g) in ((dealt.train, train), (dealt.test, test))]
    assert abs(shares[0] / 2000 - shares[1] / 400).max() <= 1.1 / 400  # the same shares cut train and test


def test_dirichlet_over_domains_gets_more_even_with_alpha():
    train = domain_data(400)
    codes = np.searchsorted(DOMAINS, train[1])
    spread = [
        np.mean(
            [counts(deal(DirichletDomain(a, min_size=0), train, 6, seed=s).train, codes, 6).std() for s in range(9)]
        )
        for a in (0.01, 0.5, 100.0)
    ]
    assert spread == sorted(spread, reverse=True)
    assert spread[2] < 10 < spread[0]


def test_test_samples_of_a_domain_nobody_trains_on_are_left_out_and_listed():
    train, test = ([0, 1] * 20, ["a", "a", "b", "b"] * 10), ([0, 1, 0], ["a", "z", "0"])
    for partition in (DomainsPerClient(), DirichletDomain(), Natural()):
        dealt = deal(partition, train, 2, test)
        assert np.concatenate(dealt.test).tolist() == [0]
        assert any("2 test samples belong to no client" in n and "0, z" in n for n in dealt.notes)


@pytest.mark.parametrize("partition", [DomainsPerClient(), DirichletDomain(), Natural()])
def test_data_without_groups_is_refused(partition):
    with pytest.raises(RequestError, match="has no groups"):
        deal(partition, [0, 1] * 20, 2)
    with pytest.raises(RequestError, match="the test samples have none"):
        deal(partition, ([0, 1] * 20, ["a", "b"] * 20), 2, [0, 1])
