"""What the parties of every mode have in common: the server asks, a client answers, all in signed frames.

A client object never sees a server object: `answer` takes bytes and gives bytes. Both count the messages of a job, and
the number is part of a message's kind, so what comes twice, too early or too late is refused. A client that refuses
what a message says is done with that job; one that was damaged on the way (its signature is wrong) changes nothing.
The server's part is a generator that reads like the protocol: it yields what it asks of whom, and receives the answers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from numbers import Integral
from typing import Any, ClassVar

import numpy as np

from fedstrata.core.errors import RequestError
from fedstrata.core.rng import Rng
from fedstrata.privacy.frames import JOB, MAGIC, SERVER, Frame, Inbox, RefusedError
from fedstrata.privacy.identity import Entropy, Identity, KeyDirectory
from fedstrata.privacy.labels.encoding import encode
from fedstrata.privacy.labels.served import Served

Fields = tuple[bytes, ...]
Asks = tuple[str, Mapping[int, Fields]]  # a step, and what is asked of whom
PLACEHOLDERS = 1 << 20  # most that a client believes: each costs it eight bytes
WORD, INDEX = np.dtype("<u8"), np.dtype("<u4")
DISTRIBUTION = "distribution"  # the step in which clients tell their counts openly


class LabelClient(ABC):
    """A client's side; lives as long as its memory of jobs."""

    domain: ClassVar[str]  # names the protocol and its version in every message
    steps: ClassVar[tuple[str, ...]]  # in this order
    any_number: ClassVar[frozenset[str]] = frozenset({DISTRIBUTION})  # steps that may come often, or never
    least: ClassVar[int] = 1  # clients with whom it works
    most_total: ClassVar[int] = 1 << 63  # what the counts of all clients must stay below

    def __init__(
        self,
        me: int,
        identity: Identity,
        key_directory: KeyDirectory,
        held: Mapping[Any, int],
        entropy: Entropy,
        *,
        open_counts: bool = False,
        served: Served | None = None,
    ):
        self.me, self.own = me, dict[Any, int]()  # own labels' placeholders, once they are known
        self.served = Served() if served is None else served
        self._identity, self._key_directory, self._entropy, self._open = identity, key_directory, entropy, open_counts
        self._held = {label: (encode(label), _count(label, count)) for label, count in held.items()}
        if len({code for code, _ in self._held.values()}) < len(self._held):
            raise RequestError(f"client {me} holds two labels that are written alike; allowed: different labels")
        self._inbox: Inbox | None = None  # of the job that is under way
        self._job, self._number, self._next = b"", 0, 0  # messages had, and the place of the next step
        self._members: tuple[int, ...] = ()
        self.placeholders = 0

    def answer(self, step: str, data: bytes) -> bytes:
        """Take the server's message of a step, give the reply."""
        if step not in self.steps:
            raise RefusedError(f"there is no step {step!r}")
        place = self.steps.index(step)
        fields: Fields = ()
        if place == 0:
            self._begin(data)
        else:
            fields = self._expected(step, place, data)
        try:
            reply = self._told_openly() if step == DISTRIBUTION else self._reply(step, fields)
        except RefusedError:
            self._inbox = None
            raise
        frame = Frame(name_reply(self.domain, step, self._number), self._job, self.me, reply)
        self._number, self._next = self._number + 1, place + 1
        return frame.sign(self._identity)

    def _begin(self, data: bytes) -> None:
        """Open a job: its id stands at a fixed place behind the kind."""
        kind = name_request(self.domain, self.steps[0], 0, self.me)
        at = len(MAGIC) + 4 + len(kind)
        job = data[at : at + JOB]
        digest, clients = expect_fields(Inbox(self._key_directory, job).take(data, kind, SERVER).fields, 2)
        members = tuple(numbers(clients, INDEX).tolist())
        if digest != self._key_directory.digest:
            raise RefusedError("the server has another roll of parties")
        if (
            list(members) != sorted(set(members))
            or self.me not in members
            or members[-1] >= len(self._key_directory.clients)
        ):
            raise RefusedError("the server names clients that are not on the roll, or not this one")
        if len(members) < self.least:
            raise RefusedError(f"a job with {len(members)} clients is asked for; at least {self.least} must take part")
        self._check_set(members)
        self.served.new_job(job)
        bound = self.most_total // len(members)
        for label, (_, count) in self._held.items():
            if count >= bound:
                raise RequestError(
                    f"label {label!r} has the count {count}; allowed: below {bound}, or a total may wrap"
                )
        self._inbox, self._job, self._members = Inbox(self._key_directory, job), job, members
        self._number = self._next = self.placeholders = 0
        self.own = {}

    def _expected(self, step: str, place: int, data: bytes) -> Fields:
        """Read a message of the job that is under way, if it is its turn."""
        if self._inbox is None:
            raise RefusedError(f"step {step!r} belongs to no job that is under way")
        again = place == self._next - 1 and step in self.any_number
        if not again and (place < self._next or set(self.steps[self._next : place]) - self.any_number):
            raise RefusedError(f"step {step!r} comes out of its order")
        return self._inbox.take(data, name_request(self.domain, step, self._number, self.me), SERVER).fields

    def _check_set(self, members: Sequence[int]) -> None:  # noqa: B027 (a mode may have no rule)
        """Refuse a set of clients."""

    @abstractmethod
    def _reply(self, step: str, fields: Fields) -> Fields:
        """Answer a step."""

    def _placed(self, labels: Sequence[Any], total: bytes, places: bytes) -> None:
        """Learn the placeholders of own labels."""
        [placeholders], own = numbers(total, INDEX, 1).tolist(), numbers(places, INDEX, len(labels)).tolist()
        if placeholders > PLACEHOLDERS or len(set(own)) < len(own) or max(own, default=-1) >= placeholders:
            raise RefusedError("the server gave placeholders that are no proper numbering")
        self.placeholders, self.own = placeholders, dict(zip(labels, own, strict=True))

    def _counts(self) -> np.ndarray:
        """Return own counts in the order of placeholders."""
        counts = np.zeros(self.placeholders, dtype=WORD)
        for label, placeholder in self.own.items():
            counts[placeholder] = self._held[label][1]
        return counts

    def _told_openly(self) -> Fields:
        if not self._open:
            raise RefusedError("the server asks for open counts, which this client was not told to give")
        return (self._counts().tobytes(),)


