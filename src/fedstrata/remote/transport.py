"""What carries requests to sites and brings their replies; the rest of the engine knows nothing of networks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from fedstrata.core.errors import FedstrataError
from fedstrata.core.plain_text import plain_text
from fedstrata.core.storage.files import disk_is_full

LOG = logging.getLogger(__name__)
LONGEST = 1 << 31  # bytes of a request, and of a reply where nobody says less
SMALL = 1 << 24  # bytes of a reply before a run's model is known: descriptions, keys and sums over labels

Answer = Callable[[bytes], bytes]  # a request in, a reply out: all that a site does


@dataclass(frozen=True)
class Failure:
    """A site's answer where it could not do what it was asked for; the reason is plain text, whoever wrote it."""

    reason: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", plain_text(self.reason))


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


def attempt(answer: Answer, request: bytes) -> bytes | Failure:
    """Answer a request, or say why not. What our own errors say, others may read."""
    try:
        return answer(request)
    except FedstrataError as error:
        return Failure(str(error))
    except Exception as error:
        return Failure(str(hide_error(error)))


def hide_error(error: Exception) -> FedstrataError:
    """Return what others may know of an error that was not written for them: it may quote a sample or a file.

    Only its kind leaves the site; the rest goes to the site's own log.
    """
    if disk_is_full(error):
        LOG.error("a request failed: the disk is full: %s", error)
        return FedstrataError("its disk is full")
    LOG.error("a request failed", exc_info=error)
    return FedstrataError(f"{type(error).__name__} (the site's own log says where)")
