"""Messages on a stream, cut into frames and put together again. What is too long or out of place is refused.

first frame:    kind (1 byte) | number (8 bytes) | length (8 bytes) | as much of the body as one frame takes
further frames: the rest of the body
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

from fedstrata.privacy.frames import RefusedError

HEAD = struct.Struct("<BQQ")
PIECE = 1 << 22  # bytes of a body in one frame
METHOD = "/fedstrata.Stream/Join"  # one call a site, for as long as the stream lasts
ALIVE = (  # both ends ask whether the other one is there, and allow it to ask
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.max_receive_message_length", PIECE + HEAD.size),
    ("grpc.max_send_message_length", PIECE + HEAD.size),
)


class Kind(IntEnum):
    """What a message on the stream is."""

    WELCOME = 0  # from the server: the token is good
    REQUEST = 1
    FORGET = 2  # nobody waits for this number and those before it any more
    END = 3  # the stream is over
    REPLY = 4  # from a site
    FAILURE = 5  # from a site: why there is no reply


FROM_SERVER = frozenset({Kind.WELCOME, Kind.REQUEST, Kind.FORGET, Kind.END})
FROM_SITE = frozenset({Kind.REPLY, Kind.FAILURE})


class Parcel(NamedTuple):
    """One message; request and reply have the number of their exchange."""

    kind: Kind
    number: int = 0
    body: bytes = b""

    def frames(self) -> Iterator[bytes]:
        """Cut it."""
        body = memoryview(self.body)
        yield b"".join((HEAD.pack(self.kind, self.number, len(body)), body[:PIECE]))
        for at in range(PIECE, len(body), PIECE):
            yield bytes(body[at : at + PIECE])


def parcels(frames: Iterable[bytes], kinds: Collection[Kind], longest: Callable[[Kind], int]) -> Iterator[Parcel]:
    """Put messages together as their frames come. One that breaks off with the stream is dropped.

    `longest` gives the bytes that a message of a kind may have now; what says that it is longer is never taken in.
    """
    arriving = iter(frames)
    for first in arriving:
        if len(first) < HEAD.size:
            raise RefusedError("a frame is cut off")
        kind, number, size = HEAD.unpack_from(first)
        if kind not in kinds:
            raise RefusedError(f"a message of kind {kind} is out of place")
        if size > (most := longest(Kind(kind))):
            raise RefusedError(f"a message of {size} bytes is too long; allowed: {most}")
        pieces, had = [first[HEAD.size :]], len(first) - HEAD.size
        while had < size:
            piece = next(arriving, None)
            if piece is None:
                return
            if not piece:
                raise RefusedError("a frame is empty")
            pieces.append(piece)
            had += len(piece)
        if had > size:
            raise RefusedError("a message is longer than it says")
        yield Parcel(Kind(kind), number, pieces[0] if len(pieces) == 1 else b"".join(pieces))
