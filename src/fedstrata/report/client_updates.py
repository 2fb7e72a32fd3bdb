"""Who was asked for what in a round, and what their updates were like, out of a run's events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

TRAINS = ("train", "gradient")  # kinds of steps that teach the model


class StepDone(NamedTuple):
    """One exchange of a round: whom the server asked for what, and who answered.

    Attributes
    ----------
    round
        When, counted from 1.
    kind
        What was asked for, such as "train".
    clients, missing
        Whose reports counted, and whose did not come.
    times
        How many such exchanges in a row are told as one.
    """

    round: int
    kind: str
    clients: np.ndarray
    missing: np.ndarray
    times: int


class ClientUpdates(NamedTuple):
    """Every client update of which a run wrote down who it was; all columns are in the same order.

    Attributes
    ----------
    round, client
        When and who.
    arrived
        Whether the report counted.
    update_norm
        Length of the update; NaN where it is not told.
    cut
        FedBSS: the loss at which samples are cut.
    biased
        Share of samples beyond it.
    """

    round: np.ndarray
    client: np.ndarray
    arrived: np.ndarray
    update_norm: np.ndarray
    cut: np.ndarray
    biased: np.ndarray


def read_step(round: int, step: Mapping[str, Any]) -> StepDone:
    """Read an exchange out of the event of its round."""
    here, missing = (np.array(step.get(name, ()), dtype=np.int64).reshape(-1) for name in ("clients", "missing"))
    return StepDone(round, str(step["kind"]), here, missing, int(step.get("times", 1)))


def read_client_updates(round: int, steps: Sequence[Mapping[str, Any]]) -> list[tuple[np.ndarray, ...]]:
    """Read the client updates of a round, step by step: the columns of `ClientUpdates`."""
    found: list[tuple[np.ndarray, ...]] = []
    for step in steps:
        if step["kind"] not in TRAINS:
            continue
        here, missing = np.repeat(step["clients"], step.get("client_updates", 1)).tolist(), step.get("missing", ())
        size = len(here) + len(missing)
        update_norm, cut, biased = np.full((3, size), np.nan)
        told = step.get("update_norm", {})
        update_norm[: len(here)] = np.array([told.get(str(c)) for c in here], dtype=np.float64)
        if metrics := step.get("metrics"):
            own = [metrics.get(str(c), {}) for c in here]
            cut[: len(here)] = np.array([m.get("cut") for m in own], dtype=np.float64)
            biased[: len(here)] = np.array([m.get("biased") for m in own], dtype=np.float64)
        clients = np.array([*here, *missing], dtype=np.int64)
        found.append((np.full(size, round), clients, np.arange(size) < len(here), update_norm, cut, biased))
    return found
