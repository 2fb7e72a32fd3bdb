"""Friedman's test and Nemenyi's critical difference, by hand, by scipy, and by the tables of Demsar (JMLR 2006)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fedstrata.runs.compare.friedman import Friedman, alike, caution, chi_square, critical_difference, friedman
from fedstrata.runs.compare.paired import difference, holm, interval, p_value, ranks


def test_by_hand():
    """Ranks of a: 1 1 1 2, of b: 2 3 2 1, of c: 3 2 3 3; means 1.25, 2, 2.75; 12 * 4 / (3 * 4) * 1.125 = 4.5."""
    table = {"c": [0.1, 0.3, 0.2, 0.3], "a": [0.9, 0.8, 0.7, 0.5], "b": [0.5, 0.2, 0.4, 0.9]}
    found = friedman("accuracy", table)
    assert found.ranks == {"a": 1.25, "b": 2.0, "c": 2.75}
    assert list(found.ranks) == ["a", "b", "c"]
    assert found.statistic == pytest.approx(4.5)
    assert found.p == pytest.approx(math.exp(-2.25))  # chi-square with two degrees of freedom
    assert found.critical_difference == pytest.approx(2.343 * math.sqrt(3 * 4 / (6 * 4)), abs=1e-3)
    assert found.alike == [["a", "b", "c"]]
    assert "p 0.105: the methods cannot be told apart" in found.describe()[1]
    assert Friedman.from_json(found.to_json()) == found
    assert caution(found) == ["Friedman's p over 4 conditions is rough; it takes about 10 or more"]


def test_less_is_better_where_it_is_a_cost_and_never_is_worst():
    costs = {"a": [10.0, 20.0, math.inf], "b": [30.0, math.inf, math.inf], "c": [20.0, 30.0, 5.0]}
    found = friedman("rounds_to:0.8", costs, lower=True)
    assert found.ranks == pytest.approx({"c": 5 / 3, "a": (1 + 1 + 2.5) / 3, "b": (3 + 3 + 2.5) / 3})


@pytest.mark.parametrize("decimals", [3, 1])  # with one decimal there are ties
def test_as_scipy_has_it(decimals):
    table = np.random.default_rng(0).uniform(size=(5, 12)).round(decimals)
    theirs = stats.friedmanchisquare(*table)
    found = friedman("accuracy", {str(i): row for i, row in enumerate(table)})
    assert (found.statistic, found.p) == pytest.approx((theirs.statistic, theirs.pvalue))
    assert caution(found) == []


def test_all_the_same():
    found = friedman("accuracy", {"a": [0.5, 0.5], "b": [0.5, 0.5]})
    assert (found.statistic, found.p, found.ranks) == (0.0, 1.0, {"a": 1.5, "b": 1.5})
    assert chi_square(np.full((3, 4), 2.0)) == 0.0


@pytest.mark.parametrize("table", [{}, {"a": [0.1, 0.2]}, {"a": [0.1], "b": [0.2]}])
def test_there_is_nothing_to_test(table):
    assert friedman("accuracy", table) is None


@pytest.mark.parametrize(("methods", "q"), [(2, 1.960), (3, 2.343), (4, 2.569), (5, 2.728), (10, 3.164)])
def test_the_critical_values_of_demsar(methods, q):
    assert critical_difference(methods, 7) == pytest.approx(q * math.sqrt(methods * (methods + 1) / 42), abs=1e-3)


def test_the_example_of_demsar():
    """Four classifiers on 14 data sets, table 6: mean ranks 3.143, 2.000, 2.893, 1.964; CD = 1.25 at 0.05."""
    assert critical_difference(4, 14) == pytest.approx(1.25, abs=0.01)
    assert critical_difference(4, 14, 0.1) == pytest.approx(1.12, abs=0.01)


@pytest.mark.parametrize(
    ("places", "critical", "groups"),
    [
        ([1.0, 2.0, 3.0], 1.5, [["a", "b"], ["b", "c"]]),
        ([1.0, 2.0, 3.0], 1.0, []),  # as far as the critical difference is apart
        ([1.0, 1.1, 3.0], 0.5, [["a", "b"]]),
        ([1.0, 2.0, 2.1, 4.0], 1.5, [["a", "b", "c"]]),  # b and c are in it already
        ([1.0, 2.0, 3.0, 4.0], 9.0, [["a", "b", "c", "d"]]),
    ],
)
def test_who_cannot_be_told_apart(places, critical, groups):
    assert alike(dict(zip("abcd", places, strict=False)), critical) == groups


# ---- pairs -----------------------------------------------------------------------------------------------------------


def test_holm_by_hand():
    """Sorted .01 .02 .03 .04 times 4 3 2 1 are .04 .06 .06 .04, and none may be below the one before."""
    corrected = holm([0.04, 0.01, None, 0.03, 0.02])
    assert corrected[2] is None
    assert [p for p in corrected if p is not None] == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([0.02]) == [0.02]
    assert holm([]) == []


def test_ranks_in_either_direction():
    assert ranks({"a": [1.0], "b": [3.0], "c": [1.0]}) == {"a": [2.5], "b": [1.0], "c": [2.5]}
    assert ranks({"a": [1.0], "b": [math.inf], "c": [math.inf]}, lower=True) == {"a": [1.0], "b": [2.5], "c": [2.5]}


def test_what_was_never_reached_is_the_largest_difference_and_in_no_mean():
    """Signed ranks of -5, never, 0, -1 are 3, 4, 1 and 2 with signs - - 0 -: of 16 flips those of 3 + 4 + 2 are 4."""
    found = difference([10.0, 20.0, math.inf, 4.0], [15.0, math.inf, math.inf, 5.0])
    assert found["mean"] == pytest.approx((-5 + 0 - 1) / 3)
    assert found["p"] == 0.25
    assert p_value([-5.0, -math.inf, 0.0, -1.0]) == 0.25
    assert interval([math.inf, 3.0, None]) == {"mean": 3.0, "interval": None}
    assert interval([math.inf]) == {"mean": None, "interval": None}
