"""Random numbers by counter: what is drawn, and that comparing bits compares numbers."""

from __future__ import annotations

import pytest
import torch

from fedstrata.core.counter_rng import BITS, Clock

KEYS = torch.arange(16) * 0x1234567 - 2**62
WORD = 2**64 - 1


def splitmix(z):
    z = z + 0x9E3779B97F4A7C15 & WORD
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & WORD
    z = (z ^ z >> 27) * 0x94D049BB133111EB & WORD
    return z ^ z >> 31


def test_a_number_is_the_hash_of_its_sample_its_use_and_its_place():
    clock = Clock(KEYS)
    for use in (1, 2):
        drawn = clock.uniform(16, 3).tolist()
        for sample, key in enumerate(KEYS.tolist()):
            first = splitmix(key + use * 7_919 & WORD)
            assert drawn[sample] == [(splitmix(first + cell & WORD) >> 11) * 2.0**-BITS for cell in range(3)]


@pytest.mark.parametrize("least", [0.0, 0.1, 0.25, 1 / 3, 0.999])
def test_what_is_at_least_so_large_is_what_the_numbers_say(least):
    numbers, large = Clock(KEYS).uniform(16, 500), Clock(KEYS).at_least(least, 16, 500)
    assert torch.equal(numbers >= least, large)


def test_a_number_that_is_the_bound_itself_is_at_least_so_large():
    first = float(Clock(KEYS).uniform(16)[0])
    assert bool(Clock(KEYS).at_least(first, 16)[0])
    assert not bool(Clock(KEYS).at_least(first + 2.0**-BITS, 16)[0])
