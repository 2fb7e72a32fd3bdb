"""Stratify (arXiv 2504.13462), section IV-B: how often a client gets the model in an epoch, f_freq, by formula.

The paper says it in words. *Single-sample learning*: as often as its labels contribute to the schedule, where every
entry is passed on by itself (chunks of one). *Batch-data learning*: once a batch, for a client that is in every one of
them; here times the chance that it is in a batch. What larger chunks spare is the difference to what is counted.
"""

from __future__ import annotations

from math import ceil

import numpy as np

from fedstrata.methods.schedules.stratified import Stratified


def expected_entries(schedule: Stratified, table: np.ndarray) -> np.ndarray:
    """Return how many entries of an epoch each client will have served, from counts by client and label."""
    counts = schedule.counts(table)
    held = counts.sum(0)
    f = schedule.check_frequencies(held)
    weighted = schedule.clients != "uniform"
    entries = np.zeros(len(counts))
    for p in np.flatnonzero(f).tolist():
        own = counts[:, p].astype(np.float64)
        if schedule.replacement:
            chosen = own if weighted else (own > 0).astype(np.float64)
            entries += f[p] * chosen / chosen.sum()
            continue
        passes, rest = divmod(int(f[p]), int(held[p]))
        if passes and schedule.on_empty == "drop":
            passes, rest = 1, 0
        entries += passes * own + (rest * own / held[p] if weighted else served_evenly(own, rest))
    return entries


def served_evenly(stock: np.ndarray, entries: int) -> np.ndarray:
    """Return what each holder gives where all give alike until they have no more: everybody's stock up to one level."""
    if not entries:
        return np.zeros_like(stock)
    ascending = np.sort(stock)
    givers = len(stock) - np.arange(len(stock))  # who still gives above the i-th smallest stock
    used = np.concatenate([[0.0], np.cumsum(ascending)[:-1]]) + ascending * givers  # entries when that one runs dry
    at = int(np.searchsorted(used, entries))
    level = ascending[at] - (used[at] - entries) / givers[at]
    return np.asarray(np.minimum(stock, level))


def expected_transfers(schedule: Stratified, table: np.ndarray, batch_size: int | None) -> np.ndarray:
    """Return f_freq of each client in an epoch; without a batch size, of single-sample learning with chunks of one."""
    entries = expected_entries(schedule, table)
    if batch_size is None or not entries.sum():
        return entries
    absent = (1.0 - entries / entries.sum()) ** batch_size  # chance to be in no place of a batch
    return np.asarray(ceil(entries.sum() / batch_size) * (1.0 - absent))
