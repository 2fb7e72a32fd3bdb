"""Where Terraform may cut: the five ranges of section 7.2.2, with oracles worked out by hand."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from fedstrata.methods.drivers.terraform import Range, Terraform, split, variances
from fedstrata.testing.tiny import run_rounds, session_of

RANGES = get_args(Range)
SIX = np.array([1, 1.2, 1.3, 6, 6.5, 20])


@pytest.mark.parametrize(
    ("values", "sizes", "expected"),
    [
        (SIX, [100] * 6, {"iqr": (1, 4), "all": (1, 5), "low": (1, 4), "high": (1, 5), "top": (4, 5)}),
        (np.arange(8.0) ** 3, [1] * 8, {"iqr": (1, 5), "all": (1, 7), "low": (1, 5), "high": (1, 7), "top": (5, 7)}),
        (SIX, [1, 1, 1, 1, 8, 4], {"iqr": (3, 4), "all": (1, 5), "low": (1, 4), "high": (3, 5), "top": (4, 5)}),
    ],
)
def test_ranges(values, sizes, expected):
    found = {within: split(values, np.array(sizes), within=within).allowed for within in RANGES}
    assert found == expected


def test_oracle_of_the_range_above_the_third_quartile():
    """Magnitudes 1, 9, 10, 11 of clients with as many samples each: R = 1, 2, 3, 4, so that Q1 is 0 and Q3 is 2.

    V(1) = 3/4 * 2/3 = .5, V(2) = 1/2 * 16 + 1/2 * 1/4 = 8.125, V(3) = 3/4 * 146/9 = 12.1667. The one far below is cut
    off from index 1 on, and from Q3 on no more.
    """
    values, ones = np.array([10.0, 1.0, 11.0, 9.0]), np.ones(4)
    np.testing.assert_allclose(variances(np.sort(values), ones) * 100, [0.5, 8.125, 146 / 12], rtol=1e-12)
    cuts = {within: split(values, ones, within=within) for within in RANGES}
    assert {within: cut.tau for within, cut in cuts.items()} == {"iqr": 1, "all": 1, "low": 1, "high": 1, "top": 2}
    assert cuts["top"].allowed == (2, 3)
    assert cuts["top"].hard.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("sizes", "weight", "allowed", "tau"),
    [
        ([100] * 6, "size", (4, 5), 5),  # V(4) = 18.1154, V(5) = 5.1967
        ([400] + [100] * 5, "size", (3, 5), 5),  # V(3) = 14.0289, V(4) = 13.5409, V(5) = 5.5431
        ([10, 10, 10, 10, 10, 950], "count", (5, 5), 5),  # the largest alone holds the upper quartile
    ],
)
def test_the_range_above_the_third_quartile_on_the_oracle_of_the_specification(sizes, weight, allowed, tau):
    cut = split(SIX, np.array(sizes), within="top", weight=weight)
    assert (cut.allowed, cut.tau) == (allowed, tau)


def test_the_first_client_may_hold_all_three_quartiles():
    """Then the range begins at 1 all the same, because both parts hold somebody."""
    cut = split(np.arange(3.0), np.array([10, 1, 1]), within="top")
    assert (cut.allowed, cut.tau) == ((1, 2), 1)
    assert split(np.ones(1), np.ones(1), within="top") is None
    assert split(np.zeros(0), np.zeros(0), within="top") is None


def test_fewest_clients_are_hard_above_the_third_quartile():
    counts = {}
    for within in ("high", "top"):
        driver = Terraform(range=within, min_clients=1, depth=2)
        _, rounds = run_rounds(session_of({"method.driver": driver, "train.clients_per_round": 6}))
        counts[within] = [len(outcomes[1].step.asks) for outcomes in rounds]
    assert all(top <= high for top, high in zip(counts["top"], counts["high"], strict=True))
    assert sum(counts["top"]) < sum(counts["high"])
