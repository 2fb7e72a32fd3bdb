"""How much privacy a run has spent: (epsilon, delta) of clipped sums with Gaussian noise, by dp-accounting.

The guarantee is for whole clients (user level). Two runs are neighbours if they differ in what one client contributes:

* added or removed: its contribution is there, or is zero. A sum of contributions of norm at most `clip` changes by at
  most `clip`.
* replaced: it is another one. The sum changes by at most 2 `clip`, so the same noise counts for half as much.

Noise is told as a multiple of `clip`, everywhere; dp-accounting counts in multiples of the sensitivity, and divides by
nothing itself: what it is given is `noise / sensitivity` (`Accountant.effective`).

Rounds compose. Without sampling, T Gaussian mechanisms are one with noise / sqrt(T), whose epsilon is known exactly
(Balle and Wang, 2018). Sampling amplifies: of a fixed number of clients without replacement, among neighbours by
replacement (Wang, Balle and Kasiviswanathan, 2019); of each client independently, among neighbours by addition (Mironov
et al., 2019). Amplified epsilons come from Renyi divergences and are an upper bound; where not amplifying gives less,
that is given. Sampling helps only against those who do not learn who took part: never against the server.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from math import inf, isfinite, sqrt
from typing import Any, Literal

import numpy as np

from fedstrata.core.errors import RequestError

Adjacency = Literal["added or removed", "replaced"]
MOST = 1 << 40  # rounds; no budget is asked about more


@dataclass(frozen=True)
class FixedSize:
    """Every round draws k of `of` clients, uniformly and without replacement.

    Attributes
    ----------
    k
        Clients of a round.
    of
        The fewest it could ever draw from.
    """

    k: int
    of: int

    def __post_init__(self) -> None:
        if not 1 <= self.k <= self.of:
            raise RequestError(f"k = {self.k} of {self.of} clients: at least 1, and no more than there are")


@dataclass(frozen=True)
class Fraction:
    """Every round draws each client with probability q, independently of all others."""

    q: float

    def __post_init__(self) -> None:
        if not 0 < self.q <= 1:
            raise RequestError(f"q = {self.q}: a number above 0, at most 1")


@dataclass(frozen=True)
class Accountant:
    """The epsilon of so many rounds.

    Attributes
    ----------
    noise
        Standard deviation, in multiples of the clip.
    delta
        Best far below 1 / clients.
    sampling
        How clients are drawn, which amplifies; None: no amplification is claimed, which is always valid.
    local
        Every client adds its own noise to what it sends, and the server is not trusted. Any two contributions of a
        client are then neighbours, and rounds are its own reports: at worst it takes part in every one.

    Raises
    ------
    RequestError
        If a number is out of range, local noise is to be amplified, or dp-accounting is not installed.

    Examples
    --------
    >>> from fedstrata import Accountant
    >>> accountant = Accountant(noise=1.0, delta=1e-5)
    >>> round(accountant.epsilon(1), 2), round(accountant.epsilon(10), 2)
    (4.38, 17.86)
    >>> accountant.rounds_within(8.0)
    2
    """

    noise: float
    delta: float
    sampling: FixedSize | Fraction | None = None
    local: bool = False

    def __post_init__(self) -> None:
        if not (isfinite(self.noise) and self.noise >= 0):
            raise RequestError(f"noise = {self.noise}: a number >= 0")
        if not 0 < self.delta < 1:
            raise RequestError(f"delta = {self.delta}: a number between 0 and 1, best far below 1 / clients")
        if self.local and self.sampling is not None:
            raise RequestError("local noise: sampling amplifies nothing, because the server sees who reports")
        library()

    @property
    def adjacency(self) -> Adjacency:
        """Which runs are neighbours."""
        return "replaced" if self.local or isinstance(self.sampling, FixedSize) else "added or removed"

    @property
    def sensitivity(self) -> int:
        """How far neighbours can be apart, in multiples of the clip."""
        return 2 if self.adjacency == "replaced" else 1

    @property
    def effective(self) -> float:
        """The noise in multiples of the sensitivity, as dp-accounting wants it."""
        return self.noise / self.sensitivity

    def epsilon(self, rounds: int) -> float:
        """Return what so many rounds spend.

        Parameters
        ----------
        rounds
            How many.

        Returns
        -------
        float
            Infinite without noise.

        Raises
        ------
        RequestError
            If `rounds` is negative.
        """
        if rounds < 0:
            raise RequestError(f"rounds = {rounds}: a whole number >= 0")
        if not rounds:
            return 0.0
        if not self.noise:
            return inf
        return _epsilon(self, rounds)

    def rounds_within(self, budget: float) -> int:
        """Return the largest number of rounds that spend no more than a budget: a run stops after them.

        Parameters
        ----------
        budget
            Epsilon.

        Returns
        -------
        int

        Raises
        ------
        RequestError
            If `budget` is negative.
        """
        if not budget >= 0:
            raise RequestError(f"budget = {budget}: a number >= 0")
        low, high = 0, 1
        while high < MOST and self.epsilon(high) <= budget:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.epsilon(middle) <= budget else (low, middle)
        return low

    def describe(self) -> str:
        """Say what the epsilon means.

        Returns
        -------
        str
            Who is protected against whom, which runs are neighbours, and how rounds compose.
        """
        who = "each client's reports, against everybody" if self.local else "the models, against all but the server"
        return (
            f"(epsilon, {self.delta:g})-differential privacy for whole clients, of {who}; Gaussian noise of"
            f" {self.noise:g} x clip; neighbours: what one client contributes is {self.adjacency}, so that a sum"
            f" changes by at most {self.sensitivity} x clip; {self._rounds()}"
        )

    def _rounds(self) -> str:
        match self.sampling:
            case FixedSize(k, of):
                how = f"amplified by drawing {k} of {of} clients without replacement"
            case Fraction(q):
                how = f"amplified by drawing each client with probability {q:g}"
            case None if self.local:
                return "a client's reports compose exactly, as if it took part in every round"
            case None:
                return "rounds compose exactly, and no amplification by sampling is claimed"
        return f"{how} (Renyi accounting), which holds against those who do not learn who took part"


@cache
def _epsilon(accountant: Accountant, rounds: int) -> float:
    dp, sampling, delta = library(), accountant.sampling, accountant.delta
    plain = float(dp.get_epsilon_gaussian(accountant.effective / sqrt(rounds), delta))
    if sampling is None:
        return plain
    orders, divergences = _renyi(accountant.effective, sampling)
    amplified = dp.rdp.compute_epsilon(orders, rounds * divergences, delta)[0] if len(orders) else inf
    return min(plain, float(amplified))


@cache
def _renyi(noise: float, sampling: FixedSize | Fraction) -> tuple[np.ndarray, np.ndarray]:
    """Return orders, and the Renyi divergence of one round at each; it takes a good part of a second, once."""
    dp = library()
    relation, event = dp.NeighboringRelation.ADD_OR_REMOVE_ONE, dp.GaussianDpEvent(noise)
    if isinstance(sampling, FixedSize):
        relation = dp.NeighboringRelation.REPLACE_ONE
        event = dp.SampledWithoutReplacementDpEvent(sampling.of, sampling.k, event)
    else:
        event = dp.PoissonSampledDpEvent(sampling.q, event)
    accountant = dp.rdp.RdpAccountant(neighboring_relation=relation)
    with np.errstate(all="ignore"):  # with little noise high orders are infinite, and not used
        accountant.compose(event)
    finite = np.isfinite(accountant.rdp)
    return accountant.orders[finite], accountant.rdp[finite]


def library() -> Any:
    """Return dp-accounting, which is an extra."""
    try:
        return import_module("dp_accounting")
    except ImportError:
        raise RequestError('differential privacy needs dp-accounting: pip install "fedstrata[dp]"') from None
