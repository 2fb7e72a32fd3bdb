"""Partitions by shard, size and group; impossible requests; properties of all."""

import numpy as np
import pytest
from dealing import counts, deal, domain_data, held, sizes
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedstrata.core import registry
from fedstrata.core.errors import RequestError
from fedstrata.data.federation import Federation
from fedstrata.data.partitions.concentrated import ConcentratedDomain
from fedstrata.data.partitions.dirichlet import DirichletDomain
from fedstrata.data.partitions.dirichlet_client import DirichletClient
from fedstrata.data.partitions.labels import DomainsPerClient
from fedstrata.data.partitions.mixed_alpha import MixedAlpha
from fedstrata.data.partitions.natural import Natural
from fedstrata.data.partitions.quantity import Quantity
from fedstrata.data.partitions.shards import Shards

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
        (Shards(), None, 'data.partition = "shards" needs data.clients'),
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
    "concentrated-domain": st.builds(ConcentratedDomain),
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
        case ConcentratedDomain():
            return clients > 1 < len(sizes)
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
    [
        DirichletDomain(),
        DirichletClient(),
        MixedAlpha(alphas=(0.1, 1.0)),
        Shards(),
        Quantity(),
        DomainsPerClient(2),
        ConcentratedDomain(),
    ],
)
def test_another_seed_is_another_deal(partition):
    first, second = (deal(partition, domain_data(), 6, seed=s).train for s in (0, 1))
    assert any(sorted(a.tolist()) != sorted(b.tolist()) for a, b in zip(first, second, strict=True))
