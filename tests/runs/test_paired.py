"""Intervals, the paired test and ranks, against numbers worked out by hand."""

from __future__ import annotations

from collections import Counter

import pytest
from scipy.stats import permutation_test

from fedstrata.runs.compare.paired import caution, difference, holm, interval, least_p, p_value, ranks


def test_an_interval_of_two_or_three_values_is_their_range():
    # of two, a quarter of the resamples are twice the smaller one; of three, 1/27 are; both are more than 2.5 %
    assert interval([0.2, 0.6]) == {"mean": 0.4, "interval": [0.2, 0.6]}
    assert interval([3.0, 1.0, 2.0]) == {"mean": 2.0, "interval": [1.0, 3.0]}


def test_an_interval_of_four_values_is_that_of_a_binomial():
    # the number of ones in a resample of 0, 0, 0, 1 is binomial(4, 1/4): P(4) = 0.4 %, P(3 or 4) = 5.1 %
    assert interval([0.0, 0.0, 0.0, 1.0]) == {"mean": 0.25, "interval": [0.0, 0.75]}


def test_an_interval_narrows_and_is_the_same_every_time():
    few, many = interval([0.0, 1.0] * 4), interval([0.0, 1.0] * 50)
    assert many["interval"][1] - many["interval"][0] < few["interval"][1] - few["interval"][0]
    assert interval([0.0, 1.0] * 4) == few


def test_unknown_values_are_left_out_and_one_value_has_no_interval():
    assert interval([None, 0.5]) == {"mean": 0.5, "interval": None}
    assert interval([None]) == {"mean": None, "interval": None}
    assert interval([0.1, 0.1, 0.1])["interval"] == [0.1, 0.1]


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        ([0.3], 1.0),
        ([0.1, 0.2], 0.5),  # ++ and -- of four
        ([1.0, 2.0, 3.0], 0.25),  # 2 of 8
        ([3.0, 1.0, -2.0], 0.75),  # |sum| is 6, 0, 2, 4 for the four ways up to a sign: three are at least 2
        ([0.0, 0.0, 0.0], 1.0),
        ([0.1] * 6, 2 / 64),
    ],
)
def test_the_paired_test_goes_through_all_flips_of_signs(differences, p):
    assert p_value(differences) == pytest.approx(p)


def test_the_paired_test_agrees_with_scipy():
    values = [0.3, -0.1, 0.25, 0.4, -0.05, 0.2, 0.15, -0.3]
    known = permutation_test((values,), sum, permutation_type="samples", n_resamples=10**6)
    assert p_value(values) == pytest.approx(known.pvalue)


def test_twenty_four_pairs_are_gone_through_as_well():
    """Whole numbers, so that the ways to each sum can be counted."""
    values = [1, -2, 3, 4, 1, 2, -1, 2, 5, 1, 1, -3, 2, 2, 4, -1, 3, 1, -2, 2, 1, 3, -1, 2]
    ways = Counter([0])
    for value in values:
        ways = Counter({at: ways[at - value] + ways[at + value] for at in range(-100, 101)})
    far = sum(number for at, number in ways.items() if abs(at) >= sum(values))
    assert p_value(values) == far / 2**24
    assert p_value([0.1] * 24) == 2 / 2**24


def test_with_many_pairs_flips_are_drawn():
    assert p_value([0.1] * 40) == pytest.approx(1 / (2**16 + 1))  # none of those drawn is as far
    assert p_value([0.1, -0.1] * 10) == p_value([0.1, -0.1] * 20) == 1.0


def test_a_difference_is_paired():
    told = difference([0.9, 0.5, 0.7], [0.8, 0.4, 0.6])
    assert told["mean"] == pytest.approx(0.1)
    assert told["interval"] == pytest.approx([0.1, 0.1])  # seeds differ much, pairs do not
    assert told["p"] == 0.25


def test_ranks_share_places():
    assert ranks({"a": [0.9, 0.5], "b": [0.8, 0.5], "c": [0.7, 0.9]}) == {"a": [1, 2.5], "b": [2, 2.5], "c": [3, 1]}
    assert ranks({"a": [], "b": []}) == {"a": [], "b": []}


def test_what_few_seeds_cannot_show_is_said():
    assert [least_p(n) for n in (1, 2, 5, 6)] == [1.0, 0.5, 0.0625, 0.03125]
    assert "no interval" in caution(1)[0]
    assert "no p below 0.25 is possible" in caution(3)[0]
    assert "their range" in caution(3)[1]
    assert caution(6) == ["intervals over 6 seeds are too narrow; about 10 make them honest"]
    assert caution(10) == []


def test_how_many_seeds_it_takes_follows_from_how_many_methods_are_compared():
    assert caution(5) == [
        "with 5 seeds no p below 0.0625 is possible; below 0.05 it takes 6 seeds",
        "intervals over 5 seeds are too narrow; about 10 make them honest",
    ]
    two, six = caution(6, 2)[0], caution(3, 6)[0]
    assert two.startswith("with 6 seeds and 2 methods against the first no Holm's p below 0.0625 is possible")
    assert two.endswith("below 0.05 it takes 7 seeds")
    assert six.startswith("with 3 seeds and 6 methods against the first no Holm's p below 1 is possible")
    assert six.endswith("below 0.05 it takes 8 seeds")
    for contrasts in range(1, 40):  # so many are enough, and one less is not
        said = caution(2, contrasts)[0]
        enough = int(said.split()[-2])
        smallest = [holm([p_value([1.0] * n)] * contrasts)[0] for n in (enough - 1, enough)]
        assert smallest[1] < 0.05 <= smallest[0]
