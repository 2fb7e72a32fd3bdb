"""Requests to a site and its replies: a kind, then fields. Nothing is pickled, and what cannot be read is refused."""

from __future__ import annotations

import json
from typing import Any

from fedstrata.client.site_client import StatelessError
from fedstrata.core.errors import FedstrataError
from fedstrata.core.plain_text import WORDS, plain_text
from fedstrata.privacy.frames import RefusedError, join, split

DONE, FAILED = b"done", b"failed"
IN = "in"  # a request that belongs to a run
MET, REPORT = b"meet", b"report"  # what a site replies to a task: what it brings to the others, or its report
SPOILT = b"spoilt"  # the reply of a site that can do nothing with what another one handed on
STALE = b"stale"  # that of a site which was restarted, and has another key now
HELLO, SUBMIT, CONFIRM = b"hello", b"submit", b"confirm"  # what a site does in turn to tell an enclave something


class SiteError(FedstrataError):
    """A site says why it cannot do what it was asked for."""


class AbsentError(SiteError):
    """A site does not know the run: it was restarted, or began another one."""


class PolicyError(SiteError):
    """A site's own policy does not allow what it was asked for (`site/policy/rules.py`)."""


class VersionError(SiteError):
    """A site has a version of fedstrata that speaks another protocol."""


class PendingError(SiteError):
    """A site's owner has not said yet whether it takes part in the run."""


FAILURES: dict[bytes, type[FedstrataError]] = {
    b"absent": AbsentError,
    b"stateless": StatelessError,
    b"policy": PolicyError,
    b"pending": PendingError,
    b"version": VersionError,
    FAILED: SiteError,
}


def build_request(kind: str, *fields: bytes) -> bytes:
    """Write a request."""
    return join([kind.encode(), *fields])


def within(run: str, request: bytes) -> bytes:
    """Say which run a request belongs to."""
    return build_request(IN, run.encode(), request)


def read_request(data: bytes) -> tuple[str, tuple[bytes, ...]]:
    """Read it."""
    kind, *fields = split(data) or (b"",)
    return kind.decode(errors="replace"), tuple(fields)


def build_reply(*fields: bytes) -> bytes:
    """Write a reply."""
    return join([DONE, *fields])


def build_refusal(error: Exception | str) -> bytes:
    """Write why there is none."""
    how = next((name for name, kind in FAILURES.items() if isinstance(error, kind)), FAILED)
    return join([how, plain_text(str(error)).encode()])


def read_reply(data: bytes, fields: int) -> tuple[bytes, ...]:
    """Read a reply of so many fields."""
    how, *told = split(data) or (b"",)
    if how in FAILURES and len(told) == 1:
        raise FAILURES[how](plain_text(told[0][: 4 * WORDS].decode(errors="replace")))
    if how != DONE or len(told) != fields:
        raise RefusedError("a reply has other fields than were asked for")
    return tuple(told)


def to_json(values: Any) -> bytes:
    """Write plain values."""
    return json.dumps(values).encode()


def read_values(data: bytes) -> dict[str, Any]:
    """Read a table of plain values."""
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        raise RefusedError("a table cannot be read") from None
    if not isinstance(values, dict):
        raise RefusedError("a table is expected")
    return values
