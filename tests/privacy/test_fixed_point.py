"""Numbers as words of fixed point: by hand, at their limits, and with the error that is said."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedstrata.core.errors import RequestError
from fedstrata.privacy.sums.fixed_point import NARROW, WIDE, Encoding, TooLargeError


def test_words_by_hand():
    quarters = Encoding(32, 2)
    words = quarters.words(np.array([1.25, -0.5, 0.1, 0.375, 0.0]), n=3)
    assert words.tolist() == [5, 2**32 - 2, 0, 2, 0]  # 1.5 quarters are rounded to the even one
    assert quarters.numbers(words).tolist() == [1.25, -0.5, 0.0, 0.5, 0.0]
    assert quarters.words(np.array([3.0]), n=3, weight=0.5).tolist() == [6]
    assert Encoding(64, 1).words(np.array([-0.5]), n=1).tolist() == [2**64 - 1]
    assert quarters.numbers(words + quarters.words(np.full(5, -1.25), n=3)).tolist() == [
        0.0,
        -1.75,
        -1.25,
        -0.75,
        -1.25,
    ]


@pytest.mark.parametrize("encoding", [NARROW, WIDE, Encoding(32, 0), Encoding(64, 62)])
@pytest.mark.parametrize("n", [1, 3, 10, 1000])
def test_largest_numbers_do_not_wrap_around_and_larger_ones_are_refused(encoding, n):
    most = encoding.most(n)
    assert most <= 2.0 ** (encoding.bits - 1 - encoding.fraction) / n
    for value in (most, -most):
        words = encoding.words(np.array([value]), n)
        total = np.zeros(1, words.dtype)
        for _ in range(n):
            total += words
        assert encoding.numbers(total)[0] == pytest.approx(n * value, rel=1e-15)
    for value in (most + encoding.unit, -2 * most, 2.0 ** (encoding.bits - 1 - encoding.fraction) / n, 1e250):
        if value != most:  # a float that is large has no neighbour one unit away
            with pytest.raises(TooLargeError, match="at most"):
                encoding.words(np.array([0.0, value]), n)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_what_is_not_finite_is_refused(value, weight):
    for size in (1, 40_000):
        array = np.zeros(size, np.float32)
        array[-1] = value
        with pytest.raises(TooLargeError, match="not finite"):
            NARROW.words(array, 3, weight)


def test_error_of_a_sum_is_at_most_half_a_unit_each():
    arrays = [np.random.default_rng(i).uniform(-10, 10, 40_000) for i in range(7)]
    total = sum(NARROW.words(array, 7).astype(np.uint32) for array in arrays)
    error = np.abs(NARROW.numbers(total) - sum(arrays)) / NARROW.unit
    assert 1.5 < error.max() <= 3.5 + 1e-6


def test_tensors_and_bad_encodings():
    array = np.linspace(-1, 1, 5, dtype=np.float32)
    np.testing.assert_array_equal(NARROW.words(torch.tensor(array, requires_grad=True), 3), NARROW.words(array, 3))
    with pytest.raises(RequestError, match="flat"):
        NARROW.words(array[None], 3)
    with pytest.raises(RequestError, match="bits = 16"):
        Encoding(16, 2)
    with pytest.raises(RequestError, match="fraction = 31"):
        Encoding(32, 31)
