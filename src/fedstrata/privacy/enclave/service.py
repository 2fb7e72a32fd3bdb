"""The enclave's process: is told label distributions and a test set in secret, and says whom to select.

What leaves it:
* the ids of the selected clients, in order of id: in the order in which FLIPS takes them they would show the clusters.
  Neither the clusters, nor their number, nor which picks are extras are told. Whoever watches long enough who is
  selected together can still find much of the clusters, and a server that lies about who is eligible or missing finds
  more of them sooner; `noise` blurs that, and costs balance. So every round is asked about once;
* the figures of a model on the test set (`evaluation.py`);
* what each party is told over its own channel: that its message arrived.

Anything that goes wrong inside ends the process, with the kind of the error and not its text. Label distributions and
test set exist in its memory only, and end with it: when the job is over, or when the server is gone. That the code
which keeps this promise is what runs, only attested hardware can prove to a party: `dev-insecure` cannot.

It is a child of the server, on one machine, over a socket: with SEV-SNP that machine is the guest whose image was
measured.
"""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from fedstrata.core.client_info import ClientInfo
from fedstrata.core.errors import FedstrataError
from fedstrata.core.flat_model import ParameterSpace
from fedstrata.core.rng import Streams
from fedstrata.core.steps import Scores, View
from fedstrata.methods.selectors.flips import Fairness
from fedstrata.privacy import FEWEST
from fedstrata.privacy.agreement import derive
from fedstrata.privacy.enclave import dev_insecure, sev_snp
from fedstrata.privacy.enclave.attestation import Attester
from fedstrata.privacy.enclave.channel import Desk, Job
from fedstrata.privacy.enclave.evaluation import build_evaluator, pack_scores, unpack_model
from fedstrata.privacy.enclave.policy import Terms
from fedstrata.privacy.enclave.requests import FEEDBACK, SELECT, Request
from fedstrata.privacy.frames import RefusedError, join, split
from fedstrata.privacy.identity import KeyDirectory
from fedstrata.privacy.masks import stream
from fedstrata.server.evaluator import Evaluator

SECRET = 32  # bytes that each client adds to what its noise is drawn from
NOWHERE = ParameterSpace((), (), slice(0, 0), slice(0, 0), slice(0, 0))


def distribution(counts: np.ndarray, secret: bytes) -> bytes:
    """Write what a client tells the service: how often it has each label, and its share of the noise's secret."""
    return counts.astype("<i8").tobytes() + secret


