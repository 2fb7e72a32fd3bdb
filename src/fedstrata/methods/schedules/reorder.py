"""Fewer transfers in single-sample learning: the entries of a chunk change places, so that runs are longer.

Not in the paper. Labels stay balanced: at no time was a stratum served more than `slack` entries more often, or less
often, than in the drawn order. With a slack of 0 that is the drawn order itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence


def reordered_runs(
    chunk: Sequence[int], pools: Mapping[int, Sequence[int]], use: Callable[[int, int], None], slack: int
) -> Iterator[tuple[int, list[int]]]:
    """Give clients with the strata of their runs, as `select_runs` does: a run begins with what is most overdue."""
    waiting = Waiting(chunk, slack)
    while (first := waiting.next_of(waiting.left)) is not None:
        best, longest = -1, list[int]()
        for client in dict.fromkeys(pools[first]):
            run = _run(client, first, pools, waiting)
            if len(run) > len(longest):
                best, longest = client, run
        for stratum in longest:
            waiting.serve(stratum)
            use(stratum, best)
        yield best, longest


def _run(client: int, first: int, pools: Mapping[int, Sequence[int]], waiting: Waiting) -> list[int]:
    """Return what a client can serve from here on, one entry for each time that it is in a pool."""
    turns = Counter({stratum: own for stratum in waiting.left if (own := pools[stratum].count(client))})
    run, stratum = list[int](), first
    while True:
        waiting.serve(stratum)
        run.append(stratum)
        turns[stratum] -= 1
        following = waiting.next_of([stratum for stratum, own in turns.items() if own])
        if following is None:
            break
        stratum = following
    for served in reversed(run):
        waiting.take_back(served)
    return run


class Waiting:
    """Entries of a chunk that nobody serves yet."""

    def __init__(self, chunk: Sequence[int], slack: int):
        self.chunk, self.slack = chunk, slack
        self.left = Counter(chunk)
        self.ahead: Counter[int] = Counter()  # by stratum: entries served beyond those of the drawn order so far
        self.at = 0

    def next_of(self, strata: Iterable[int]) -> int | None:
        """Return the stratum that is most overdue, of those that may come next; None: there is none.

        Of all that are left there always is one: if the stratum that was drawn for this place has been served before,
        some other one is behind.
        """
        if self.at == len(self.chunk):
            return None
        drawn = self.chunk[self.at]
        held = self.ahead[drawn] > -self.slack  # whether the drawn one can wait
        allowed = [s for s in strata if self.left[s] and (s == drawn or (held and self.ahead[s] < self.slack))]
        return min(allowed, key=lambda stratum: self.ahead[stratum] - (stratum == drawn), default=None)

    def serve(self, stratum: int) -> None:
        """Serve an entry."""
        self.ahead[stratum] += 1
        self.ahead[self.chunk[self.at]] -= 1
        self.left[stratum] -= 1
        self.at += 1

    def take_back(self, stratum: int) -> None:
        """Undo the last `serve`."""
        self.at -= 1
        self.left[stratum] += 1
        self.ahead[self.chunk[self.at]] += 1
        self.ahead[stratum] -= 1
