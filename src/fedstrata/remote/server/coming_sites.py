"""Who could still come to a run that waits for sites, as far as that is known."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class ComingSites:
    """Tells whom a run waits for; whose key counts no more is not waited for.

    A roll may bring sites, or shut some out, while a run waits: so `registered` is asked again and again.
    """

    own: Collection[str] | None = None  # the sites of the run, where it goes on
    registered: Callable[[], Collection[str]] | None = None  # whose keys count; None: there are no keys
    tell: Callable[[Collection[str]], None] = lambda _: None

    def counted(self, there: Collection[str]) -> list[str]:
        """Return who counts of those that are there: strangers do not where a run goes on."""
        return sorted(there if self.own is None else {*there} & {*self.own})

    def without(self, there: Collection[str]) -> list[str]:
        """Return who is not there of those who could be."""
        return sorted({*(self._able() or ())} - {*there})

    def miss(self, missing: Collection[str]) -> None:
        """Tell who is missing; where no key of theirs counts, all of them: the run still waits."""
        able = self._able() if missing else None
        self.tell(missing if able is None else {*missing} & able or missing)

    def _able(self) -> set[str] | None:
        own = None if self.own is None else {*self.own}
        if self.registered is None:
            return own
        registered = {*self.registered()}
        return registered if own is None else registered & own


ANYBODY = ComingSites()
