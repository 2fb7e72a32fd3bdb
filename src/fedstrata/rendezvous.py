"""Where clients of one step meet while they compute: everybody brings a tensor, everybody leaves with the average."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Condition
from typing import TypeVar

import torch
from torch import Tensor

from fedstrata.norms import By, Meeting
from fedstrata.space import Space

T = TypeVar("T")


class Rendezvous:
    """Collects one contribution a member, averages in the order of members, and remembers norm statistics.

    A member that is done leaves, and the others go on without it; one that fails takes the meeting down with it.
    """

    def __init__(self, members: int, by: By):
        self._by, self._members = by, set(range(members))
        self._brought: dict[int, tuple[str, Tensor, float]] = {}
        self._average: Tensor | None = None
        self._round = 0
        self._broken = False
        self._changed = Condition()
        self._seen: dict[str, tuple[Tensor, float]] = {}

    def exchange(self, member: int, what: str, values: Tensor, count: float) -> Tensor:
        """Bring a tensor, wait for the others, and give the average."""
        with self._changed:
            mine = self._round
            self._brought[member] = (what, values, float(count))
            self._conclude()
            self._changed.wait_for(lambda: self._round > mine or self._broken)
            if self._broken:
                raise RuntimeError("another client of this step failed")
            assert self._average is not None
            return self._average.clone()

    def leave(self, member: int, failed: bool = False) -> None:
        """Go on without a member."""
        with self._changed:
            self._members.discard(member)
            self._broken |= failed
            self._conclude()
            self._changed.notify_all()

    def _conclude(self) -> None:
        if not self._members or self._members - self._brought.keys():
            return
        brought = [self._brought[member] for member in sorted(self._brought)]
        (what, total, _), counts = brought[0], [count for _, _, count in brought]
        if {name for name, _, _ in brought} != {what}:
            self._broken = True
        elif not self._broken:
            for _, values, _ in brought[1:]:
                total = total + values
            self._average = total / (sum(counts) if self._by == "samples" else len(counts))
            self._seen.setdefault(what, (self._average, sum(counts)))
            self._brought = {}
            self._round += 1
        self._changed.notify_all()

    def statistics(self, space: Space) -> Tensor | None:
        """Give the batch's means and unbiased variances where the model's buffers hold the running ones."""
        if not all(f"{norm.name}.mean" in self._seen for norm in space.norms) or not space.norms:
            return None
        flat = torch.zeros(space.Q, dtype=self._seen[f"{space.norms[0].name}.mean"][0].dtype)
        for norm in space.norms:
            mean, count = self._seen[f"{norm.name}.mean"]
            variance, _ = self._seen[f"{norm.name}.var"]
            norm.mean.of(flat).copy_(mean)
            norm.var.of(flat).copy_(variance * count / max(count - 1, 1))
        return flat


def in_lockstep(visits: Sequence[Callable[[Meeting], T]], by: By) -> tuple[list[T], Rendezvous]:
    """Make visits side by side, one thread each, so that they can meet; results in order."""
    place = Rendezvous(len(visits), by)

    def make(member: int) -> T:
        meeting = Meeting(by, lambda what, values, count: place.exchange(member, what, values, count))
        failed = True
        try:
            # Autograd's own threads would run all backward passes of a GPU in one, and one that waits would block all.
            with torch.autograd.set_multithreading_enabled(False):
                result = visits[member](meeting)
            failed = False
            return result
        finally:
            place.leave(member, failed)

    with ThreadPoolExecutor(max(len(visits), 1)) as threads:
        waiting = [threads.submit(make, member) for member in range(len(visits))]
    errors = [w.exception() for w in waiting if w.exception() is not None]
    for error in sorted(errors, key=lambda e: "another client" in str(e)):  # the cause before its consequences
        raise error  # type: ignore[misc]
    return [w.result() for w in waiting], place
