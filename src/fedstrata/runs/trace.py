"""Follow single samples through a run that ranks them: how often each was biased, and whether its label was wrong.

With `method.sampler = { kind = "bias-aware", follow = true }` the events name the biased samples of every client
update, as positions inside what the client held in that round. Here they become rows of the training data again,
wherever data drift or stream. What is drawn over rounds (cut, share of biased samples, length of the update) needs no
`follow`: see `client_updates`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from typing import NamedTuple

import numpy as np

from fedstrata.config.build import build_federation
from fedstrata.config.experiment import Experiment
from fedstrata.core.errors import RequestError
from fedstrata.data.devices import equip_clients
from fedstrata.data.federation import Federation
from fedstrata.runs.folder import Run


class ClientUpdate(NamedTuple):
    """A client update whose report counted.

    How far the model moved and, where samples were ranked, where they were cut.

    Attributes
    ----------
    round
        Counted from 1.
    client
        Its id.
    update_norm
        Length of the update.
    cut
        The loss up to which samples are unbiased; None: nothing was ranked.
    biased
        Share of the client's samples.
    positions
        Of the biased ones; None: the run does not follow them.
    """

    round: int
    client: int
    update_norm: float
    cut: float | None = None
    biased: float | None = None
    positions: tuple[int, ...] | None = None


class Sides(NamedTuple):
    """The samples that clients ranked in a round.

    Attributes
    ----------
    round
        Counted from 1.
    ranked
        Samples.
    wrong
        Wrong labels among all of them.
    biased
        Samples on the biased side.
    found
        Wrong labels among the biased.
    """

    round: int
    ranked: int
    wrong: int
    biased: int
    found: int

    @property
    def chance(self) -> float:
        """Share of wrong labels among all that were ranked."""
        return self.wrong / self.ranked if self.ranked else nan

    @property
    def share(self) -> float:
        """Share of wrong labels among the biased ones."""
        return self.found / self.biased if self.biased else nan


@dataclass(frozen=True)
class Followed:
    """Every training sample that a client holds, and what became of it; all arrays are in the same order.

    Attributes
    ----------
    rows
        Of the training data.
    clients
        Who holds it; where data drift, who held it first.
    wrong
        Whether its label is wrong.
    ranked
        How often a client ranked it.
    biased
        How often it was then on the biased side.
    rounds
        Those in which samples were ranked: how many `ranked` and `biased`, and the `share` of wrong labels among the
        biased, beside what it would be by `chance`.
    """

    rows: np.ndarray
    clients: np.ndarray
    wrong: np.ndarray
    ranked: np.ndarray
    biased: np.ndarray
    rounds: list[Sides]


def client_updates(run: Run) -> list[ClientUpdate]:
    """Return every client update of a run whose events tell the length of its update.

    Parameters
    ----------
    run
        Finished or not. A round of more than 50 steps, or one whose steps were run as one, is only summed up in the
        events, and has none here.

    Returns
    -------
    list of ClientUpdate
        `round` (from 1), `client` and `update_norm`; where clients rank their samples, `cut` and the share `biased`.

    Examples
    --------
    >>> import fedstrata
    >>> run = fedstrata.train(overrides={"train.rounds": 2, "train.clients_per_round": 3})
    >>> [update.round for update in fedstrata.client_updates(run)]
    [1, 1, 1, 2, 2, 2]
    """
    seen = []
    for event in (e for e in run.events() if e["event"] == "round"):
        for step in event["steps"]:
            for client, update_norm in step.get("update_norm", {}).items():
                told = step.get("metrics", {}).get(client, {})
                where = tuple(told["biased_samples"]) if "biased_samples" in told else None
                seen.append(
                    ClientUpdate(event["round"], int(client), update_norm, told.get("cut"), told.get("biased"), where)
                )
    return seen


def follow(run: Run, federation: Federation | None = None) -> Followed:
    """Say what became of every sample of a run that ranks them and writes down which ones are biased.

    Parameters
    ----------
    run
        Trained with `method.sampler = {kind = "bias-aware", follow = true}`.
    federation
        Data that came from Python are passed again, with their `true_labels`.

    Returns
    -------
    Followed

    Raises
    ------
    RequestError
        If the run names no samples, or the data are not those that it was trained with.

    Examples
    --------
    >>> import fedstrata
    >>> overrides = {"method.sampler.follow": True, "method.sampler.warmup": 1, "train.rounds": 2}
    >>> run = fedstrata.train(method="fedbss", overrides={**overrides, "data.noise": {"labels": 0.3}})
    >>> followed = fedstrata.follow(run)
    >>> [sides.round for sides in followed.rounds]
    [2]
    >>> round(float(followed.wrong.mean()), 1)
    0.3
    """
    federation = _trained_on(run, federation)
    ranked_in = [v for v in client_updates(run) if v.positions is not None]
    if not ranked_in:
        raise RequestError(f"{run.path} names no ranked samples; train it with method.sampler.follow = true (fedbss)")
    split, samples = federation.train_split, len(federation.labels)
    true = federation.labels if federation.true_labels is None else federation.true_labels
    wrong = federation.labels != true
    ranked, biased = np.zeros((2, samples), dtype=np.int64)
    rounds: dict[int, Sides] = {}
    for context in ranked_in:
        here = federation.at(context.round - 1).train_split[context.client]
        beyond = here[list(context.positions or ())]
        ranked[here] += 1
        biased[beyond] += 1
        before = rounds.get(context.round, Sides(context.round, 0, 0, 0, 0))
        new = len(here), int(wrong[here].sum()), len(beyond), int(wrong[beyond].sum())
        rounds[context.round] = Sides(context.round, *(a + b for a, b in zip(before[1:], new, strict=True)))
    rows, owners = split.rows, np.repeat(np.arange(len(split)), split.sizes)
    return Followed(rows, owners, wrong[rows], ranked[rows], biased[rows], list(rounds.values()))


def _trained_on(run: Run, federation: Federation | None) -> Federation:
    """Return the data that a run was trained with, and no others."""
    experiment = Experiment.of(run.path / "experiment.toml")
    system = experiment.system
    drawn = system.speed.kind, system.speed.sigma, system.bandwidth.mean, system.bandwidth.sigma
    federation = equip_clients(federation or build_federation(experiment), *drawn, experiment.train.seed)
    if [federation.fingerprint] != [e["fingerprint"] for e in run.events() if e["event"] == "start"]:
        raise RequestError(f"the data given are not those that {run.path} was trained with")
    return federation
