"""Sums under masks over sites (`privacy/sums/all_reduce.py`): the server relays hellos, and shows everybody all.

Everybody who was invited takes part in every exchange, so that no two sums differ by one of them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from fedstrata.privacy.frames import JOB, Refuse
from fedstrata.privacy.identity import KeyDirectory
from fedstrata.privacy.sums.all_reduce import invite
from fedstrata.remote.protocol import build_request, to_json
from fedstrata.remote.server.site_registry import Ask


def invite_sites(
    ask: Ask, sites: Sequence[str], members: Sequence[int], key_directory: KeyDirectory, refuse: Refuse
) -> tuple[list[int], bytes]:
    """Let sites say hello; give those who did, and the invitation that all of them must be shown."""
    job = os.urandom(JOB)
    about = {client: {"client": client, "sites": list(sites), "job": job.hex()} for client in members}
    hellos = ask({client: build_request("meet", to_json(told)) for client, told in about.items()})
    return invite(hellos, key_directory, job, refuse)
