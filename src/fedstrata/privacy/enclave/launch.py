"""The server's side: starts the service, carries bytes between it and the parties, and ends it.

`start` does all of it for a federation on this machine; at real sites, each client makes its own `Party`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedstrata.config.sections import EnclaveChoice
from fedstrata.core.errors import FedstrataError, RequestError
from fedstrata.core.events import Log
from fedstrata.core.flat_model import FlatModel
from fedstrata.core.machine.child_process import start_child, wait_or_kill
from fedstrata.core.machine.platforms import require_posix
from fedstrata.core.rng import Streams
from fedstrata.core.steps import Scores, View
from fedstrata.data.federation import Federation
from fedstrata.methods.selectors.flips import Flips
from fedstrata.privacy.enclave import dev_insecure, sev_snp
from fedstrata.privacy.enclave.attestation import MEASUREMENT, Policy, Tcb, Verifier
from fedstrata.privacy.enclave.channel import Job, Party
from fedstrata.privacy.enclave.evaluation import pack_model, pack_test_set, unpack_scores
from fedstrata.privacy.enclave.policy import Scoring, Terms
from fedstrata.privacy.enclave.requests import Request
from fedstrata.privacy.enclave.selector import InEnclave
from fedstrata.privacy.enclave.service import SECRET, distribution
from fedstrata.privacy.frames import JOB, RefusedError, join, split
from fedstrata.privacy.identity import Entropy, Identity, KeyDirectory
from fedstrata.server.evaluator import is_due

Heard = Callable[[bytes], None]
Relay = Callable[[int, bytes], bytes]  # a party's number and what it sends -> what goes back
SERVICE = "fedstrata.privacy.enclave.service"
ENDING = 5.0  # seconds that the service has to end by itself


def choose_verifier(choice: EnclaveChoice) -> Verifier:
    """Return what parties check evidence with."""
    if choice.attestation == dev_insecure.KIND:
        return dev_insecure.DevInsecure(choice.allow_insecure)
    return sev_snp.SevSnp()


def trusted_policy(choice: EnclaveChoice) -> Policy:
    """Return what parties insist on; refuse a choice that does not say whom they trust."""
    if choice.measurement is None and choice.attestation == dev_insecure.KIND:
        return Policy(dev_insecure.measured())
    try:
        measurement = bytes.fromhex(choice.measurement or "")
    except ValueError:
        measurement = b""
    if len(measurement) != MEASUREMENT:
        raise RequestError(
            f"privacy.enclave.measurement = {choice.measurement!r}: {2 * MEASUREMENT} hexadecimal digits are needed, "
            "the launch measurement of the guest that is to be trusted; for trying out without such hardware, use "
            'privacy.enclave.attestation = "dev-insecure" with privacy.enclave.allow_insecure = true'
        )
    return Policy(measurement, Tcb(*choice.minimum_tcb), vmpl=choice.vmpl)


class Enclave:
    """The service's process as the server knows it: opaque bytes in and out, ids and figures out."""

    def __init__(self, job: Job, choice: EnclaveChoice, heard: Heard = lambda _: None):
        require_posix("privacy.enclave")
        self.process, self._line = start_child(SERVICE)
        self._heard = heard
        self.asked: list[Request] = []
        keys = join([job.key_directory.server, *job.key_directory.clients])
        how = choice.attestation.encode(), choice.certificates.encode(), b"%d" % choice.vmpl
        told = [job.id, keys, job.terms, *how]
        try:
            self._exchange(b"begin", *told)
        except BaseException:
            self.close()
            raise

    def relay(self, party: int, data: bytes) -> bytes:
        """Carry a party's message to the service, and give what goes back."""
        return self._exchange(b"relay", b"%d" % party, data)

    def ask(self, request: Request) -> list[int]:
        """Let the service select, or learn."""
        told = self._exchange(b"ask", request.written())
        self.asked.append(request)
        ids: list[int] = np.frombuffer(told, "<i8").tolist()
        return ids

    def score(self, model: FlatModel, round: int = 0) -> Scores:
        """Let it score a model."""
        return unpack_scores(self._exchange(b"score", b"%d" % round, pack_model(model)))

    def close(self) -> None:
        """End the service, and with it all it was told."""
        self._line.close()
        wait_or_kill(self.process, ENDING)

    def _exchange(self, *fields: bytes) -> bytes:
        """Send a request and wait for the answer; the server hears all of both."""
        if self._line.closed:
            raise FedstrataError("the enclave service was closed")
        data = join(fields)
        try:
            self._heard(data)
            self._line.send_bytes(data)
            answer = self._line.recv_bytes()
        except (EOFError, ConnectionError):
            self.close()
            raise FedstrataError(f"the enclave service ended with exit code {self.process.returncode}") from None
        self._heard(answer)
        how, *told = split(answer)
        if how == b"done":
            return told[0]
        if how == b"failed":
            self.close()
            raise FedstrataError(f"the enclave service failed ({told[0].decode()}) and ended; it does not say more")
        kind = {"RefusedError": RefusedError, "RequestError": RequestError}.get(told[0].decode(), FedstrataError)
        raise kind(told[1].decode())


