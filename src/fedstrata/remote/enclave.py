"""An enclave at the server, and sites that tell it their label counts: both ends of it.

Every site knows from its own administrator which enclave it may trust (`privacy.enclave` in what the client is started
with), and verifies the evidence before it tells anything. The server carries bytes that it cannot read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedstrata.config.sections import EnclaveChoice
from fedstrata.core.errors import RequestError
from fedstrata.core.events import Log
from fedstrata.privacy.enclave.channel import Job, Party
from fedstrata.privacy.enclave.launch import Enclave, Started, check_host, choose_verifier, trusted_policy
from fedstrata.privacy.enclave.policy import Terms
from fedstrata.privacy.enclave.selector import InEnclave
from fedstrata.privacy.enclave.service import distribution
from fedstrata.privacy.frames import JOB, RefusedError, join, split
from fedstrata.privacy.identity import Identity, KeyDirectory
from fedstrata.remote.credentials import Credentials
from fedstrata.remote.protocol import build_request, to_json
from fedstrata.remote.setup import Tell
from fedstrata.remote.site_registry import by_client

HELLO, SUBMIT, CONFIRM = b"hello", b"submit", b"confirm"


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


class EnclaveParty:
    """A site's end: it tells its label counts to the enclave that its own administrator trusts, and to no other."""

    def __init__(self, trusted: EnclaveChoice | None):
        self._trusted = trusted
        self._party: Party | None = None
        self._message = b""

    def hello(
        self, told: Mapping[str, Any], identity: Identity, roll: KeyDirectory, counts: np.ndarray, secret: bytes
    ) -> bytes:
        """Begin: look at what the enclave is for, and ask it who it is."""
        trusted = self._trusted
        if trusted is None or (trusted.measurement is None and trusted.attestation == "sev-snp"):
            raise RefusedError(
                "its administrator has not said which enclave it may trust (deploy client --set privacy.enclave...)"
            )
        text = str(told["terms"]).encode()
        try:
            terms = Terms.read(text)
        except (RequestError, ValueError):
            raise RefusedError("the terms of the enclave cannot be read") from None
        if (terms.clients, terms.classes, terms.scoring) != (len(roll.clients), len(counts), None):
            raise RefusedError("the terms of the enclave are not those of this run")
        if terms.noise < trusted.noise:
            raise RefusedError(
                f"the enclave's noise is {terms.noise:g}, and its administrator wants at least {trusted.noise:g}"
            )
        job = Job(bytes.fromhex(told["job"]), roll, text)
        self._party = Party(
            int(told["client"]), job, identity, choose_verifier(trusted), trusted_policy(trusted), os.urandom
        )
        self._message = distribution(counts, secret)
        return self._party.hello()

    def submit(self, offer: bytes) -> bytes:
        """Verify the offer; only then give what carries the counts."""
        message, self._message = self._message, b""
        if not message:
            raise RefusedError("an enclave is asked who it is before it is told anything")
        return join(list(self._party_or_refuse().submit(offer, message)))

    def confirm(self, receipt: bytes) -> None:
        """Read the enclave's own word that it was told."""
        self._party_or_refuse().confirm(receipt)

    def _party_or_refuse(self) -> Party:
        if self._party is None:
            raise RefusedError("an enclave is asked who it is before it is told anything")
        return self._party