class Service:
    """Label distributions, clusters and the test set; what its methods give may be seen by everybody."""

    def __init__(self, job: Job, attest: Attester):
        self._terms = Terms.read(job.terms)
        self._desk = Desk(job, attest, os.urandom)
        self._told: dict[int, np.ndarray] = {}
        self._secrets: dict[int, bytes] = {}
        self._evaluator: Evaluator | None = None
        self._client_info: ClientInfo | None = (
            None  # made when the first clients are selected; nobody is heard after that
        )
        self._state: Fairness | None = None
        self._turns = {SELECT: 0, FEEDBACK: 0}  # next round that may be asked about

    def relay(self, party: int, data: bytes) -> bytes:
        """Take what a party sent through the server, and give what goes back to it."""
        if not 0 <= party <= self._terms.owner:  # the server has a place in the roll, but nothing to tell
            raise RefusedError(f"party {party} is none of those that are heard")
        answer, message = self._desk.take(party, data)
        if message is not None and party == self._terms.owner:
            self._tested(message)
        elif message is not None:
            self._learn(party, message)
        return answer

    def ask(self, data: bytes) -> list[int]:
        """Select, or learn what became of those who were selected."""
        request = Request.read(data, self._terms.clients)
        if self._client_info is None:
            self._client_info = self._settled()
        self._take_turn(request)
        eligible, known = request.eligible, self._client_info
        here = known.holders if eligible is None else np.intersect1d(eligible, known.holders)
        k, flips = request.k, self._terms.flips
        rng = partial(Streams(self._terms.seed), round=request.round)
        view = View(request.round, 0, k, here, known, NOWHERE, rng, note=lambda *_, **__: None)
        if self._state is None:
            self._state = flips.init(view)
        if request.kind == FEEDBACK:
            flips.feedback(self._state, view, request.outcomes, Scores())
            return []
        return sorted(self._exchanged(list(flips.select(self._state, view)), view))

    def score(self, round: int, model: bytes) -> bytes:
        """Score a model on the test set."""
        if self._evaluator is None:
            raise RefusedError("the service has no test set")
        return pack_scores(self._evaluator.score(unpack_model(model), round))

    # ---- inside

    def _take_turn(self, request: Request) -> None:
        """Refuse to be asked as often as the server likes, which would show it the clusters one by one."""
        first = self._turns[request.kind]
        if not first <= request.round < self._terms.rounds:
            raise RefusedError(
                f"round {request.round} of {self._terms.rounds} is not served: every round is asked about once"
            )
        self._turns[request.kind] = request.round + 1

    def _learn(self, client: int, message: bytes) -> None:
        counts = np.frombuffer(message[:-SECRET], "<i8") if len(message) == 8 * self._terms.classes + SECRET else None
        if counts is None or (counts < 0).any() or counts.max() >= 1 << 40:
            raise RefusedError(f"client {client} told no proper label counts")
        if self._client_info is not None:
            raise RefusedError(f"client {client} came after the first selection")
        self._told[client] = counts.astype(np.int64)
        self._secrets[client] = message[-SECRET:]

    def _tested(self, message: bytes) -> None:
        if self._terms.scoring is None:
            raise RefusedError("the terms of the job say nothing of a test set")
        self._evaluator = build_evaluator(self._terms, self._terms.scoring, message)

    def _settled(self) -> ClientInfo:
        """Settle who takes part."""
        if len(self._told) < FEWEST:
            raise RefusedError(f"{len(self._told)} clients told their labels; at least {FEWEST} are needed")
        terms = self._terms
        counts = np.zeros((terms.clients, terms.classes), dtype=np.int64)
        for client, own in self._told.items():
            counts[client] = own
        key = Streams(terms.seed)("tiebreak").permutation(terms.clients)
        return ClientInfo(terms.clients, terms.classes, np.flatnonzero(counts.any(1)), key, {"counts": counts})

    def _exchanged(self, picks: list[int], view: View) -> list[int]:
        """Exchange some picks for clients drawn from all others, by chances that nobody outside can work out.

        FLIPS does not hear of it. If it made up for exchanges, clients of a cluster would again be selected equally
        often at any time, by which they are found even more easily than by who is selected together.
        """
        if not self._terms.noise:
            return picks
        secret = join([self._secrets[client] for client in sorted(self._secrets)])
        key = derive(secret, b"", b"noise|%d" % view.round)
        chances = (stream(key, 2 * len(picks)) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        others = np.setdiff1d(view.eligible, picks).tolist()
        for i, (coin, place) in enumerate(chances.reshape(-1, 2).tolist()):
            if coin < self._terms.noise and others:
                picks[i] = others.pop(int(place * len(others)))
        return picks


# ---- the process --------------------------------------------------------------------------------------------------


def main(socket: int) -> int:
    """Serve until the other side hangs up, or something goes wrong; give the exit code."""
    import resource  # noqa: PLC0415  which Windows has not

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then hangs up
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # what is known here is not to be written to a disk
    line, service = Connection(socket), None
    try:
        while True:
            data = line.recv_bytes()
            try:
                kind, *fields = split(data)
                if service is None:
                    service = _begun(*fields)
                    told = [b"done", b""]
                else:
                    told = [b"done", _answer(service, kind, fields)]
            except FedstrataError as error:  # these speak of messages, not of what is in them
                told = [b"refused", type(error).__name__.encode(), str(error).encode()]
            except Exception as error:  # its text might quote a secret
                line.send_bytes(join([b"failed", type(error).__name__.encode()]))
                return 1
            line.send_bytes(join(told))
    except (EOFError, ConnectionError):
        return 0


def _begun(job: bytes, keys: bytes, terms: bytes, attestation: bytes, certificates: bytes, vmpl: bytes) -> Service:
    server, *clients = split(keys)
    attest: Attester
    if attestation.decode() == sev_snp.KIND:
        attest = sev_snp.attester(Path(certificates.decode()), int(vmpl))
    else:
        attest = dev_insecure.attest
    return Service(Job(job, KeyDirectory(server, tuple(clients)), terms), attest)


def _answer(service: Service, kind: bytes, fields: list[bytes]) -> bytes:
    match kind, fields:
        case b"relay", [party, data]:
            return service.relay(int(party), data)
        case b"ask", [request]:
            return np.array(service.ask(request), dtype="<i8").tobytes()
        case b"score", [round, model]:
            return service.score(int(round), model)
    raise ValueError(kind)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
