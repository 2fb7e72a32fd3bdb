"""What carries requests to sites and brings their replies; the rest of the engine knows nothing of networks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from fedstrata.core.errors import FedstrataError
from fedstrata.core.files import disk_is_full
from fedstrata.core.plain_text import plain_text

LONGEST = 1 << 31  # bytes of a request, and of a reply where nobody says less
SMALL = 1 << 24  # bytes of a reply before a run's model is known: descriptions, keys and sums over labels

Reply = TypeVar("Reply")
Answer = Callable[[bytes], bytes]  # a request in, a reply out: all that a site does


@dataclass(frozen=True)
class Failure:
    """A site's answer where it could not do what it was asked for; the reason is plain text, whoever wrote it."""

    reason: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", plain_text(self.reason))

    @classmethod
    def of(cls, error: FedstrataError) -> Failure:
        """Say why."""
        return cls(str(error))


class Transport(Protocol):
    """The way to the sites."""

    longest: int  # bytes of a reply from here on; what is longer is a failure of its site, and is not held in memory

    def names(self) -> list[str]:
        """Return the sites that are there now, sorted by name."""

    def reachable(self) -> list[str]:
        """Return the sites that could be there if they were invited, and those that are. Waits for nobody."""

    def invite(self, sites: Collection[str]) -> None:
        """Ask sites to be there from here on; where all that are reachable are there anyway, nothing happens."""

    def awaited(self) -> Collection[str]:
        """Return the sites that have not answered yet, while others are waited for."""

    def exchange(
        self, requests: Mapping[str, bytes], deadline: float | None = None, enough: int | None = None
    ) -> dict[str, bytes | Failure]:
        """Send each named site one request; wait until all, or enough, replied, or the deadline (seconds) passed.

        Who did not answer in time is not in the result. A failure is an answer, but not one of those that are enough.
        """

    def close(self) -> None:
        """Let the sites go."""


def attempted(answer: Answer, request: bytes, refuse: Callable[[FedstrataError], Reply]) -> bytes | Reply:
    """Answer a request, or say why not; `refuse` puts that into a form.

    What our own errors say was written to be read by others. Any other error may quote a sample: only its kind leaves
    the site, and the rest goes to the site's own log.
    """
    try:
        return answer(request)
    except FedstrataError as error:
        return refuse(error)
    except Exception as error:
        if disk_is_full(error):
            logging.getLogger(__name__).error("a request failed: the disk is full: %s", error)
            return refuse(FedstrataError("its disk is full"))
        logging.getLogger(__name__).exception("a request failed")
        return refuse(FedstrataError(f"{type(error).__name__} (the site's own log says where)"))
