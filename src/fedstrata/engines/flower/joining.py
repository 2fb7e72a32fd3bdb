"""How a site's process answers, whichever way a request comes: by message, or over a stream that a message opened."""

from __future__ import annotations

import threading

from fedstrata.engines.flower.invitation import STREAM, Invitation
from fedstrata.engines.sites.transport import Answer


def with_stream(answer: Answer) -> Answer:
    """Give an answer that also follows invitations to a stream; it lasts as long as the stream does.

    Requests may then come from several threads; they are answered one at a time.
    """
    turn = threading.Lock()

    def in_turn(request: bytes) -> bytes:
        with turn:
            return answer(request)

    def either(request: bytes) -> bytes:
        if not request.startswith(STREAM):
            return in_turn(request)
        from fedstrata.engines.flower.stream_site import StreamSite  # noqa: PLC0415 - gRPC, where there is a stream

        return str(StreamSite(Invitation.read(request), in_turn).run()).encode()

    return either
