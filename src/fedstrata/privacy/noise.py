"""User-level clipping and Gaussian noise: the mechanism whose epsilon `accounting.py` computes.

What a round releases is  sum_i w_i clipped(u_i) + noise,  with 0 <= w_i <= 1 and noise of standard deviation
`multiplier * clip` in every coordinate. A contribution w_i clipped(u_i) has norm at most `clip`; so the sum changes by
at most `clip` if one is added or removed, and by at most 2 `clip` if one is replaced by another.

This holds for fixed w_i. Weights, and the number by which the sum is divided, must therefore not depend on anything
that should be private: they are equal, or count as public (sizes of clients that the server knows anyway). For a
combination with coefficients a_i = a_max w_i, the noise of the sum becomes a_max times as large: `coefficient` below.
Where sampling is to amplify, weights must be equal, or their sum tells who took part.

Gaussian noise in floating point is not quite Gaussian: its last bits can tell something (Mironov, 2012).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite

import numpy as np

from fedstrata.core.errors import RequestError
from fedstrata.core.rng import Rng


@dataclass(frozen=True)
class UpdateNoise:
    """Clipping and noise, by the server or by every client."""

    clip: float
    noise: float
    local: bool

    @property
    def cost(self) -> float:
        """What a report spends: (sensitivity / noise) squared. Costs add up, and epsilon follows from their sum.

        Without noise nothing is promised, and nothing counted.
        """
        return ((2 if self.local else 1) / self.noise) ** 2 if self.noise else 0.0

    def leaving(self, update: np.ndarray, unit: float, draw: Callable[[], Rng]) -> np.ndarray:
        """Return what leaves a client, before weights and masks; in fixed point, numbers are `unit` apart, else 0."""
        rounding = unit / 2 * len(update) ** 0.5  # how much longer an update may become where it is written so
        flat = clip_update(update, self.clip - rounding)
        return flat + local_noise(len(flat), self.clip, self.noise, draw()) if self.local else flat

    def longest(self, numbers: int) -> float:
        """Return a length that what leaves a client does not exceed; with its own noise, in all but 1 of 1e20 cases."""
        return self.clip * (1 + (self.noise * (numbers**0.5 + 10) if self.local else 0.0))

    def of_sum(self, numbers: int, draw: Callable[[], Rng]) -> np.ndarray:
        """Return what the server adds to a sum with weights of at most 1."""
        return np.zeros(numbers) if self.local else central_noise(numbers, self.clip, self.noise, draw())


def clip_update(update: np.ndarray, clip: float) -> np.ndarray:
    """Scale a whole update to a norm of at most `clip`, rounding included; a shorter one stays as it is.

    One whose norm is not finite becomes zero: it has no direction, and something within the bound must be sent.
    """
    _check(clip, "clip")
    wide = update.astype(np.float64, copy=False)
    with np.errstate(over="ignore", invalid="ignore"):
        norm = float(np.linalg.norm(wide))
    if not isfinite(norm):
        return np.zeros_like(update)
    if norm <= clip:
        return update
    hair = max(float(np.finfo(update.dtype).eps), 1e-12)  # else rounding could leave it a little too long
    scaled: np.ndarray = (wide * (clip / norm * (1 - hair))).astype(update.dtype)
    return scaled


def at_most_one(coefficients: np.ndarray) -> tuple[np.ndarray, float]:
    """Return weights of at most 1, and the number to multiply their sum with."""
    most = float(coefficients.max(initial=0.0))
    if not isfinite(most) or coefficients.min(initial=0.0) < 0:
        raise RequestError("weights of a masked or noised sum must be finite and not negative")
    return coefficients / most if most else coefficients, most


def central_noise(shape: int | tuple[int, ...], clip: float, multiplier: float, rng: Rng) -> np.ndarray:
    """Draw what a trusted server adds to a sum, once a round.

    Sensitivity of the sum, in which an update has a weight of at most 1: `clip` if a client is added or removed,
    2 `clip` if one is replaced.
    """
    return _gaussian(shape, clip, multiplier, rng)


def local_noise(shape: int | tuple[int, ...], clip: float, multiplier: float, rng: Rng) -> np.ndarray:
    """Draw what a client adds to what it sends, `w_i clipped(u_i)`, before it leaves.

    The server may be anybody, so any two contributions are neighbours: sensitivity 2 `clip`.
    """
    return _gaussian(shape, clip, multiplier, rng)


def _gaussian(shape: int | tuple[int, ...], clip: float, multiplier: float, rng: Rng) -> np.ndarray:
    _check(clip, "clip")
    if not (isfinite(multiplier) and multiplier >= 0):
        raise RequestError(f"noise = {multiplier}: a number >= 0")
    return rng.normal(0.0, multiplier * clip, shape)


def _check(value: float, key: str) -> None:
    if not (isfinite(value) and value > 0):
        raise RequestError(f"{key} = {value}: a number > 0")
