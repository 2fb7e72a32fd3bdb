"""Skew measures against values worked out by hand, and against partitions whose skew is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedstrata import Federation, RequestError
from fedstrata.core.rng import Streams
from fedstrata.data.concentration import LEAST, MOST, concentration
from fedstrata.data.label_table import LabelTable
from fedstrata.data.partitions.base import Labelled
from fedstrata.data.partitions.dirichlet import DirichletClass
from fedstrata.data.partitions.dirichlet_client import DirichletClient
from fedstrata.data.partitions.iid import Iid
from fedstrata.inspection.contents import contents, row_hashes
from fedstrata.inspection.count_file import read_counts
from fedstrata.inspection.domains import domains, told_apart
from fedstrata.inspection.heat_map import heat_map
from fedstrata.inspection.measures import Measures, round_balance
from fedstrata.methods.selectors.flips import Flips

TWO = LabelTable.of(np.array([[4, 0], [2, 2], [0, 4]]))  # the global mix is (1/2, 1/2)


def dealt(partition, samples=20_000, clients=100, classes=10, seed=0) -> LabelTable:
    y = np.arange(samples) % classes
    deal = partition.deal(Labelled(y), Labelled(y[:0]), clients, Streams(seed)("partition"))
    return LabelTable.of(np.array([np.bincount(y[rows], minlength=classes) for rows in deal.train]))


def test_distances_to_the_global_mix():
    assert TWO.emd == pytest.approx([1, 0, 1])
    # of (1, 0) from (1/2, 1/2): H(3/4, 1/4) - H(1/2, 1/2) / 2 = 0.811278 - 0.5 bits
    assert TWO.js == pytest.approx([0.311278, 0, 0.311278], abs=1e-6)


def test_effective_and_missing_labels():
    table = LabelTable.of(np.array([[5, 5, 0], [9, 0, 0], [2, 1, 1]]))
    assert table.effective == pytest.approx([2, 1, 2**1.5])  # entropy of (1/2, 1/4, 1/4): 1.5 bits
    assert table.missing.tolist() == [1, 2, 0]


def test_gini_of_the_sizes():
    assert TWO.gini == 0
    assert LabelTable.of(np.array([[1, 0], [0, 3]])).gini == pytest.approx(
        0.25
    )  # mean difference 1 over mean 2, halved
    assert LabelTable.of(np.array([[1, 0], [1, 1], [2, 1]])).gini == pytest.approx(2 / 9)


def test_clients_and_labels_without_samples_are_left_out_and_counted():
    table = LabelTable.of(np.array([[1, 0, 1], [0, 0, 0], [3, 0, 3]]), ["a", "b", "c"], ["x", "y", "z"])
    assert (table.labels, table.clients, table.empty) == (("a", "c"), ("x", "z"), 1)
    assert table.missing.tolist() == [0, 0]  # nobody lacks a label that there is none of
    assert Measures.of(table, 2).empty_clients == 1


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ([[1, -2]], r"counts\[0, 1\] = -2; allowed: whole numbers from 0"),
        ([[1, 0.5]], r"counts\[0, 1\] = 0.5"),
        ([[1, np.nan]], "nan"),
        ([["a", "b"]], "must be numbers"),
        ([1, 2], "a table"),
        (np.zeros((0, 3)), "a table"),
        ([[0, 0], [0, 0]], "no client holds any sample"),
        ([[3, 0], [5, 0]], 'only the label "0" has samples'),
    ],
)
def test_tables_that_say_nothing_are_refused(counts, said):
    with pytest.raises(RequestError, match=said):
        LabelTable.of(np.asarray(counts))


@pytest.mark.parametrize("alpha", [0.3, 1.0, 5.0, 20.0])
def test_the_equivalent_alpha_is_that_of_the_partition(alpha):
    """Within 15 %, with pools that do not run out: there, clients hold what they drew."""
    found = [concentration(dealt(DirichletClient(alpha=alpha, sizes=50), 200_000, 200, seed=s)) for s in range(3)]
    assert np.mean(found) == pytest.approx(alpha, rel=0.15)


def test_a_tenth_of_it_is_that_of_a_partition_by_classes():
    table = dealt(DirichletClass(alpha=0.5, balance=False, min_size=1), clients=200)
    assert concentration(table) / 10 == pytest.approx(0.5, rel=0.15)


def test_small_clients_do_not_look_skewed_to_it():
    table = dealt(Iid(), 2_000, 100)  # twenty samples each
    assert table.emd.mean() > 0.4
    assert concentration(table) > 100


def test_its_ends_are_one_label_a_client_and_nothing_but_chance():
    assert concentration(LabelTable.of(np.eye(4, dtype=int) * 50)) == pytest.approx(LEAST)
    assert concentration(LabelTable.of(np.full((20, 5), 40))) == pytest.approx(MOST)


def test_rounds_of_one_label_a_client_are_balanced_by_clusters():
    table = LabelTable.of(np.repeat(np.eye(5, dtype=int), 8, 0) * 10)  # forty clients, five labels
    balance = round_balance(table, 10)
    assert balance.clusters == 5
    assert balance.flips == pytest.approx(0, abs=1e-9)  # two of each label
    assert balance.gain == pytest.approx(1)
    own = round_balance(table, 10, own=Flips(clusters=3))
    assert (own.clusters, own.random) == (3, balance.random)
    assert own.flips > balance.flips
    assert round_balance(table, 40) is None  # everybody trains: there is nothing to choose


# ---- what is read off the samples


def with_clients(*rows, x=None, y=None) -> Federation:
    x = np.arange(40, dtype=np.float32).reshape(20, 2) if x is None else x
    y = np.arange(len(x)) % 2 if y is None else y
    return Federation.from_arrays(x, y, [np.array(r) for r in rows], test=(x[:2], y[:2]))


def test_clients_with_the_same_samples_are_found_in_any_order():
    x = np.array([[1, 2], [3, 4], [3, 4], [1, 2], [1, 2], [5, 6]], dtype=np.float32)
    found = contents(with_clients([0, 1], [4, 5], [2, 3], x=x, y=np.array([0, 1, 1, 0, 0, 1])))
    assert found.twins == ((0, 2),)
    assert found.copied == pytest.approx(0.5)  # three different samples among six
    assert found.conflicting == 0


def test_equal_counts_or_other_labels_do_not_make_twins():
    assert contents(with_clients([0, 1], [2, 3], [4, 5])).twins == ()  # the same count rows
    x = np.array([[1, 2], [3, 4], [1, 2], [3, 4]], dtype=np.float32)
    found = contents(with_clients([0, 1], [2, 3], x=x, y=np.array([0, 1, 1, 0])))
    assert found.twins == ()
    assert found.conflicting == 1


def test_hashes_see_every_byte_and_the_place_of_it():
    rows = np.zeros((4, 11), dtype=np.uint8)  # a row is not a whole number of words
    rows[1, 0], rows[2, 10], rows[3, 8] = 1, 1, 1
    assert len(set(row_hashes(rows).tolist())) == 4
    assert row_hashes(rows)[0] == row_hashes(rows[:1])[0]


def test_a_probe_tells_groups_apart_by_features_and_not_by_labels():
    rng = np.random.default_rng(0)
    groups, labels = np.repeat([0, 1], 200), np.tile([0, 1], 200)
    noise = rng.normal(size=(400, 6))
    assert told_apart(noise + 3 * groups[:, None], groups, labels) > 0.9
    assert told_apart(noise.copy(), groups, labels) < 0.2
    skewed = np.where(rng.random(400) < 0.9, groups, 1 - groups)  # groups hold different labels,
    assert told_apart(noise + 3 * skewed[:, None], groups, skewed) < 0.35  # and labels look different


def test_domains_that_clients_hold_apart():
    rng = np.random.default_rng(1)
    groups = np.repeat(["art", "photo"], 100)
    x = (rng.normal(size=(200, 1, 12, 12)) + 2 * (groups == "art")[:, None, None, None]).astype(np.float32)
    y = np.tile([0, 1], 100)
    apart = [np.arange(100), np.arange(100, 200)]
    for rows, held in ((apart, 1.0), ([np.arange(0, 200, 2), np.arange(1, 200, 2)], 0.0)):
        federation = Federation.from_arrays(x, y, rows, test=(x[:2], y[:2], groups[:2]), groups=groups)
        found = domains(federation)
        assert found == domains(federation)  # the same sample every time
        assert found.number == 2
        assert found.told_apart > 0.9
        assert found.held_apart == pytest.approx(held)
    assert domains(with_clients([0, 1], [2, 3])) is None


def test_groups_of_hardly_a_sample_are_not_probed():
    """A client of a single sample left the probe of all groups one sample each, and means of nothing."""
    rng = np.random.default_rng(1)
    groups = np.array(["alone", *["art"] * 60, *["photo"] * 60])
    x, y = rng.normal(size=(121, 5)) + 2 * (groups == "art")[:, None], np.arange(121) % 2
    federation = Federation.from_arrays(x, y, groups, test=(x[:2], y[:2], groups[:2]), groups=groups)
    found = domains(federation)
    assert found.number == 3
    assert found.told_apart > 0.9
    few = np.arange(121) < 62  # of "photo", one is left
    assert domains(Federation.from_arrays(x[few], y[few], groups[few], groups=groups[few], test=(x[:2], y[:2]))) is None


# ---- files and pictures


def test_counts_from_a_file(tmp_path):
    file = tmp_path / "counts.csv"
    file.write_text("client,cat,dog\nwest,3,0\neast,1,2\n")
    table = read_counts(file)
    assert (table.labels, table.clients, table.counts.tolist()) == (("cat", "dog"), ("west", "east"), [[3, 0], [1, 2]])
    file.write_text("3,0\n1,2\n")
    table = read_counts(file)
    assert (table.labels, table.clients, table.counts.tolist()) == ((0, 1), ("0", "1"), [[3, 0], [1, 2]])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("client,cat,dog\n", "holds no client"),
        ("client,cat,dog\na,1,-2\n", 'line 2, label dog: "-2"; allowed: whole numbers from 0'),
        ("cat,dog\n1,many\n", 'line 2, label dog: "many"'),
        ("cat,dog\n1,2\n3\n", "line 3: 1 cells, but the first line has 2"),
        ("cat,dog\n1,0\n3,0\n", 'only the label "cat"'),
    ],
)
def test_files_that_are_not_counts_are_refused(tmp_path, text, said):
    file = tmp_path / "counts.csv"
    file.write_text(text)
    with pytest.raises(RequestError, match=said):
        read_counts(file)


def test_a_heat_map_shows_all_clients_or_bins_of_similar_ones():
    table = LabelTable.of(np.array([[0, 4], [4, 0], [1, 3], [3, 1]]))
    assert heat_map(table, 4, 2).rows == ["0", "1", "2", "3"]
    small = heat_map(table, 2, 2)
    assert small.shares == pytest.approx(np.array([[0.875, 0.125], [0.125, 0.875]]))
    assert small.rows == ["2 with most 0", "2 with most 1"]
    wide = heat_map(LabelTable.of(np.full((2, 6), 2)), 5, 3)
    assert wide.columns == ["0..1", "2..3", "4..5"]
    assert wide.shares == pytest.approx(np.full((2, 3), 1 / 3))


def test_features_may_be_pixels():
    x = torch.zeros(6, 1, 3, 3, dtype=torch.uint8)
    x[1], x[3] = 7, 7
    found = contents(with_clients([0, 1], [2, 3], [4, 5], x=x, y=np.array([0, 1, 0, 1, 1, 0])))
    assert found.twins == ((0, 1),)
