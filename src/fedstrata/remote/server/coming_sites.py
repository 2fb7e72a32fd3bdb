"""Who could still come to a run that waits for sites, as far as that is known."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from fedstrata.core.errors import RequestError


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

    def too_few(self, sites: int) -> str | None:
        """Say that the roll, as it is now, has too few; None: it has enough, or nobody knows.

        Raises
        ------
        RequestError
            If a run that goes on never had so many sites: no roll can bring them.
        """
        if self.own is not None and sites > len(self.own):
            raise RequestError(
                f"--sites = {sites}: the run goes on with its own sites, {', '.join(sorted(self.own))}; "
                f"allowed: at most {len(self.own)}"
            )
        able = None if self.registered is None else self._able()
        if able is None or len(able) >= sites:
            return None
        return (
            f"--sites = {sites}, and the roll has {len(able)} who can come ({', '.join(sorted(able)) or 'nobody'}): "
            f"this waits until it has more (fedstrata deploy keys add, and bring roll.json to the server); to begin "
            f"now, stop it and ask for at most {len(able)}"
        )

    def _able(self) -> set[str] | None:
        own = None if self.own is None else {*self.own}
        if self.registered is None:
            return own
        registered = {*self.registered()}
        return registered if own is None else registered & own


ANYBODY = ComingSites()
