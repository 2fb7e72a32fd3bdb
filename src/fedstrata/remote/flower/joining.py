"""How a site's process answers, whichever way a request comes: by message, or over a stream that a message opened."""

from __future__ import annotations

from fedstrata.remote.flower.invitation import STREAM, Invitation
from fedstrata.remote.transport import Answer


def with_stream(answer: Answer) -> Answer:
    """Return an answer that also follows invitations to a stream; it lasts as long as the stream does.

    Requests may then come from several threads; the one who answers sees to their order.
    """

    def either(request: bytes) -> bytes:
        if not request.startswith(STREAM):
            return answer(request)
        from fedstrata.remote.flower.stream_site import StreamSite  # noqa: PLC0415 - gRPC, where there is a stream

        return str(StreamSite(Invitation.read(request), answer).run()).encode()

    return either