class LabelServer(ABC):
    """The server's side of one job."""

    domain: ClassVar[str]
    counting: ClassVar[str | None] = None  # the step in which clients send what binds them (`served.py`)

    def __init__(
        self,
        identity: Identity,
        key_directory: KeyDirectory,
        members: Sequence[int],
        entropy: Entropy,
        rng: Rng,
        *,
        distributions: bool = False,
        classes: int | None = None,
    ):
        self._classes = classes  # how many labels there are at most, where that is known
        self.job, self.members, self.step = entropy(JOB), tuple(sorted(members)), ""
        self.holds: dict[int, np.ndarray] = {}  # placeholders, by client
        self.totals: np.ndarray = np.zeros(0, dtype=np.int64)
        self.counts: dict[int, np.ndarray] | None = {} if distributions else None
        self.missing: set[int] = set()  # those whose reply has not come yet
        self._identity, self._key_directory, self._entropy, self._rng = identity, key_directory, entropy, rng
        self._inbox = Inbox(key_directory, self.job)
        self._number = dict.fromkeys(self.members, 0)
        self._asks: dict[int, bytes] = {}
        self._replies: dict[int, Fields] = {}
        self._flow = self._run()
        self._advance(None)

    def asks(self) -> Mapping[int, bytes]:
        """Return the messages of the present step, by client; none when the job is done."""
        return self._asks

    def take(self, client: int, data: bytes) -> None:
        """Take a client's reply; the last one moves the job on."""
        if client not in self.missing:
            raise RefusedError(f"nothing is expected of client {client} now")
        fields = self._inbox.take(data, name_reply(self.domain, self.step, self._number[client]), client).fields
        if self.step == DISTRIBUTION:
            counts_of(expect_fields(fields, 1)[0], len(self.totals))
        else:
            self._check(self.step, client, fields)
        self._replies[client] = fields
        self._number[client] += 1
        self.missing.discard(client)
        if not self.missing:
            self._advance(self._replies)

    def _advance(self, replies: dict[int, Fields] | None) -> None:
        self._asks, self._replies = {}, {}
        try:
            asks: Mapping[int, Fields] = {}
            while not asks:  # a step may concern nobody
                self.step, asks = next(self._flow) if replies is None else self._flow.send(replies)
                replies = {}
        except StopIteration:
            return
        self.missing = set(asks)
        for client, fields in asks.items():
            frame = Frame(name_request(self.domain, self.step, self._number[client], client), self.job, SERVER, fields)
            self._asks[client] = frame.sign(self._identity)

    @abstractmethod
    def _run(self) -> Generator[Asks, dict[int, Fields], None]:
        """Go through the protocol."""

    @abstractmethod
    def _check(self, step: str, client: int, fields: Fields) -> None:
        """Refuse a reply that has not the form it should have."""

    def _opening(self) -> dict[int, Fields]:
        """Say which job this is, and who takes part."""
        members = np.array(self.members, dtype=INDEX).tobytes()
        return dict.fromkeys(self.members, (self._key_directory.digest, members))

    def _distributions(self) -> Generator[Asks, dict[int, Fields], None]:
        """Ask for open counts, if they are wanted."""
        if self.counts is not None:
            replies = yield DISTRIBUTION, dict.fromkeys(self.members, ())
            for client, (counts,) in replies.items():
                self.counts[client] = counts_of(counts, len(self.totals))

    def _place(self, tokens: Mapping[int, Sequence[bytes]]) -> dict[bytes, int]:
        """Give what clients hold numbers, in an order drawn here, and note who holds what."""
        distinct = sorted({token for own in tokens.values() for token in own})
        places = self._rng.permutation(len(distinct)).tolist()
        placed = dict(zip(distinct, places, strict=True))
        self.holds = {client: np.array([placed[t] for t in own], dtype=INDEX) for client, own in tokens.items()}
        self.totals = np.zeros(len(distinct), dtype=np.int64)
        return placed


