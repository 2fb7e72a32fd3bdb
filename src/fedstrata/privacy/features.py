"""Statistics of features under masks: the same sums as in the open, bit for bit, and what everybody learns of them.

Means and deviations must be exact whatever the features' range, so a number goes into a masked sum as whole words that
stand for 32 of its bits each: 128 before the point and 128 behind it. What is smaller than the last of them is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedstrata.core.errors import RequestError
from fedstrata.core.rng import Streams
from fedstrata.data.formats.tabular import some
from fedstrata.data.scaling import FeaturesTold
from fedstrata.data.statistics import add_up
from fedstrata.privacy.simulated import identities, job_of, secrets
from fedstrata.privacy.sums.fixed_point import Encoding
from fedstrata.privacy.sums.secure_sum import Parties, secure_sum

WHOLE = Encoding(64, 0)
WORDS, BITS, FRACTION = 8, 32, 128


def add_under_masks(told: FeaturesTold, holders: Sequence[int], clients: int, streams: Streams) -> int:
    """Let simulated clients add up under masks what they bring; return the bytes that took them.

    The sums must be those that the features were scaled by.
    """
    server, everybody, key_directory = identities(streams, clients)
    up = told.word_bytes
    for step, (counts, brought) in enumerate(told.exchanges):
        words, purpose = to_words(brought, counts), f"features {step}"
        parties = Parties(
            server,
            {i: everybody[i] for i in holders},
            key_directory,
            lambda i, purpose=purpose: secrets(streams, purpose, i),  # type: ignore[misc]
        )
        values = dict(zip(holders, words, strict=True))
        job = job_of(streams, purpose, -1, 0)
        done = secure_sum(values, dict.fromkeys(holders, 1.0), holders, parties, job, WHOLE)
        up += sum(done.up.values())
        total = from_words(done.total, brought.shape[1])
        if not np.allclose(total, add_up(brought), rtol=1e-15, atol=len(holders) * 2.0**-FRACTION):
            raise AssertionError("a masked sum of features differs from the sum in the open")
    return up


def to_words(brought: np.ndarray, counts: bool) -> np.ndarray:
    """Cut numbers into words of 32 bits, [clients, numbers] -> [clients, words]; counts are one each."""
    if counts:
        return brought
    if not (np.abs(brought) < 2.0 ** (FRACTION - 1)).all():
        raise RequestError(
            f"features add up to {np.abs(brought).max():.3g}, too much for masked sums; scale them down, or use "
            'data.scale = "per-client"'
        )
    whole = np.vectorize(int, otypes=[object])(brought * 2.0**FRACTION)  # a power of two: exact
    cut = [(whole >> (BITS * i)) & (2**BITS - 1) for i in range(WORDS - 1)]
    cut.append(whole >> (BITS * (WORDS - 1)))  # with the sign
    return np.concatenate(cut, axis=1).astype(np.float64)


def from_words(words: np.ndarray, count: int) -> np.ndarray:
    """Put words of a sum together; they may be longer than 32 bits by now."""
    if len(words) == count:
        return words
    parts = words.reshape(WORDS, count)
    whole = [sum(int(parts[i, j]) << (BITS * i) for i in range(WORDS)) for j in range(count)]
    return np.array([one / 2**FRACTION for one in whole])


def describe(told: FeaturesTold, masked: bool, dp: bool) -> dict[str, list[str]]:
    """Say who learns what of the features."""
    server, known = list[str](), list[str]()
    what = []
    if told.scaled:
        what.append(f"the sum of each of {told.scaled} features and of its squared distances from the mean over all")
        known.append(f"means and deviations of {told.scaled} features")
    if told.medians:
        what.append(f"how many values of {some(told.medians)} lie below thresholds that narrow down to the median")
        known.append(f"medians of {some(told.medians)}")
    for one in what:
        whom = "over all clients, by masked sums" if masked else "of every client"
        server.append(f"Before the first round it is told, {whom}: {one}.")
    if told.words:
        server.append(f"It is told which values of {some(told.words)} each client has.")
        known.append(f"all values of {some(told.words)}")
    if server and dp:
        server.append("What it is told of features is exact: epsilon does not cover it.")
    others: Any = " and ".join(filter(None, [", ".join(known[:-1]), *known[-1:]]))
    return {"server": server, "other clients": [f"Over all clients: {others}."] if known else []}
