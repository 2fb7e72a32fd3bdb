"""The server's half of a protected sum: of what clients send in a step it learns one weighted sum, and no more.

What carries messages to the clients is given: calls in a simulation, a network to real sites. `protect.py` is the
clients' half.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedstrata.core.errors import PoisonedSumError, UnsummableError
from fedstrata.core.messages import FIGURES, Sums, Tensors, tensor_bytes
from fedstrata.core.rng import Rng
from fedstrata.privacy.frames import Refuse
from fedstrata.privacy.identity import Identity, KeyDirectory
from fedstrata.privacy.noise import UpdateNoise, at_most_one
from fedstrata.privacy.protect import cut
from fedstrata.privacy.sums.fixed_point import Encoding
from fedstrata.privacy.sums.protocol import TOO_LIGHT, SumTask, magnitude, one_weighs_all
from fedstrata.privacy.sums.secure_sum import Carry, carry_out
from fedstrata.privacy.sums.summing import Summing

ROUNDING = 1e-5  # of lengths in single precision
Connect = Callable[[SumTask], Carry]  # gives what carries the messages of a sum, once it is known which one


@dataclass(frozen=True)
class MaskedStep:
    """A step whose clients add up under masks: what the server must know of it."""

    identity: Identity  # the server's
    key_directory: KeyDirectory
    encoding: Encoding
    job: bytes
    clients: Sequence[int]  # all that were asked

    def task(self, size: int, weights: Mapping[int, float]) -> SumTask:
        """Describe the sum of arrays of a size, the same at every party; who has no weight is not in it."""
        members = tuple(sorted(self.clients))
        magnitudes = tuple(magnitude(weights.get(member, 0.0)) for member in members)
        return SumTask(self.job, members, size, self.key_directory.digest, self.encoding, magnitudes=magnitudes)


@dataclass
class StepSum:
    """The sum of one step: it is formed once, because two sums would tell their difference."""

    noise: UpdateNoise | None
    draw: Callable[[], Rng]  # where the server's own noise comes from
    clip: float | None = None  # length to which clients shorten their update, where it is not noised
    overhead: tuple[int, int] = field(default=(0, 0), init=False)  # bytes up and down, beside what reports declare
    _formed: bool = field(default=False, init=False)

    def sum_open(self, weights: Mapping[int, float], values: Mapping[int, np.ndarray], layout: Tensors) -> Sums:
        """Sum flat updates that the server sees; of `layout`, only names, shapes and types are read."""
        self._begin()
        shares, most = _shares(weights)
        some = [shares[client] * values[client] for client in weights]
        total: np.ndarray = np.sum(some, axis=0) if some else np.zeros(_size(layout))
        return self._noised(total, most, weights, layout)

    def sum_masked(
        self,
        weights: Mapping[int, float],
        layout: Tensors,
        step: MaskedStep,
        connect: Connect,
        refuse: Refuse,
    ) -> Sums:
        """Let those of the step's clients that have a weight add up under masks.

        One that fails on the way, of which `refuse` is told, is left out of the sum.
        """
        self._begin()
        shares, most = _shares(weights)
        if one_weighs_all([magnitude(share) for share in shares.values()]):
            raise UnsummableError(TOO_LIGHT)
        task = step.task(_size(layout), shares)
        if task.alone(weights):
            raise UnsummableError(f"{len(weights)} of {len(task.members)} are too few to take the masks off")
        aggregated = carry_out(
            Summing(task, step.identity, step.key_directory), task.members, shares, connect(task), refuse
        )
        declared = {name: tensor for name, tensor in layout.items() if name != FIGURES}  # by the reports
        plain = tensor_bytes(declared) * len(weights)
        self.overhead = sum(aggregated.up.values()) - plain, sum(aggregated.down.values())
        self._check_length(aggregated.total, shares, step.encoding.unit, layout)
        return self._noised(aggregated.total, most, weights, layout)

    def _check_length(self, total: np.ndarray, shares: Mapping[int, float], unit: float, layout: Tensors) -> None:
        """Refuse a sum that is longer than clients make it who all keep to one length; numbers are `unit` apart."""
        own = self.clip if self.noise is None else self.noise.longest(len(total))
        if own is None or "update" not in layout:
            return
        update = cut(total, layout)["update"]
        length, most = float(update.double().norm()), own * sum(shares.values())
        if length > most * (1 + ROUNDING) + unit / 2 * len(shares) * update.numel() ** 0.5:
            raise PoisonedSumError(
                f"the sum is {length:.3g} long, and updates of the length that clients agreed on make it {most:.3g} at "
                "most: one of them is longer, and under masks nobody can say whose"
            )

    def _begin(self) -> None:
        if self._formed:
            raise RuntimeError("masked or noised updates are summed once a step; use another combiner")
        self._formed = True

    def _noised(self, total: np.ndarray, most: float, weights: Mapping[int, float], layout: Tensors) -> Sums:
        """Add the server's noise to a sum with weights of at most 1, and give it as tensors with its own weights."""
        if self.noise is not None:
            total = total + self.noise.of_sum(len(total), self.draw)
        return Sums(cut(total * most, layout), float(sum(weights.values())), len(weights), shares=dict(weights))


def _shares(weights: Mapping[int, float]) -> tuple[dict[int, float], float]:
    shares, most = at_most_one(np.array(list(weights.values())))
    return dict(zip(weights, shares.tolist(), strict=True)), most


def _size(layout: Tensors) -> int:
    return sum(tensor.numel() for tensor in layout.values())