def name_request(domain: str, step: str, number: int, client: int) -> str:
    """Name the server's message; it names its receiver, too, so that another client's is refused as a whole."""
    return f"{domain} ask {step} {number} of {client}"


def name_reply(domain: str, step: str, number: int) -> str:
    """Name a client's message."""
    return f"{domain} {step} {number}"


def expect_fields(fields: Fields, count: int) -> Fields:
    """Refuse a message with another number of fields."""
    if len(fields) != count:
        raise RefusedError(f"a message has {len(fields)} fields, not {count}")
    return fields


def numbers(data: bytes, dtype: np.dtype[Any], count: int | None = None) -> np.ndarray:
    """Read numbers, so many where that is known."""
    if len(data) % dtype.itemsize or count not in (None, len(data) // dtype.itemsize):
        raise RefusedError("a message holds another number of entries than it should")
    return np.frombuffer(data, dtype=dtype)


def counts_of(data: bytes, count: int) -> np.ndarray:
    """Read counts or sums of counts."""
    words = numbers(data, WORD, count)
    if (words >= 1 << 63).any():
        raise RefusedError("a count is too large to be one")
    return words.astype(np.int64)


def _count(label: Any, count: Any) -> int:
    if isinstance(count, bool) or not isinstance(count, Integral) or not 1 <= int(count) < 1 << 63:
        raise RequestError(f"label {label!r} has the count {count!r}; allowed: whole numbers from 1 to {(1 << 63) - 1}")
    return int(count)
