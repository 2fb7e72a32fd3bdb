"""An enclave's parties and its service without a process, with seeded secrets."""

from __future__ import annotations

import numpy as np

from fedstrata.config.sections import EnclaveChoice
from fedstrata.core.rng import Streams
from fedstrata.privacy.enclave import dev_insecure
from fedstrata.privacy.enclave.attestation import Policy
from fedstrata.privacy.enclave.channel import Job, Party
from fedstrata.privacy.enclave.dev_insecure import DevInsecure
from fedstrata.privacy.enclave.evaluation import pack_model, unpack_scores
from fedstrata.privacy.enclave.launch import tell
from fedstrata.privacy.enclave.policy import Terms
from fedstrata.privacy.enclave.service import SECRET, Service, distribution
from fedstrata.privacy.identity import Identity, KeyDirectory

OPEN = EnclaveChoice(attestation="dev-insecure", allow_insecure=True)


def flipped(data, bit):
    out = bytearray(data)
    out[bit // 8] ^= 1 << bit % 8
    return bytes(out)


def seeded(party, seed=0):
    return Streams(seed)("test", client=party).bytes


def parties_of(counts, verifier=None, seed=0, **terms):
    """Return a job, and a party for every client and for the owner of a test set."""
    counts = np.asarray(counts)
    draws = [seeded(i, seed) for i in range(len(counts) + 1)]
    identities = [Identity.new(draw) for draw in draws]
    key_directory = KeyDirectory.of(Identity.new(seeded(-1)), identities)
    job = Job(bytes(16), key_directory, Terms(*counts.shape, 100, 0, **terms).written())
    secrets = [draw(SECRET) for draw in draws]
    believes, policy = verifier or DevInsecure(True), Policy(dev_insecure.measured())
    parties = [Party(i, job, identities[i], believes, policy, draws[i]) for i in range(len(draws))]
    return job, parties, secrets


class Direct:
    """Stands where an `Enclave` does: the service without its process."""

    def __init__(self, job, *_):
        self.service, self.asked = Service(job, dev_insecure.attest), []
        self.relay = self.service.relay

    def ask(self, request):
        ids = self.service.ask(request.written())
        self.asked.append(request)
        return ids

    def score(self, model, round=0):
        return unpack_scores(self.service.score(round, pack_model(model)))

    def close(self):
        pass


def told(counts, who=None, seed=0, **terms):
    """Return a service to which clients told their counts."""
    job, parties, secrets = parties_of(counts, seed=seed, **terms)
    enclave = Direct(job)
    for i in range(len(counts)) if who is None else who:
        if counts[i].any():
            tell(enclave.relay, parties[i], distribution(counts[i], secrets[i]))
    return enclave
