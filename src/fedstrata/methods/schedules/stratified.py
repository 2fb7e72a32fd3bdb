"""Stratify (arXiv 2504.13462), section III-A: the stratified label schedule.

Label l stands f_l times in the schedule, which is shuffled; clients give one sample an entry. One epoch is one
schedule followed to its end. `hops.py` (single-sample learning) and `batches.py` (batch-data learning) follow it.

The paper's words: SLS is `Epoch`; a placeholder is a stratum (a code, with the pass over it); availClients is
`Supply.available`; what a client refuses is P_notTrain (P_unavail), and with it P_exhaust.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Any, ClassVar, Literal

import numpy as np

from fedstrata.core.client_info import ClientInfo
from fedstrata.core.contract import broken, describe
from fedstrata.core.errors import RequestError
from fedstrata.core.options import Count, Natural
from fedstrata.core.rng import Rng
from fedstrata.core.sampler import Sampler
from fedstrata.core.server_parts import Schedule
from fedstrata.core.steps import View
from fedstrata.methods.schedules.epoch import Epoch
from fedstrata.methods.schedules.lots import Lots
from fedstrata.methods.schedules.supply import Supply
from fedstrata.methods.schedules.take import Take


@dataclass(frozen=True)
class Stratified(Schedule):
    """Every label as often as its target says, in random order; clients that hold it give one sample an entry.

    Examples
    --------
    >>> import numpy as np
    >>> from fedstrata import Stratified
    >>> Stratified().frequencies(np.array([70, 20, 0]))  # as many entries as there are samples
    array([45, 45,  0])
    >>> Stratified(frequency="capped", cap=30).frequencies(np.array([70, 20, 0]))
    array([30, 20,  0])
    """

    paper: ClassVar[str] = "Stratify, arXiv 2504.13462"

    frequency: Literal["uniform", "capped"] = "uniform"  # the same for every label, or its count up to `cap`
    cap: Count | None = None  # None: the largest count, one pass over all data
    each: Count | None = None  # uniform: entries a label; None: a schedule as long as the data
    length: Count | None = None  # scale the frequencies to this many entries
    order: Literal["shuffled", "spread"] = "shuffled"  # spread: every stretch of the schedule is nearly balanced
    strata: Literal["labels", "none"] = "labels"  # none: all samples are one stratum, which is plain random sampling
    # Who is asked: any holder alike, by counts, by what is left, by counts in turns as even as can be; binomial: by
    # counts that the server does not learn.
    clients: Literal["uniform", "weighted", "remaining", "spread", "binomial"] = "uniform"
    # True: a client starts over when its samples of a label are used up; None: only where labels are masked.
    replacement: bool | None = None
    on_empty: Literal["refill", "drop"] = "refill"  # when everybody's are: start over, or leave the label out
    chunk: Count = 5  # entries planned ahead in single-sample learning
    pool: Count = 7  # draws of holders, a label, that a chunk chooses from
    slack: Natural = 0  # entries of a chunk change places; no label gets further ahead or behind than this
    rounds_per_epoch: Count = 1  # spread an epoch over so many rounds: it is evaluated, saved and resumed by round

    @property
    def needs(self) -> frozenset[str]:
        """Uniform choice reads who holds which label and how much there is in all; weighted choice, all counts."""
        return frozenset({"counts"} if self.reads_counts else {"labels", "totals"})

    @property
    def reads_counts(self) -> bool:
        """Whether the server must know how many samples of each label every client holds."""
        return self.clients not in ("uniform", "binomial")

    @property
    def sampler(self) -> Sampler:
        """Clients take samples from their own shuffled lists, or draw lots for how many they give."""
        return Lots(self.strata) if self.clients == "binomial" else Take(self.strata, bool(self.replacement))

    def hiding_counts(self) -> Stratified:
        """Let clients start over by themselves: who says that it has run out of a label tells how much it had.

        Returns
        -------
        Stratified

        Raises
        ------
        RequestError
            If it is to be without replacement, or weighs clients by their counts at the server.
        """
        if self.reads_counts:
            raise RequestError(
                f'method.schedule.clients = "{self.clients}" does not fit privacy.labels: the server would learn how '
                'many samples of each label every client holds; use "binomial", where clients weigh themselves, or '
                '"uniform"'
            )
        if self.replacement is False and self.clients != "binomial":
            raise RequestError(
                "method.schedule.replacement = false does not fit privacy.labels: who runs out of a label says so, and "
                "after an epoch the server knows everybody's counts; leave it out"
            )
        return replace(self, replacement=True)

    def totals(self, client_info: ClientInfo) -> np.ndarray:
        """Return the number of samples of each stratum.

        Parameters
        ----------
        client_info
            What the server knows of its clients.

        Returns
        -------
        numpy.ndarray
        """
        totals = client_info.counts.sum(0) if self.reads_counts else client_info.totals
        return totals if self.strata == "labels" else totals.sum(keepdims=True)

    def counts(self, table: np.ndarray) -> np.ndarray:
        """Return what a table of counts by client and label says by client and stratum.

        Parameters
        ----------
        table
            [clients, labels].

        Returns
        -------
        numpy.ndarray
            [clients, strata].
        """
        return table if self.strata == "labels" else table.sum(1, keepdims=True)

    def frequencies(self, totals: np.ndarray) -> np.ndarray:
        """Return f_l: how often each stratum stands in the schedule. One that nobody holds does not.

        Parameters
        ----------
        totals
            Samples of each stratum.

        Returns
        -------
        numpy.ndarray
        """
        held = totals > 0
        if self.frequency == "uniform":
            each = self.each or ceil(totals.sum() / max(held.sum(), 1))
            f = np.where(held, each, 0)
        else:
            f = np.minimum(totals, self.cap or totals.max(initial=0))
        return f if self.length is None else scale_frequencies(f, self.length)

    def check_frequencies(self, totals: np.ndarray) -> np.ndarray:
        """Return the frequencies if a schedule can be made of them.

        Parameters
        ----------
        totals
            Samples of each stratum.

        Returns
        -------
        numpy.ndarray

        Raises
        ------
        PartError
            If `frequencies` gave something else than a whole number for each stratum.
        """
        given: Any = self.frequencies(totals)
        allowed = f"a whole number from 0 for each of the {len(totals)} strata, and 0 for one that nobody holds"
        if not isinstance(given, np.ndarray) or given.shape != totals.shape or given.dtype.kind not in "iu":
            raise broken(self, "frequencies", f"gave {describe(given)}; allowed: {allowed}")
        if (given < 0).any() or (given[totals == 0] > 0).any():
            said = f"gave {given.tolist()} for strata of {totals.tolist()} samples"
            raise broken(self, "frequencies", f"{said}; allowed: {allowed}")
        return given

    def epoch(self, number: int, view: View) -> Epoch:
        """Draw a schedule and start with everybody who is there.

        Parameters
        ----------
        number
            Epochs before this one.
        view
            The round in which it begins.

        Returns
        -------
        Epoch
        """
        f = self.check_frequencies(self.totals(view.client_info))
        known = view.client_info.counts if self.reads_counts else view.client_info.labels
        held = self.counts(known)[view.eligible] > 0
        holders = [view.eligible[held[:, p]].tolist() for p in range(len(f))]
        strata, places = arrange(f, self.order, view.rng("labels"))
        return Epoch(number, len(strata), strata, places, Supply.of(holders))


def scale_frequencies(f: np.ndarray, length: int) -> np.ndarray:
    """Scale frequencies to a sum, by largest remainders; ties go to the smaller label."""
    whole, rest = np.divmod(f.astype(np.int64) * length, max(int(f.sum()), 1))  # in whole numbers: ties must be ties
    whole[np.argsort(-rest, kind="stable")[: length - int(whole.sum())]] += 1
    return whole


def arrange(f: np.ndarray, order: str, rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Return strata in the order of their places in (0, 1), and the places.

    With independent uniform places this is a shuffle, and an entry that comes back later finds a uniformly random
    position among those still to come by drawing a new place after the present one.
    """
    strata: np.ndarray = np.repeat(np.arange(len(f)), f)
    places = rng.random(len(strata))
    if order == "spread":  # one place in each of f_l equal intervals
        nth = np.arange(len(strata)) - np.repeat(np.cumsum(f) - f, f)
        places = (nth + places) / np.repeat(f, f)
    by_place = np.argsort(places, kind="stable")
    return strata[by_place], places[by_place]
