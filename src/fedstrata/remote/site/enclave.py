"""A site's end of an enclave at the server, which it tells its label counts.

Every site knows from its own administrator which enclave it may trust (`privacy.enclave` in what the client is started
with), and verifies the evidence before it tells anything.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedstrata.config.sections import EnclaveChoice
from fedstrata.core.errors import RequestError
from fedstrata.privacy.enclave.channel import Job, Party
from fedstrata.privacy.enclave.launch import choose_verifier, trusted_policy
from fedstrata.privacy.enclave.policy import Terms
from fedstrata.privacy.enclave.service import distribution
from fedstrata.privacy.frames import RefusedError, join
from fedstrata.privacy.identity import Identity, KeyDirectory


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
