"""What a site has: its own data, or, for trying out, one client's share of a named set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedstrata.config.build import build_federation
from fedstrata.config.experiment import Experiment
from fedstrata.core.errors import RequestError
from fedstrata.core.index import Split
from fedstrata.data.federation import Federation
from fedstrata.data.reading import Label
from fedstrata.privacy.frames import RefusedError


def only(federation: Federation, client: int) -> Federation:
    """Return one client's data as a federation of its own."""
    if not 0 <= client < len(federation):
        raise RequestError(f"there is no part {client}; parts go from 0 to {len(federation) - 1}")
    train, test = federation.train_split[client], federation.test_split[client]
    return replace(
        federation,
        train=federation.train.keep(train),
        test=federation.test.keep(test),
        train_split=Split.of([np.arange(len(train))]),
        test_split=Split.of([np.arange(len(test))]),
        speeds=None if federation.speeds is None else federation.speeds[client : client + 1],
        true_labels=None,
        proxy=None,
        names=None if federation.names is None else federation.names[client : client + 1],
    )


def source(data: Mapping[str, Any], seed: int, part: tuple[int, int] | None = None) -> Federation:
    """Load what a site has; `part` is (i, n): the i-th of n clients among which a named set is dealt out.

    Features of its own data stay raw: how they are scaled, all sites of a run find out together.
    """
    table = dict(data) | ({"clients": part[1]} if part else {"clients": 1, "partition": "iid"})
    federation = build_federation(Experiment.of({"data": table, "train": {"seed": seed}}), scaled=False)
    return only(federation, part[0] if part else 0)


def align_classes(federation: Federation, classes: Sequence[Label]) -> Federation:
    """Return a site's own data with the class indices of the run."""
    index = {label: i for i, label in enumerate(classes)}
    if strange := sum(label not in index for label in federation.classes):
        raise RefusedError(f"this site has {strange} labels that the run does not know")  # and names none of them
    return federation.relabel(np.array([index[label] for label in federation.classes]), classes)