def tell(relay: Relay, party: Party, message: bytes) -> None:
    """Carry one party's message: its hello, the offer, and what it gives once it has verified the offer."""
    receipt = b""
    for data in party.submit(relay(party.me, party.hello()), message):
        receipt = relay(party.me, data)
    party.confirm(receipt)


@dataclass(frozen=True)
class Scorer:
    """Stands where an evaluator does: the test set is inside."""

    enclave: Enclave
    every: int = 1

    def __call__(self, model: FlatModel, view: View) -> Scores:
        """Score every n-th round and the last; other rounds have no scores."""
        return self.score(model, view.round) if is_due(view, self.every) else Scores()

    def score(self, model: FlatModel, round: int = 0) -> Scores:
        """Score a model."""
        return self.enclave.score(model, round)


class Started(NamedTuple):
    """What a run uses of it; whoever started it must `close` it."""

    select: InEnclave
    evaluator: Scorer | None  # where `scoring` was given
    close: Callable[[], None]
    enclave: Enclave


def start(
    flips: Flips,
    federation: Federation,
    streams: Streams,
    choice: EnclaveChoice,
    rounds: int,
    *,
    scoring: Scoring | None = None,
    every: int = 1,
    note: Log = lambda *_, **__: None,
    heard: Heard = lambda _: None,
) -> Started:
    """Start the service, and let every client that has data, and the owner of the test set, verify and tell it.

    What parties draw is seeded, so that a run can be repeated and resumed. `heard` gets all that the server sees.
    """
    if federation.moves is not None:
        raise RequestError(
            'privacy.clustering = "enclave" does not fit data.drift and data.stream: clients tell their labels once'
        )
    verifier, policy = choose_verifier(choice), trusted_policy(choice)
    check_host(choice, note)
    terms = Terms(len(federation), len(federation.classes), rounds, streams.seed, flips, choice.noise, scoring)
    draws: list[Entropy] = [streams("enclave", client=party).bytes for party in range(terms.clients + 1)]
    identities = [Identity.new(draw) for draw in draws]
    server = Identity.new(os.urandom)
    job = Job(os.urandom(JOB), KeyDirectory.of(server, identities), terms.written())
    enclave = Enclave(job, choice, heard)
    try:
        messages = {int(i): distribution(federation.counts[i], draws[i](SECRET)) for i in _holders(federation)}
        if scoring is not None:
            messages[terms.owner] = pack_test_set(federation)
        for i, message in messages.items():
            tell(enclave.relay, Party(i, job, identities[i], verifier, policy, draws[i]), message)
    except BaseException:
        enclave.close()
        raise
    evaluator = None if scoring is None else Scorer(enclave, every)
    return Started(InEnclave(enclave), evaluator, enclave.close, enclave)


def check_host(choice: EnclaveChoice, note: Log) -> None:
    """Say at once what the service, which is on this machine, is missing; or that it is none."""
    if choice.attestation == dev_insecure.KIND:
        dev_insecure.permit(choice.allow_insecure, note)
    else:
        sev_snp.attester(Path(choice.certificates), choice.vmpl)


def _holders(federation: Federation) -> np.ndarray:
    return np.flatnonzero(federation.train_split.sizes)
