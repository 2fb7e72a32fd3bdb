"""How a site's process answers, whichever way a request comes: by message, or over a stream that a message opened."""

from __future__ import annotations

from collections.abc import Callable

from fedstrata.remote.flower.invitation import STREAM, Invitation
from fedstrata.remote.transport import Answer


def with_stream(answer: Answer, check_server: Callable[[str], None] = lambda _: None) -> Answer:
    """Return an answer that also follows invitations to a stream; it lasts as long as the stream does.

    Requests may then come from several threads; the one who answers sees to their order. `check_server` raises where a
    site does not connect to an address.
    """

    def either(request: bytes) -> bytes:
        if not request.startswith(STREAM):
            return answer(request)
        from fedstrata.remote.flower.stream_site import StreamSite  # noqa: PLC0415 - gRPC, where there is a stream

        invitation = Invitation.read(request)
        check_server(invitation.address)
        return str(StreamSite(invitation, answer).run()).encode()

    return either
