"""Messages of the protocols: typed, bound to one job, signed by their sender. Whatever else arrives is refused.

    "fedstrata" | kind | job (16 bytes) | sender (int32; -1 is the server) | fields ... | Ed25519 signature

Kind and fields have their length in front. A signature covers the SHA-256 of everything before it (Ed25519 itself
reads a long message twice, and slowly), so a bit that changed, a part that is missing, another job's message and
another sender's are all refused; that a message comes twice or too early, only its receiver can know (`Inbox`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256

from cryptography.exceptions import InvalidSignature

from fedstrata.core.errors import FedstrataError
from fedstrata.privacy.identity import Identity, KeyDirectory

MAGIC = b"fedstrata"
SERVER = -1
JOB = 16  # bytes
LONGEST = 1 << 31


class RefusedError(FedstrataError):
    """A message that does not belong here, or a request that an honest party does not serve."""


Refuse = Callable[[int, RefusedError], None]  # is told of a client whose reply is none


def never(client: int, error: RefusedError) -> None:
    """Raise: among parties of one process every message is right."""
    raise error


@dataclass(frozen=True)
class Frame:
    """One message."""

    kind: str
    job: bytes
    sender: int
    fields: tuple[bytes, ...] = ()

    def sign(self, identity: Identity) -> bytes:
        """Write it."""
        if len(self.job) != JOB:
            raise ValueError(f"a job has {JOB} bytes, not {len(self.job)}")
        parts = [MAGIC, _counted(self.kind.encode()), self.job, self.sender.to_bytes(4, "little", signed=True)]
        body = b"".join([*parts, *map(_counted, self.fields)])
        return body + identity.sign(sha256(body).digest())


def open_frame(data: bytes, key_directory: KeyDirectory, kind: str, job: bytes, sender: int) -> Frame:
    """Read a message of which it is known what it should be."""
    frame = _read(data)
    for what, is_, should in (("kind", frame.kind, kind), ("job", frame.job, job), ("sender", frame.sender, sender)):
        if is_ != should:
            raise RefusedError(f"a message has the {what} {is_!r} where {should!r} is expected")
    try:
        key_directory.key(sender).verify(data[-64:], sha256(memoryview(data)[:-64]).digest())
    except InvalidSignature:
        raise RefusedError(f"a message of kind {kind!r} is not signed by its sender {sender}") from None
    return frame


class Inbox:
    """Takes one message of each kind from each sender; one that comes again is refused."""

    def __init__(self, key_directory: KeyDirectory, job: bytes):
        self._key_directory, self._job = key_directory, job
        self._had: set[tuple[str, int]] = set()

    def take(self, data: bytes, kind: str, sender: int) -> Frame:
        """Read a message that is expected now."""
        frame = open_frame(data, self._key_directory, kind, self._job, sender)
        if (kind, sender) in self._had:
            raise RefusedError(f"a message of kind {kind!r} of sender {sender} came twice")
        self._had.add((kind, sender))
        return frame


def join(fields: Sequence[bytes]) -> bytes:
    """Put fields into one."""
    return b"".join(map(_counted, fields))


def split(data: bytes) -> tuple[bytes, ...]:
    """Undo `join`."""
    fields, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        if at + 4 + size > len(data):
            raise RefusedError("a message is cut off")
        fields.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return tuple(fields)


def _counted(field: bytes) -> bytes:
    if len(field) >= LONGEST:
        raise ValueError("a field is too long")
    return len(field).to_bytes(4, "little") + field


def _read(data: bytes) -> Frame:
    head = len(MAGIC) + 4
    size = int.from_bytes(data[len(MAGIC) : head], "little")
    fields_at = head + size + JOB + 4
    if not data.startswith(MAGIC) or len(data) < fields_at + 64:
        raise RefusedError("a message is cut off, or is none of this protocol")
    try:
        kind = data[head : head + size].decode()
    except UnicodeDecodeError:
        raise RefusedError("a message has no readable kind") from None
    job = data[head + size : head + size + JOB]
    sender = int.from_bytes(data[fields_at - 4 : fields_at], "little", signed=True)
    return Frame(kind, job, sender, split(data[fields_at:-64]))
