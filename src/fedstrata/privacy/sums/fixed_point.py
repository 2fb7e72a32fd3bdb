"""Numbers as words: masks cancel exactly only among integers, so what is summed is rounded to multiples of 2^-fraction.

Words are integers modulo 2^bits, negative ones in two's complement. A sum of n words is the sum of the rounded numbers
as long as it does not wrap around, so every one of them must keep within 2^(bits-1-fraction) / n; one that does not is
an error, never a silent wrap. The sum is off by at most n/2 units of 2^-fraction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from fedstrata.core.errors import FedstrataError, RequestError

TOO_LARGE = (  # what a client says of it to others: the number is its own
    "a number to be added up under masks is too large for privacy.encoding, or is none; features on one scale "
    "(data.scale, at every site) and a smaller train.lr keep numbers small; more bits and a smaller fraction take "
    "larger ones"
)
CHUNK = 1 << 14  # numbers that are worked on at once: they stay in the cache


class TooLargeError(FedstrataError):
    """A number that does not fit its share of the words' range."""


@dataclass(frozen=True)
class Encoding:
    """How numbers become words. 32 bits serve updates; 64 serve wide ranges, such as the sums of batch norm."""

    bits: Literal[32, 64] = 32
    fraction: int = 20

    def __post_init__(self) -> None:
        if self.bits not in {32, 64}:
            raise RequestError(f"bits = {self.bits}: a word has 32 or 64 bits")
        if not 0 <= self.fraction < self.bits - 1:
            raise RequestError(f"fraction = {self.fraction}: allowed are 0 to {self.bits - 2} of {self.bits} bits")

    @property
    def dtype(self) -> np.dtype[Any]:
        """The words' type, the same on every machine."""
        return np.dtype(f"<u{self.bits // 8}")

    @property
    def unit(self) -> float:
        """The distance of neighbouring numbers."""
        return 2.0**-self.fraction

    def most(self, n: int) -> float:
        """Return the largest size of a number of which n are summed."""
        return self._limit(n) * self.unit

    def words(self, values: Any, n: int, weight: float = 1.0) -> np.ndarray:
        """Encode numbers times a weight, to be summed with those of n - 1 others."""
        flat = _flat(values)
        out, buffer = np.empty(len(flat), f"<i{self.bits // 8}"), np.empty(min(CHUNK, len(flat)))
        scale, limit = weight * 2.0**self.fraction, self._limit(n)
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows or is no number is found below
            for at in range(0, len(flat), CHUNK):
                part = flat[at : at + CHUNK]
                scaled = buffer[: len(part)]
                np.multiply(part, scale, out=scaled, dtype=np.float64)
                np.rint(scaled, out=scaled)
                largest = float(max(scaled.max(), -scaled.min()))
                if not largest <= limit:  # so that NaN is refused, too
                    raise self._too_large(largest * self.unit, n)
                out[at : at + len(part)] = scaled
        return out.view(self.dtype)

    def numbers(self, words: np.ndarray) -> np.ndarray:
        """Decode a sum."""
        return words.view(f"<i{self.bits // 8}") * np.float64(self.unit)

    def _limit(self, n: int) -> float:
        """Return the largest whole number, as a float, of which n do not wrap around."""
        limit = (2 ** (self.bits - 1) - 1) // n
        return float(limit) if int(float(limit)) <= limit else float(np.nextafter(float(limit), 0.0))

    def _too_large(self, size: float, n: int) -> TooLargeError:
        if not np.isfinite(size):
            return TooLargeError("a number to be summed is not finite")
        return TooLargeError(
            f"a number of size {size:.6g} is to be summed with those of {n - 1} others: with {self.bits} bits, "
            f"{self.fraction} of them behind the point, at most {self.most(n):.6g} is allowed"
        )


NARROW, WIDE = Encoding(), Encoding(64, 32)


def _flat(values: Any) -> np.ndarray:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().numpy()
    array = np.asarray(values)
    if array.ndim != 1:
        raise RequestError(f"numbers to be summed come as a flat array, not in {array.ndim} dimensions")
    return array
