"""Whether code draws from generators that all the world shares: what it draws there no seed of a run can repeat."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def no_hidden_draws(what: str, torch_too: bool = False) -> Iterator[None]:
    """Fail if numpy's or Python's global generator was used or seeded inside, or torch's; leave them as they were."""
    were = random.getstate(), np.random.get_state(), torch.default_generator.get_state()  # noqa: NPY002  looked for
    random.seed(20250331)
    np.random.seed(20250331)  # noqa: NPY002
    python, numpy = random.getstate(), _state_of_numpy()
    try:
        yield
        allowed = "a generator of its own with a fixed seed, or the stream that it is given"
        assert random.getstate() == python, f"{what} draws from Python's global generator; allowed: {allowed}"
        assert _state_of_numpy() == numpy, f"{what} draws from numpy's global generator; allowed: {allowed}"
        if torch_too:
            same = torch.equal(torch.default_generator.get_state(), were[2])
            assert same, f"{what} draws from torch's global generator; allowed: {allowed}"
    finally:
        random.setstate(were[0])
        np.random.set_state(were[1])  # noqa: NPY002


def _state_of_numpy() -> tuple[bytes, int, int]:
    state = np.random.get_state(legacy=False)  # noqa: NPY002
    return state["state"]["key"].tobytes(), state["state"]["pos"], state["has_gauss"]
