"""Errors of a site that its server does not take, and will not take if it is merely started again.

Their codes are those of sysexits.h, which systemd shows by name; the unit of `deploy package` names them, so that such
a site is not started for ever.
"""

from __future__ import annotations

from fedstrata.core.errors import RequestError


class RevokedError(RequestError):
    """The site's key is not on the roll any more."""

    exit_code = 77  # EX_NOPERM


class OtherProtocolError(RequestError):
    """The server speaks another protocol."""

    exit_code = 76  # EX_PROTOCOL
