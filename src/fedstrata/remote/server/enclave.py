"""An enclave at the server: sites tell it their label counts, in bytes that the server carries and cannot read."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from fedstrata.config.sections import EnclaveChoice
from fedstrata.core.events import Log
from fedstrata.privacy.enclave.channel import Job
from fedstrata.privacy.enclave.launch import Enclave, Started, check_host
from fedstrata.privacy.enclave.policy import Terms
from fedstrata.privacy.enclave.selector import InEnclave
from fedstrata.privacy.frames import JOB, split
from fedstrata.remote.credentials import Credentials
from fedstrata.remote.protocol import CONFIRM, HELLO, SUBMIT, build_request, to_json
from fedstrata.remote.server.setup import Tell
from fedstrata.remote.server.site_registry import by_client


def start_at_sites(
    ask: Tell,
    credentials: Credentials,
    names: Sequence[str],
    places: Mapping[int, Mapping[str, Any]],
    terms: Terms,
    choice: EnclaveChoice,
    note: Log,
) -> Started:
    """Start the service, and let all sites verify and tell it; `places` says what each is told of the run.

    `ask` raises where one of them does not.
    """
    check_host(choice, note)
    job = Job(os.urandom(JOB), credentials.key_directory(names), terms.written())
    some, enclave = by_client(names, lambda requests: ask(requests, 1)), Enclave(job, choice)

    def everybody(step: bytes, told: Mapping[int, bytes]) -> dict[int, bytes]:
        return some({i: build_request("enclave", step, fields) for i, fields in told.items()})

    try:
        about = {"job": job.id.hex(), "terms": job.terms.decode()}
        hellos = everybody(HELLO, {i: to_json({**place, **about}) for i, place in places.items()})
        sealed = everybody(SUBMIT, {i: enclave.relay(i, hello) for i, hello in hellos.items()})
        receipts = {i: [enclave.relay(i, record) for record in split(data)][-1:] for i, data in sealed.items()}
        everybody(CONFIRM, {i: b"".join(last) for i, last in receipts.items()})
    except BaseException:
        enclave.close()
        raise
    return Started(InEnclave(enclave), None, enclave.close, enclave)
