"""Bytes inside Flower's records, in parts: Flower hands every record on as one piece."""

from __future__ import annotations

from flwr.app import ConfigRecord, RecordDict

from fedstrata.core.errors import FedstrataError
from fedstrata.remote.transport import LONGEST

PART = 8 << 20  # bytes


def wrap(data: bytes) -> RecordDict:
    """Put bytes into records."""
    starts = range(0, max(len(data), 1), PART)
    return RecordDict({f"part-{i}": ConfigRecord({"data": data[at : at + PART]}) for i, at in enumerate(starts)})


def unwrap(records: RecordDict, longest: int = LONGEST) -> bytes:
    """Undo `wrap`; anything else is refused."""
    parts, size = [], 0
    for i in range(len(records)):
        record = records.get(f"part-{i}")
        if not isinstance(record, ConfigRecord) or set(record) != {"data"}:
            raise FedstrataError("a message has other records than one of ours")
        part = record["data"]
        if not isinstance(part, bytes):
            raise FedstrataError("a message's data are not bytes")
        size += len(part)
        if size > longest:
            raise FedstrataError(f"a message is longer than {longest} bytes")
        parts.append(part)
    if not parts:
        raise FedstrataError("a message is empty")
    return b"".join(parts)
