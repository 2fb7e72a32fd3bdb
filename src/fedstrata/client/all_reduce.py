"""Where clients of one step meet while they compute: everybody brings a tensor, everybody leaves with the average."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Condition
from typing import TypeVar

import torch
from torch import Tensor

from fedstrata.core.batch_norm import AllReduce, By
from fedstrata.core.engine import SumTensors
from fedstrata.core.flat_model import ParameterSpace

T = TypeVar("T")


class AbandonedError(RuntimeError):
    """A member waits for one that failed."""


class Statistics:
    """Averages what members bring, and remembers what norms agreed on."""

    def __init__(self, by: By):
        self._by = by
        self._seen: dict[str, list[tuple[Tensor, float]]] = {}

    def average(self, what: str, total: Tensor, count: float, members: int) -> tuple[Tensor, float]:
        """Return the average of a total over some values of some members, and the count it is of."""
        agreed = total / (count if self._by == "samples" else members), count
        self._seen.setdefault(what, []).append(agreed)
        return agreed

    def table(self, space: ParameterSpace) -> Tensor | None:
        """Return the batch's means and unbiased variances where the model's buffers hold the running ones.

        One row for each time a norm was used in the forward pass; not a number where it was used less often.
        """
        seen = self._seen
        used = [norm for norm in space.norms if f"{norm.name}.mean" in seen]
        if not used:
            return None
        uses = max(len(seen[f"{norm.name}.mean"]) for norm in used)
        table = torch.full((uses, space.Q), torch.nan, dtype=seen[f"{used[0].name}.mean"][0][0].dtype)
        for norm in used:
            pairs = zip(seen[f"{norm.name}.mean"], seen[f"{norm.name}.var"], strict=True)
            for row, ((mean, count), (variance, _)) in zip(table, pairs, strict=False):
                norm.mean.of(row).copy_(mean)
                norm.var.of(row).copy_(variance * count / max(count - 1, 1))
        return table


class AllReduceGroup:
    """Collects one contribution a member, averages in the order of members, and remembers norm statistics.

    Members compute one at a time, in order: whatever a module draws from torch's one generator, equal runs draw alike.
    A member that is done leaves, and the others go on without it; one that fails takes the meeting down with it.
    """

    def __init__(self, members: int, by: By, add: SumTensors | None = None):
        self._members, self._add, self._statistics = set(range(members)), add or sum_in_order, Statistics(by)
        self._brought: dict[int, tuple[str, Tensor, float]] = {}
        self._agreed: tuple[Tensor, float] | None = None  # the average, and the count it is of
        self._exchanges, self._turn = 0, 0
        self._broken = False
        self._changed = Condition()

    def begin(self, member: int) -> None:
        """Wait for one's first turn."""
        with self._changed:
            self._changed.wait_for(lambda: self._turn == member or self._broken)

    def exchange(self, member: int, what: str, values: Tensor, count: float) -> tuple[Tensor, float]:
        """Bring a tensor, wait for the others, and give the average and the count over all."""
        with self._changed:
            before = self._exchanges
            self._brought[member] = (what, values, float(count))
            self._advance()
            self._changed.wait_for(lambda: (self._exchanges > before and self._turn == member) or self._broken)
            if self._broken or self._agreed is None:
                raise AbandonedError("another client of this step failed")
            average, total = self._agreed
            return average.to(values.device, copy=True), total  # members may work on several GPUs

    def leave(self, member: int, failed: bool = False) -> None:
        """Go on without a member."""
        with self._changed:
            self._members.discard(member)
            self._broken |= failed
            self._advance()

    def _advance(self) -> None:
        """Let the next member compute that has brought nothing yet; with everybody there, average and start anew."""
        missing = self._members - self._brought.keys()
        if self._members and not missing:
            self._average()
            missing = self._members
        self._turn = min(missing, default=-1)
        self._changed.notify_all()

    def _average(self) -> None:
        brought = dict(sorted(self._brought.items()))
        what, *others = {name for name, _, _ in brought.values()}
        count = sum(count for _, _, count in brought.values())
        self._broken |= bool(others)
        if not self._broken:
            total = self._add({member: values for member, (_, values, _) in brought.items()})
            self._agreed = self._statistics.average(what, total, count, len(brought))
        self._brought, self._exchanges = {}, self._exchanges + 1

    def statistics(self, space: ParameterSpace) -> Tensor | None:
        """Return what norms agreed on."""
        return self._statistics.table(space)


def sum_in_order(brought: Mapping[int, Tensor]) -> Tensor:
    """Add in the open."""
    total, *others = brought.values()
    for values in others:
        total = total + values.to(total.device)
    return total


def run_in_lockstep(
    client_updates: Sequence[Callable[[AllReduce], T]], by: By, add: SumTensors | None = None
) -> tuple[list[T], AllReduceGroup]:
    """Make client updates in turns, one thread each, so that they can meet; results in order."""
    place = AllReduceGroup(len(client_updates), by, add)

    def make(member: int) -> T:
        all_reduce, failed = AllReduce(by, partial(place.exchange, member)), True
        try:
            place.begin(member)
            # Autograd's own threads would run all backward passes of a GPU in one, and one that waits would block all.
            with torch.autograd.set_multithreading_enabled(False):
                result = client_updates[member](all_reduce)
            failed = False
            return result
        finally:
            place.leave(member, failed)

    with ThreadPoolExecutor(max(len(client_updates), 1)) as threads:
        try:
            waiting = [threads.submit(make, member) for member in range(len(client_updates))]
        except BaseException:  # no more threads, or Ctrl-C: those that have begun must not wait for the others
            place.leave(-1, failed=True)
            raise
    errors = [w.exception() for w in waiting if w.exception() is not None]
    for error in sorted(errors, key=lambda e: isinstance(e, AbandonedError)):  # the cause before its consequences
        raise error  # type: ignore[misc]
    return [w.result() for w in waiting], place
