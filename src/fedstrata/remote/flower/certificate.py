"""A certificate for one run: made when it begins, trusted by nobody but its sites, gone with the process."""

from __future__ import annotations

from datetime import timedelta

from fedstrata.remote.certificates import certify, make_authority, named_host

VALID = timedelta(days=90)


def make_certificate(host: str) -> tuple[bytes, bytes, bytes]:
    """Return a key, a certificate for a host (name or address), and the authority that vouches for it, all as PEM.

    The authority's own key is forgotten at once: it can never vouch for anything else.
    """
    authority = make_authority("fedstrata stream authority", VALID)
    server = certify(authority, "fedstrata stream", [named_host(host)], VALID)
    return server.key_pem, server.pem, authority.pem
