"""A validation set that clients hold out of their own training samples; the test set is then not in sight at all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedstrata.core.errors import RequestError
from fedstrata.core.index import Split
from fedstrata.core.rng import Streams
from fedstrata.data.federation import Federation
from fedstrata.data.ownership import copy_rows

KEY = "train.evaluate.validation"


def hold_out_validation(federation: Federation, share: float, seed: int) -> Federation:
    """Let every client hold a share of its training samples out, and score models on those instead of the test set.

    Labels are held out in proportion, also where a client has few of each: its samples are put in order of their
    labels, and every so many of them is taken. Nobody gives away the last one.
    """
    streams, held, kept = Streams(seed), [], []
    for client in range(len(federation)):
        rows = federation.train_split[client]
        rng = streams("validation", client=client)
        rows = rng.permutation(rows)
        rows = rows[np.argsort(federation.labels[rows], kind="stable")]
        steps = np.floor(np.arange(len(rows) + 1) * share + rng.random())
        taken = np.diff(steps) > 0
        if taken.all():
            taken[:1] = False
        held.append(np.sort(rows[taken]))
        kept.append(np.sort(rows[~taken]))
    if not sum(map(len, held)):
        raise RequestError(f"{KEY} = {share:g}: no client has samples enough to hold one out")
    rows = np.sort(np.concatenate(held))
    return replace(
        federation,
        test=copy_rows(federation.train, rows),
        train_split=Split.of(kept),
        test_split=Split.of(held).numbered(rows),
    )
