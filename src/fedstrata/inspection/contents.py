"""What can be read off the samples themselves: clients that hold the same ones, copies, copies with other labels.

Samples are compared by a 64-bit hash of their bytes, so a set of any size is passed over once, some rows at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedstrata.data.federation import Federation

CHUNK = 1 << 20  # bytes hashed at a time: what a core's cache holds
ODD, STIR = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)  # of splitmix64


@dataclass(frozen=True)
class Contents:
    """Who holds the same samples, and how many samples occur more than once."""

    twins: tuple[tuple[int, ...], ...]  # clients that hold exactly the same samples with the same labels
    copied: float  # share of the samples that are copies of another one
    conflicting: float  # share of the samples that occur with different labels
    wrong: float | None  # share of labels that noise has changed, where that is known


def contents(federation: Federation) -> Contents:
    """Compare the training samples that clients hold."""
    split, labels = federation.train_split, federation.labels
    rows = split.rows
    hashes = row_hashes(np.ascontiguousarray(federation.train.x.numpy()))[rows]
    held = labels[rows]
    by_sample = np.argsort(hashes)
    ordered, labels_of = hashes[by_sample], held[by_sample]
    first = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    times = np.diff(first, append=len(rows))
    differs = np.add.reduceat(labels_of != np.repeat(labels_of[first], times), first, dtype=np.int64) > 0
    return Contents(
        twins=_twins(hashes, held, split.starts),
        copied=1 - len(first) / len(rows),
        conflicting=float(times[differs].sum() / len(rows)),
        wrong=federation.wrong_labels,
    )


def row_hashes(rows: np.ndarray) -> np.ndarray:
    """Hash every row's bytes, [n]."""
    flat = rows.reshape(len(rows), -1).view(np.uint8)
    words = -(-flat.shape[1] // 8)
    keys = _stirred(np.arange(1, words + 1, dtype=np.uint64) * ODD) | np.uint64(1)
    some = max(1, CHUNK // (8 * words))
    hashes = np.empty(len(flat), dtype=np.uint64)
    for at in range(0, len(flat), some):
        part = flat[at : at + some]
        if part.shape[1] % 8:
            part = np.pad(part, ((0, 0), (0, 8 * words - part.shape[1])))
        hashes[at : at + some] = _stirred((part.view(np.uint64) ^ keys) * keys).sum(1, dtype=np.uint64)
    return hashes


def _stirred(words: np.ndarray) -> np.ndarray:
    """Let every bit of a word depend on all others."""
    words = (words ^ (words >> np.uint64(31))) * STIR
    return np.asarray(words ^ (words >> np.uint64(29)))


def _twins(hashes: np.ndarray, labels: np.ndarray, starts: np.ndarray) -> tuple[tuple[int, ...], ...]:
    """Find clients with the same samples in any order: the sums over their samples' hashes are the same."""
    holders = np.flatnonzero(np.diff(starts))
    each = _stirred(hashes + _stirred(labels.astype(np.uint64) * ODD + ODD))
    sums = np.add.reduceat(each, starts[holders])
    _, which, count = np.unique(
        np.stack([sums, np.diff(starts)[holders].astype(np.uint64)], 1), axis=0, return_inverse=True, return_counts=True
    )
    which = which.reshape(-1)
    return tuple(tuple(holders[which == i].tolist()) for i in np.flatnonzero(count > 1))
