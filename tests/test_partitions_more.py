"""Partitions by domain, client, shard, size and group: oracles, properties and statistics of part D."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import beta as beta_law
from scipy.stats import kstest

from fedstrata import testing
from fedstrata.core import registry
from fedstrata.core.errors import RequestError
from fedstrata.core.rng import Streams
from fedstrata.data.federation import Federation
from fedstrata.data.partitions.base import Labelled
from fedstrata.data.partitions.dealing import apportion, cut, evenly, interleave
from fedstrata.data.partitions.dirichlet import DirichletClass, DirichletDomain, _top_up, drawn
from fedstrata.data.partitions.dirichlet_client import DirichletClient
from fedstrata.data.partitions.labels import DomainsPerClient
from fedstrata.data.partitions.mixed_alpha import MixedAlpha, _slices
from fedstrata.data.partitions.natural import Natural
from fedstrata.data.partitions.quantity import Quantity
from fedstrata.data.partitions.shards import Shards


def labelled(labels, groups=None):
    return Labelled(np.asarray(labels, dtype=np.int64), None if groups is None else np.asarray(groups))


def deal(partition, train, clients, test=None, seed=0):
    """Samples are labels, or a pair of labels and groups."""
    train, test = (labelled(*(of if isinstance(of, tuple) else (of,))) for of in (train, [] if test is None else test))
    return partition.deal(train, test, clients, Streams(seed)("partition"))


def sizes(parts):
    return [len(p) for p in parts]


def counts(parts, kinds, number):
    return np.array([np.bincount(np.asarray(kinds)[p], minlength=number) for p in parts])


def held(parts, names):
    return [sorted(set(np.asarray(names)[p].tolist())) for p in parts]


def test_the_list_is_that_of_the_design():
    assert set(registry.names("partitions")) == {
        "iid",
        "labels-per-client",
        "domains-per-client",
        "dirichlet-class",
        "dirichlet-client",
        "dirichlet-domain",
        "mixed-alpha",
        "shards",
        "quantity",
        "natural",
    }


@pytest.mark.parametrize(
    "partition",
    [
        DomainsPerClient(unowned="drop"),
        DomainsPerClient(domains=2, unowned="round-robin"),
        DomainsPerClient(domains=20),
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
    _top_up(start, least)
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

DOMAINS = np.array(["art", "cartoon", "clipart", "photo", "quick", "sketch"])


def domain_data(per_domain=120, classes=4, domains=6, seed=0):
    rng = np.random.default_rng(seed)
    groups = rng.permutation(np.repeat(DOMAINS[:domains], per_domain))
    return rng.choice(classes, p=np.arange(1, classes + 1) / sum(range(classes + 1)), size=len(groups)), groups


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
    assert _slices(np.array([5, 5, 6]), 3).tolist() == [[2, 2, 1], [2, 1, 2], [2, 2, 2]]
    sizes = np.random.default_rng(0).integers(0, 50, 20)
    assert _slices(sizes, 7).sum(1).tolist() == sizes.tolist()
    assert np.ptp(_slices(sizes, 7).sum(0)) <= 1


def test_groups_of_mixed_alpha_are_skewed_by_their_own_alpha():
    labels = np.arange(4000) % 10
    kinds = (counts(deal(MixedAlpha(alphas=(0.001, 100.0)), labels, 20).train, labels, 10) > 0).sum(1)
    assert kinds[:10].mean() < 1.6
    assert kinds[10:].tolist() == [10] * 10


# ---- shards ------------------------------------------------------------------------------------------------------


def test_twelve_samples_for_three_clients_make_six_shards_of_two():
    labels = np.array([0, 1, 2] * 4)
    dealt = deal(Shards(shards=2), labels, 3)
    assert sizes(dealt.train) == [4] * 3
    assert (counts(dealt.train, labels, 3) % 2 == 0).all()  # 4 samples a label are two whole shards


@pytest.mark.parametrize(("remainder", "total", "largest"), [("append", 23, 11), ("drop", 18, 6)])
def test_samples_that_fill_no_shard(remainder, total, largest):
    dealt = deal(Shards(shards=2, remainder=remainder), np.arange(23) % 2, 3)  # six shards of three, five over
    assert sum(sizes(dealt.train)) == total
    assert sorted(sizes(dealt.train)) == sorted([6, 6, largest])
    assert [n for n in dealt.notes if "5 samples were left out" in n] == list(dealt.notes)
    assert len(dealt.notes) == (remainder == "drop")


def test_clients_hold_at_most_so_many_labels_as_shards():
    labels = np.arange(6000) % 10
    for shards in (2, 4, 8):
        own = held(deal(Shards(shards=shards), labels, 30).train, labels)  # 600 a label: shards end where labels do
        assert max(len(o) for o in own) <= shards
        assert min(len(o) for o in own) < shards or shards == 2


# ---- quantity ----------------------------------------------------------------------------------------------------


def test_sizes_follow_the_dirichlet_law():
    beta, clients = 2.0, 4
    shares = np.array([sizes(deal(Quantity(beta, min_size=0), [0] * 2000, clients, seed=s).train) for s in range(400)])
    assert shares.mean(0) == pytest.approx([500] * 4, rel=0.1)
    assert (shares / 2000).var() == pytest.approx(0.25 * 0.75 / (clients * beta + 1), rel=0.1)


def test_clients_differ_in_size_and_not_in_mix():
    labels, test = np.arange(20000) % 4, np.arange(4000) % 4
    dealt = deal(Quantity(), labels, 10, test)
    assert max(sizes(dealt.train)) > 2 * min(sizes(dealt.train))
    large = [p for p in dealt.train if len(p) >= 1000]
    assert large
    assert abs(counts(large, labels, 4) / np.array([sizes(large)]).T - 0.25).max() < 0.06
    assert abs(np.array(sizes(dealt.train)) / 5 - sizes(dealt.test)).max() <= 1.2


@pytest.mark.parametrize("beta", [1e-6, 0.01, 0.5, 1e9])
def test_the_smallest_has_min_size(beta):
    dealt = deal(Quantity(beta, min_size=10, max_tries=5), [0] * 400, 30)
    assert min(sizes(dealt.train)) >= 10
    assert sum(sizes(dealt.train)) == 400


# ---- natural -----------------------------------------------------------------------------------------------------

WRITERS = ["b"] * 3 + ["a"] * 5 + ["d"] * 1 + ["c"] * 4


def test_a_client_is_a_group():
    train, test = ([0, 1] * 6 + [0], WRITERS), ([0, 1, 1], ["c", "a", "c"])
    dealt = deal(Natural(), train, None, test)
    assert held(dealt.train, WRITERS) == [["a"], ["b"], ["c"], ["d"]]
    assert sizes(dealt.train) == [5, 3, 4, 1]
    assert [p.tolist() for p in dealt.test] == [[1], [], [0, 2], []]
    assert not dealt.notes


def test_small_groups_are_left_out_and_listed():
    dealt = deal(Natural(min_samples=4), ([0, 1] * 6 + [0], WRITERS), None)
    assert held(dealt.train, WRITERS) == [["a"], ["c"]]
    assert list(dealt.notes) == ["2 groups (4 samples) were left out, having fewer than 4 training samples: b, d"]


def test_groups_are_merged_at_random_into_so_many_clients():
    groups = np.repeat([f"w{i}" for i in range(10)], 7)
    train = (np.arange(70) % 2, groups)
    merged = [held(deal(Natural(), train, 4, train, seed=s).train, groups) for s in range(3)]
    for own in merged:
        assert [len(o) for o in own] == [3, 3, 2, 2]
        assert sorted(name for o in own for name in o) == sorted(set(groups))
    assert merged[0] != merged[1]
    dealt = deal(Natural(), train, 4, train)
    assert held(dealt.train, groups) == held(dealt.test, groups)


def test_numbers_serve_as_groups_and_a_federation_counts_its_clients():
    x, y = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32), np.arange(40) % 2
    federation = Federation.from_arrays(x, y, None, partition=Natural(), groups=np.arange(40) // 8)
    assert len(federation) == 5


# ---- impossible requests -----------------------------------------------------------------------------------------

PAIR = ([0, 1] * 20, ["a", "b", "c", "d"] * 10)


@pytest.mark.parametrize(
    ("partition", "clients", "said"),
    [
        (
            DomainsPerClient(domains=5),
            4,
            r"data.partition.domains = 5 but the data has 4 domains \(a, b, c, d\); lower",
        ),
        (DomainsPerClient(), 3, r"domains d belong to no client: 3 clients with 1 domains each.*unowned"),
        (DirichletDomain(min_size=11), 4, r"data.partition.min_size = 11 for 4 clients needs 44 .* are 40; lower"),
        (Quantity(min_size=11), 4, r"data.partition.min_size = 11 for 4 clients needs 44 .* are 40; lower"),
        (DirichletClient(sizes=11), 4, r"data.partition.sizes = 11 for 4 clients needs 44 samples.* are 40; lower"),
        (DirichletClient(sizes=(1, 40)), 2, r"data.partition.sizes = \[1, 40\] for 2 clients needs 41 samples"),
        (DirichletClient(sizes=(1, 2)), 3, r"data.partition.sizes = \[1, 2\] gives 2 sizes for 3 clients; give one"),
        (DirichletClient(prior=(1.0,)), 3, r"data.partition.prior = \[1.0\] has 1 numbers.* 2 classes; give one"),
        (DirichletClient(prior=(0.0, 0.0)), 3, r"data.partition.prior = .* is 0 for every class.*give one a weight"),
        (MixedAlpha(alphas=(1.0, 2.0)), 1, r"data.partition.alphas = \[1.0, 2.0\] makes 2 groups of 1 clients.*use"),
        (MixedAlpha(alphas=()), 4, r"data.partition.alphas = \[\] makes 0 groups"),
        (Shards(shards=11), 4, r"data.partition.shards = 11 for 4 clients needs 44 samples.* are 40; lower"),
        (Natural(min_samples=11), None, r"data.partition.min_samples = 11 leaves no group: the largest has 10 .*lower"),
        (Natural(), 5, r"data.clients = 5 but the data has 4 groups, which natural can merge but not split; lower"),
        (Natural(min_samples=3), 5, r"has 4 groups of at least data.partition.min_samples = 3, which"),
        (Shards(), None, "needs data.clients"),
        (Natural(), 0, "data.clients = 0 must be at least 1"),
    ],
)
def test_the_impossible_is_refused_with_the_key_the_value_and_a_way_out(partition, clients, said):
    with pytest.raises(RequestError, match=said):
        deal(partition, PAIR, clients)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mixed-alpha", {"alphas": [0.1, 0.0]}),
        ("dirichlet-client", {"sizes": [1, 0]}),
        ("dirichlet-client", {"prior": [-1.0]}),
        ("dirichlet-client", {"sizes": "all"}),
        ("shards", {"remainder": "keep"}),
        ("quantity", {"beta": 0}),
        ("natural", {"min_samples": -1}),
        ("domains-per-client", {"domains": 0}),
    ],
)
def test_options_out_of_range_are_refused(name, options):
    with pytest.raises(RequestError, match=f"data.partition.{next(iter(options))}.* is not valid; allowed"):
        registry.build("partitions", name, options, "data.partition")


# ---- properties of all -------------------------------------------------------------------------------------------

ALPHAS = st.sampled_from([1e-6, 0.001, 0.1, 1.0, 1000.0])
TRIES = st.integers(1, 20)
PARTITIONS = {
    "domains-per-client": st.builds(
        DomainsPerClient, domains=st.integers(1, 3), unowned=st.sampled_from(["drop", "error", "round-robin"])
    ),
    "dirichlet-domain": st.builds(
        DirichletDomain, alpha=ALPHAS, balance=st.booleans(), min_size=st.integers(0, 4), max_tries=TRIES
    ),
    "dirichlet-client": st.builds(
        DirichletClient,
        alpha=ALPHAS,
        sizes=st.sampled_from(["equal", 1, 3]),
        prior=st.sampled_from(["global", "uniform"]),
        use_all=st.booleans(),
    ),
    "mixed-alpha": st.builds(MixedAlpha, alphas=st.lists(ALPHAS, min_size=1, max_size=3).map(tuple), max_tries=TRIES),
    "shards": st.builds(Shards, shards=st.integers(1, 4), remainder=st.sampled_from(["append", "drop"])),
    "quantity": st.builds(Quantity, beta=ALPHAS, min_size=st.integers(0, 4), max_tries=TRIES),
    "natural": st.builds(Natural, min_samples=st.integers(0, 5)),
}


@st.composite
def requests(draw, kind):
    """Labels and groups with gaps, test samples that training does not know, any number of clients."""
    sample = st.tuples(st.integers(0, 4), st.sampled_from(["p", "q", "r", "s"]))
    train = draw(st.lists(sample, min_size=1, max_size=70))
    test = draw(st.lists(sample, max_size=30))
    partition = draw(PARTITIONS[kind])
    clients = draw(st.integers(1, min(12, len(train))) | (st.none() if partition.counts_clients else st.nothing()))
    both = (tuple(map(list, zip(*of, strict=True))) if of else ([], []) for of in (train, test))
    return partition, *both, clients, draw(st.integers(0, 5))


def possible(partition, train, clients):
    """Say whether a request can be met; None where the draw of owners decides."""
    sizes = np.unique(train[1], return_counts=True)[1]
    match partition:
        case DomainsPerClient():
            if partition.domains > len(sizes) or partition.unowned == "drop":
                return partition.domains <= len(sizes)
            enough = clients * partition.domains >= len(sizes)
            return enough if partition.unowned == "round-robin" or not enough or clients >= len(sizes) else None
        case DirichletDomain() | Quantity():
            return partition.min_size * clients <= len(train[0])
        case DirichletClient():
            return partition.sizes == "equal" or partition.sizes * clients <= len(train[0])
        case MixedAlpha():
            return len(partition.alphas) <= clients
        case Shards():
            return partition.shards * clients <= len(train[0])
        case Natural():
            return (sizes >= partition.min_samples).sum() >= (clients or 1)


def leaves_none_out(partition, train_labels, clients):
    if isinstance(partition, DirichletClient):
        return partition.use_all or (partition.sizes == "equal" and len(train_labels) % clients == 0)
    if isinstance(partition, Shards):
        return partition.remainder == "append"
    return not isinstance(partition, DomainsPerClient | Natural)


@pytest.mark.parametrize("kind", PARTITIONS)
@given(data=st.data())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_samples_are_dealt_at_most_once_none_is_lost_unsaid_and_the_seed_decides(kind, data):
    partition, train, test, clients, seed = data.draw(requests(kind))
    can = possible(partition, train, clients)
    assume(can is not None)
    if not can:
        with pytest.raises(RequestError, match=r"data\.partition\.|data\.clients"):
            deal(partition, train, clients, test, seed)
        return
    dealt, again = (deal(partition, train, clients, test, seed) for _ in range(2))
    for parts, same, (labels, groups) in ((dealt.train, again.train, train), (dealt.test, again.test, test)):
        assert [p.tolist() for p in parts] == [p.tolist() for p in same]
        assert len(parts) == (clients or len(parts))
        rows = np.concatenate(parts)
        assert rows.dtype.kind == "i"
        assert len(np.unique(rows)) == len(rows)
        assert np.isin(rows, np.arange(len(labels))).all()
        lost = np.setdiff1d(np.arange(len(labels)), rows)
        if len(lost):
            assert dealt.notes, "samples are left out and nothing says so"
        if isinstance(partition, DomainsPerClient | Natural):
            assert not set(np.array(groups)[rows].tolist()) & set(np.array(groups)[lost].tolist())  # whole or not
    if leaves_none_out(partition, train[0], clients):
        assert sum(sizes(dealt.train)) == len(train[0])
        assert counts(dealt.train, train[0], 5).sum(0).tolist() == np.bincount(train[0], minlength=5).tolist()
    if isinstance(partition, DirichletDomain | Quantity):
        assert min(sizes(dealt.train)) >= partition.min_size
    if isinstance(partition, MixedAlpha):
        assert min(sizes(dealt.train)) >= int(0.2 * len(train[0]) / clients)
        assert min(sizes(dealt.test)) >= int(0.2 * len(test[0]) / clients)


@pytest.mark.parametrize(
    "partition",
    [DirichletDomain(), DirichletClient(), MixedAlpha(alphas=(0.1, 1.0)), Shards(), Quantity(), DomainsPerClient(2)],
)
def test_another_seed_is_another_deal(partition):
    first, second = (deal(partition, domain_data(), 6, seed=s).train for s in (0, 1))
    assert any(sorted(a.tolist()) != sorted(b.tolist()) for a, b in zip(first, second, strict=True))
