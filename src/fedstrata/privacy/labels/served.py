"""What a client remembers of the jobs it served, so that no two sums can be subtracted down to a few clients.

A server that learns the sum of counts over a set of clients S, and then over S without one of them, knows that one's
counts; and a client cannot tell a server that pretends somebody dropped out from one that says the truth. Therefore a
client that has once sent its masked counts within a set sends them again only

* within the same set, or
* within a part of it that leaves at least three of it out, and has at least three clients and at least half of the
  first set in which this client ever sent its counts.

Why that is enough. A sum is known to the server only if all clients of its set sent their counts. Two such sets with a
client in common are parts of each other, at least three clients apart: that client served both. Two without one inside
a third are its exact halves. So all sums that can be had are over a chain of sets (or over a set and its halves), and
adding and subtracting them gives the sums over what the chain loses at each link and over its end: at least three
clients each, no finer. (Comparing sets two by two would not do: {x} with A and B, then A, then B, are far from each
other and give x. Nor would half of the last set: a server can have counts sent in sets it never completes.)

A job that ended before a client sent its counts told nothing of them and does not bind the client, but its id is never
accepted again. Clients that conspire with the server know their own share of a sum: they learn the sum over the others
of its set. A set in which all conspire but one protects nobody, whatever the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from fedstrata.core.errors import FedstrataError
from fedstrata.core.rng import Rng
from fedstrata.privacy import FEWEST
from fedstrata.privacy.frames import RefusedError


@dataclass
class Served:
    """One client's memory; it must outlive the jobs. Clients go by their public keys, or what `name` makes of them."""

    jobs: set[bytes] = field(default_factory=set)  # seen, served or not
    first: frozenset[bytes] | None = None  # the set in which its counts were sent first
    last: frozenset[bytes] | None = None  # ... and last
    name: Callable[[bytes], bytes] = lambda key: key
    keep: Callable[[Served], None] = lambda _: None  # is told of a new set, before counts are sent
    anew: str = ""  # how the client's owner can allow what is refused

    def new_job(self, job: bytes) -> None:
        """Take note of a job."""
        if job in self.jobs:
            raise RefusedError("the server repeats the id of an earlier job")
        self.jobs.add(job)

    def check(self, members: Collection[bytes]) -> None:
        """Refuse a set in which the counts must not be sent."""
        now = frozenset(map(self.name, members))
        if len(now) < FEWEST:
            raise RefusedError(f"a sum over {len(now)} clients is asked for; at least {FEWEST} must take part")
        if self.first is None or self.last is None or now == self.last:
            return
        if not now < self.last or len(self.last - now) < FEWEST or 2 * len(now) < len(self.first):
            raise RefusedError(
                f"it took part in a sum over {len(self.last)} clients before, and one over these {len(now)} could be "
                f"subtracted from it, which may tell a single client's: it takes part with the same ones only, or with "
                f"{FEWEST} fewer and still half of the first ones{self.anew}"
            )

    def sent(self, members: Collection[bytes]) -> None:
        """Take note that the counts are about to be sent within a set."""
        self.check(members)
        now = frozenset(map(self.name, members))
        if now != self.last:
            self.first, self.last = self.first or now, now
            self.keep(self)


def remaining(
    members: Collection[int], missing: Collection[int], least: int, first: int, told: bool, rng: Rng
) -> tuple[int, ...]:
    """Return the clients with whom a job can be repeated without the missing ones.

    `first`: of how many clients counts were asked first, 0 if of none yet; `told`: whether in this job some may have
    sent theirs. Then at least three must stay away, and the server draws who goes with the missing ones.
    """
    stay = sorted(set(members) - set(missing))
    spare = max(FEWEST - len(members) + len(stay), 0) if told else 0
    needed = max(least, -(-first // 2))
    if len(stay) - spare < needed:
        why = f" (once counts were sent, {FEWEST} must stay away and half of the first clients remain)" if first else ""
        raise FedstrataError(
            f"label masking cannot go on: of {len(members)} clients {len(members) - len(stay)} are missing, and "
            f"{max(len(stay) - spare, 0)} could go on where {needed} are needed{why}"
        )
    gone = {stay[at] for at in rng.permutation(len(stay))[:spare].tolist()}
    return tuple(client for client in stay if client not in gone)
