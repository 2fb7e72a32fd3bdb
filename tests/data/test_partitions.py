"""Partitions: the oracles and properties of part D of the specification."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedstrata.core.errors import RequestError
from fedstrata.core.options import Positive
from fedstrata.core.rng import Streams
from fedstrata.data.federation import Federation
from fedstrata.data.partitions.base import Labelled
from fedstrata.data.partitions.dirichlet import DirichletClass
from fedstrata.data.partitions.iid import Iid
from fedstrata.data.partitions.labels import LabelsPerClient
from fedstrata.data.sets.digits import Digits

NONE = np.zeros(0, dtype=np.int64)


def deal(partition, labels, clients, test=NONE, seed=0):
    return partition.deal(Labelled(np.asarray(labels)), Labelled(np.asarray(test)), clients, Streams(seed)("partition"))


def counts(parts, labels, classes):
    return np.array([np.bincount(labels[p], minlength=classes) for p in parts])


def owned(deal, labels):
    return [np.unique(labels[p]).tolist() for p in deal.train]


# ---- iid ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples", "clients", "sizes"), [(10, 3, [4, 3, 3]), (12, 4, [3] * 4), (5, 5, [1] * 5), (7, 1, [7])]
)
def test_iid_sizes_differ_by_at_most_one(samples, clients, sizes):
    assert [len(p) for p in deal(Iid(), np.zeros(samples, int), clients).train] == sizes


def test_iid_shuffles():
    labels = np.repeat(np.arange(10), 100)
    parts = deal(Iid(), labels, 10).train
    assert all(len(own) == 10 for own in owned(deal(Iid(), labels, 10), labels))  # unshuffled, each would hold one
    assert not np.array_equal(np.concatenate(parts), np.arange(1000))


# ---- labels per client -------------------------------------------------------------------------------------------


def test_ten_clients_with_one_of_ten_labels_own_their_own():
    labels = np.arange(200) % 10
    dealt = deal(LabelsPerClient(labels=1), labels, 10, test=np.arange(50) % 10)
    assert owned(dealt, labels) == [[i] for i in range(10)]
    assert [len(p) for p in dealt.train] == [20] * 10
    assert [np.unique(p % 10).tolist() for p in dealt.test] == [[i] for i in range(10)]


@pytest.mark.parametrize("unowned", ["error", "round-robin"])
@pytest.mark.parametrize("c", [1, 2, 3, 5])
def test_every_client_holds_exactly_c_labels_and_the_first_is_its_own(c, unowned):
    labels = np.arange(500) % 5
    own = owned(deal(LabelsPerClient(labels=c, unowned=unowned), labels, 10), labels)
    assert [len(o) for o in own] == [c] * 10
    if unowned == "error":
        assert all(client % 5 in o for client, o in enumerate(own))


def test_a_label_is_split_evenly_among_its_owners():
    labels = np.array([0] * 7 + [1] * 6)
    sizes = [len(p) for p in deal(LabelsPerClient(labels=1), labels, 4).train]
    assert sizes == [4, 3, 3, 3]  # label 0 to clients 0 and 2, label 1 to 1 and 3


def test_round_robin_balances_the_owners():
    labels = np.arange(600) % 6
    own = owned(deal(LabelsPerClient(labels=2, unowned="round-robin"), labels, 9), labels)
    assert np.bincount(np.concatenate(own)).tolist() == [3] * 6


def test_labels_without_an_owner_are_refused_dropped_or_avoided():
    labels = np.arange(50) % 5
    with pytest.raises(RequestError, match=r"labels \[3, 4\] belong to no client: 3 clients with 1 labels.*unowned"):
        deal(LabelsPerClient(labels=1), labels, 3)
    dropped = deal(LabelsPerClient(labels=1, unowned="drop"), labels, 3)
    assert counts(dropped.train, labels, 5).sum(0).tolist() == [10, 10, 10, 0, 0]
    avoided = deal(LabelsPerClient(labels=2, unowned="round-robin"), labels, 3)
    assert counts(avoided.train, labels, 5).sum(0).tolist() == [10] * 5


def test_round_robin_does_not_lose_labels_silently():
    with pytest.raises(RequestError, match=r"labels \[2, 3, 4\] belong to no client"):
        deal(LabelsPerClient(labels=1, unowned="round-robin"), np.arange(50) % 5, 2)


def test_more_labels_than_there_are_is_refused():
    with pytest.raises(RequestError, match=r"labels = 4 but the data has 3 classes"):
        deal(LabelsPerClient(labels=4), np.arange(30) % 3, 5)


# ---- Dirichlet by class ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.001, 0.1, 100.0])
@pytest.mark.parametrize("least", [0, 1, 10, 20])
def test_the_smallest_client_has_min_size(alpha, least):
    labels = np.arange(200) % 4
    sizes = [len(p) for p in deal(DirichletClass(alpha=alpha, min_size=least, max_tries=3), labels, 10).train]
    assert min(sizes) >= least
    assert sum(sizes) == 200


def test_min_size_that_leaves_no_choice_gives_equal_sizes():
    sizes = [len(p) for p in deal(DirichletClass(alpha=0.001, min_size=20, max_tries=1), np.arange(200) % 4, 10).train]
    assert sizes == [20] * 10


def test_min_size_that_cannot_be_had_is_refused_with_the_sum():
    with pytest.raises(RequestError, match=r"min_size = 21 for 10 clients needs 210 samples, but there are 200"):
        deal(DirichletClass(min_size=21), np.arange(200) % 4, 10)


def test_large_alpha_is_nearly_iid_and_small_alpha_nearly_one_client_a_label():
    labels = np.arange(1000) % 5
    even = counts(deal(DirichletClass(alpha=1e6), labels, 4).train, labels, 5)
    assert (abs(even - 50) <= 1).all()
    skewed = counts(deal(DirichletClass(alpha=0.001, min_size=0, balance=False), labels, 4).train, labels, 5)
    assert (skewed.max(0) >= 190).all()


def test_balance_keeps_full_clients_from_growing():
    """A client stops at its fair share n/N, so it holds less than that plus one whole class."""
    labels, excess = np.arange(1000) % 10, []
    for balance in (True, False):
        partition = DirichletClass(alpha=0.05, balance=balance, min_size=0)
        largest = [max(len(p) for p in deal(partition, labels, 10, seed=s).train) for s in range(20)]
        excess.append(max(largest))
    assert excess[0] <= 200 < excess[1]


def test_the_test_set_is_cut_by_the_same_shares():
    labels, test = np.arange(1000) % 5, np.arange(200) % 5
    dealt = deal(DirichletClass(alpha=0.3, min_size=0), labels, 4, test)
    train_counts, test_counts = counts(dealt.train, labels, 5), counts(dealt.test, test, 5)
    assert (abs(train_counts / 5 - test_counts) <= 1.2).all()


def test_test_labels_that_do_not_occur_in_training_are_no_obstacle():
    dealt = deal(DirichletClass(min_size=0), [0, 0, 1, 1], 2, test=[0, 1, 2])
    assert np.sort(np.concatenate(dealt.test)).tolist() == [0, 1, 2]


def divergence(parts, labels, classes):
    """Mean KL(client || global) over the clients that hold data."""
    by_client = counts(parts, labels, classes)
    p = by_client[by_client.sum(1) > 0] / by_client[by_client.sum(1) > 0].sum(1, keepdims=True)
    q = np.bincount(labels, minlength=classes) / len(labels)
    return float((p * np.log(np.where(p > 0, p / q, 1.0))).sum(1).mean())


@pytest.mark.parametrize("balance", [True, False])
def test_divergence_from_the_global_mix_falls_with_alpha(balance):
    labels = np.arange(2000) % 10
    means = [
        np.mean(
            [
                divergence(deal(DirichletClass(alpha, balance, min_size=0), labels, 10, seed=s).train, labels, 10)
                for s in range(20)
            ]
        )
        for alpha in (0.01, 0.1, 1.0, 10.0, 100.0)
    ]
    assert means == sorted(means, reverse=True)
    assert means[0] > 1.0  # a single label is log(10) = 2.3
    assert means[-1] < 0.05


def test_a_divergence_worked_out_by_hand():
    labels = np.array([0, 0, 1, 1])
    assert divergence([np.array([0, 1]), np.array([2, 3])], labels, 2) == pytest.approx(np.log(2))
    assert divergence([np.array([0, 2]), np.array([1, 3])], labels, 2) == pytest.approx(0.0)


# ---- properties of all -------------------------------------------------------------------------------------------

PARTITIONS = {
    "iid": st.just(Iid()),
    "labels-per-client": st.builds(
        LabelsPerClient, labels=st.integers(1, 4), unowned=st.sampled_from(["drop", "error", "round-robin"])
    ),
    "dirichlet-class": st.builds(
        DirichletClass,
        alpha=st.sampled_from([0.001, 0.002, 0.1, 1.0, 1000.0]),
        balance=st.booleans(),
        min_size=st.integers(0, 4),
        max_tries=st.integers(1, 20),
    ),
}


@st.composite
def requests(draw, kind):
    """Every class occurs in training; the number of clients is possible."""
    classes = draw(st.integers(2, 6))
    labels = np.array(
        draw(st.permutations([*range(classes), *draw(st.lists(st.integers(0, classes - 1), max_size=60))]))
    )
    test = np.array(draw(st.lists(st.integers(0, classes - 1), max_size=30)), dtype=np.int64)
    partition, clients = draw(PARTITIONS[kind]), draw(st.integers(1, min(12, len(labels))))
    if getattr(partition, "unowned", "") == "error" and clients * partition.labels >= classes > clients:
        clients = classes  # between the two, the draw decides whether a label has no owner
    return partition, labels, test, clients, draw(st.integers(0, 5))


def impossible(partition, labels, clients):
    """Say how a request must be refused, as far as no draw decides; None where it must be met."""
    classes = int(labels.max()) + 1
    if isinstance(partition, DirichletClass) and partition.min_size * clients > len(labels):
        return f"min_size = {partition.min_size} for {clients} clients"
    if isinstance(partition, LabelsPerClient) and partition.labels > classes:
        return f"labels = {partition.labels} but the data has {classes} classes"
    if isinstance(partition, LabelsPerClient) and partition.unowned != "drop" and clients * partition.labels < classes:
        return "belong to no client"
    return None


@pytest.mark.parametrize("kind", PARTITIONS)
@given(data=st.data())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_every_sample_is_dealt_once_or_its_label_has_no_owner(kind, data):
    partition, labels, test, clients, seed = data.draw(requests(kind))
    if (reason := impossible(partition, labels, clients)) is not None:
        with pytest.raises(RequestError, match=reason):
            deal(partition, labels, clients, test, seed)
        return
    dealt = deal(partition, labels, clients, test, seed)
    for parts, of in ((dealt.train, labels), (dealt.test, test)):
        rows = np.concatenate(parts)
        assert len(parts) == clients
        assert len(np.unique(rows)) == len(rows)
        assert np.isin(rows, np.arange(len(of))).all()
        lost = np.setdiff1d(np.arange(len(of)), rows)
        kept = set(np.unique(labels[np.concatenate(dealt.train)]).tolist())
        assert not kept & set(of[lost].tolist())  # a label is dealt out whole, or not at all
        if not isinstance(partition, LabelsPerClient):
            assert len(lost) == 0
    classes = int(labels.max()) + 1
    dealt_of_class, there = counts(dealt.train, labels, classes).sum(0), np.bincount(labels)
    assert all(d in (0, n) for d, n in zip(dealt_of_class, there, strict=True))
    if isinstance(partition, DirichletClass):
        assert min(map(len, dealt.train)) >= partition.min_size


@pytest.mark.parametrize("kind", PARTITIONS)
@given(data=st.data())
@settings(max_examples=30, deadline=None, derandomize=True)
def test_the_seed_decides(kind, data):
    partition, labels, test, clients, seed = data.draw(requests(kind))
    assume(impossible(partition, labels, clients) is None)
    first, again = (deal(partition, labels, clients, test, seed) for _ in range(2))
    for a, b in zip([*first.train, *first.test], [*again.train, *again.test], strict=True):
        assert a.tolist() == b.tolist()


@pytest.mark.parametrize("partition", [Iid(), DirichletClass(alpha=1.0), LabelsPerClient(labels=2)])
def test_another_seed_is_another_deal(partition):
    labels = np.arange(400) % 4
    first, second = (deal(partition, labels, 5, seed=s).train for s in (0, 1))
    assert any(sorted(a.tolist()) != sorted(b.tolist()) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("alpha", [1e-6, 0.001, 0.002])
@pytest.mark.parametrize("balance", [True, False])
def test_the_draw_ends_where_shares_vanish(alpha, balance):
    labels = np.arange(600) % 10
    dealt = deal(DirichletClass(alpha=alpha, balance=balance, max_tries=50), labels, 30)
    assert sum(map(len, dealt.train)) == 600
    assert min(map(len, dealt.train)) >= 10


@pytest.mark.parametrize("partition", [Iid(), DirichletClass(), LabelsPerClient()])
@pytest.mark.parametrize(
    ("clients", "said"), [(0, "clients = 0 must be at least 1"), (-2, "clients = -2"), (7, "clients = 7.*only 6")]
)
def test_impossible_numbers_of_clients_are_refused(partition, clients, said):
    with pytest.raises(RequestError, match=said):
        deal(partition, np.arange(6) % 3, clients)


# ---- digits ------------------------------------------------------------------------------------------------------


def test_digits_are_embedded_and_split_by_label():
    arrays = Digits().load()
    assert arrays.x.shape == (1438, 1, 8, 8)
    assert arrays.test_x.shape == (359, 1, 8, 8)
    assert (float(arrays.x.min()), float(arrays.x.max())) == (0.0, 1.0)
    train, test = np.bincount(arrays.y), np.bincount(arrays.test_y)
    assert (train + test).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert test.tolist() == [36, 36, 35, 37, 36, 36, 36, 36, 35, 36]  # a fifth of each, rounded


@pytest.mark.parametrize(
    ("partition", "said"),
    [
        (DirichletClass(alpha=-1), "partition: DirichletClass.alpha = -1 is not valid; allowed: a number > 0"),
        (DirichletClass(alpha="x"), 'partition: DirichletClass.alpha = "x" is not valid; allowed: a number'),
        (LabelsPerClient(labels=0), "partition: LabelsPerClient.labels = 0 is not valid; allowed: a number >= 1"),
    ],
)
def test_options_of_an_object_are_checked_as_those_of_a_table_are(partition, said):
    with pytest.raises(RequestError, match=re.escape(said)):
        Federation.from_arrays(np.zeros((60, 2)), np.arange(60) % 3, 3, partition=partition)


@dataclass(frozen=True)
class Given(DirichletClass):
    """A partition of a user's own, with options that no table could hold."""

    alpha: Positive = 0.5
    weights: np.ndarray = field(default_factory=lambda: np.ones(3))
    curve: Callable[[float], float] = abs


def test_what_no_table_could_hold_is_an_object_s_own_business():
    x, y = np.zeros((60, 2)), np.arange(60) % 3
    assert len(Federation.from_arrays(x, y, 3, partition=Given())) == 3
    with pytest.raises(RequestError, match=r"Given\.alpha = 0 is not valid"):
        Federation.from_arrays(x, y, 3, partition=Given(alpha=0))


def test_numbers_of_numpy_are_options_too():
    partition = DirichletClass(alpha=np.float32(0.5), min_size=np.int64(1))
    assert len(Federation.from_arrays(np.zeros((60, 2)), np.arange(60) % 3, 3, partition=partition)) == 3
