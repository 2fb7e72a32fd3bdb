"""FLIPS in an enclave: what it costs over plain clustering, and what watching it gives away with and without noise.

The attack has seen who was selected in 100 rounds of 10 of 100 clients, in ten groups by label, and is told that there
are ten. Clients of one cluster are seldom selected together, and at any time about equally often; from both it guesses
the clusters in three ways, and the best guess counts. The adjusted Rand index says how much of the groups it found: 1
is all, 0 is chance.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np
from sklearn.cluster import AgglomerativeClustering, SpectralClustering
from sklearn.metrics import adjusted_rand_score

from benchmarks._rows import row
from fedstrata.config.sections import EnclaveChoice
from fedstrata.core.client_info import ClientInfo
from fedstrata.core.flat_model import ParameterSpace
from fedstrata.core.rng import Streams
from fedstrata.core.steps import View
from fedstrata.methods.selectors.flips import Flips
from fedstrata.privacy.enclave import dev_insecure
from fedstrata.privacy.enclave.attestation import Policy
from fedstrata.privacy.enclave.channel import Job, Party
from fedstrata.privacy.enclave.dev_insecure import DevInsecure, InsecureWarning
from fedstrata.privacy.enclave.launch import Enclave, tell
from fedstrata.privacy.enclave.policy import Terms
from fedstrata.privacy.enclave.requests import Request
from fedstrata.privacy.enclave.service import SECRET, Service, distribution
from fedstrata.privacy.frames import JOB
from fedstrata.privacy.identity import Identity, KeyDirectory
from fedstrata.server.metrics import label_divergence

LABELS, WATCHED, GROUPS, K = 10, 100, 10, 10
PAPER = 105.4 / 100.5  # clustering inside over outside, FLIPS section 5.1
SETTING = EnclaveChoice(attestation="dev-insecure", allow_insecure=True)


@dataclass(frozen=True)
class Size:
    """How much is clustered, and how long the enclave is watched."""

    parties: int
    turns: int  # of each way, of which the median counts
    rounds: int
    seeds: int


FULL = Size(parties=200, turns=5, rounds=100, seeds=5)  # as many parties as in the paper's measurement
QUICK = Size(parties=20, turns=1, rounds=40, seeds=1)


def rows(quick: bool) -> list[dict[str, Any]]:
    """Return the overhead, and the attack by noise."""
    size = QUICK if quick else FULL
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InsecureWarning)
        return [*_overhead(size), *_watching(size.rounds, size.seeds)]


# ---- cost


def _overhead(size: Size) -> list[dict[str, Any]]:
    """Measure CPU seconds of both ends together: a busy machine stretches the time, not the work."""
    counts = _dirichlet(size.parties, LABELS)
    request, flips = Request("select", 0, size.parties // 5), Flips()
    plain, inside, submitted, began = [], [], [], []
    for _ in range(size.turns):
        plain.append(_plain(flips, counts, request))
        start = perf_counter()
        enclave, parties, secrets = _started(counts, flips, size.rounds)
        began.append(perf_counter() - start)
        try:
            at = _cpu(enclave)
            for i, party in enumerate(parties):
                tell(enclave.relay, party, distribution(counts[i], secrets[i]))
            told = _cpu(enclave)
            enclave.ask(request)
            submitted.append(told - at)
            inside.append(_cpu(enclave) - told)
        finally:
            enclave.close()
    whole = [a + b for a, b in zip(submitted, inside, strict=True)]
    name = f"enclave, {size.parties} parties"
    return [
        row(f"{name}: clustering and selecting in the open", 1000 * median(plain), "CPU ms"),
        row(f"{name}: the same inside", 1000 * median(inside), "CPU ms"),
        row(f"{name}: inside over in the open (the paper: {PAPER:.2f})", _ratio(inside, plain), "times"),
        row(f"{name}: all attested submissions, both ends", 1000 * median(submitted), "CPU ms"),
        row(f"{name}: submissions and inside over in the open", _ratio(whole, plain), "times"),
        row("enclave: start of the process", median(began), "s"),
    ]


def _ratio(one: list[float], other: list[float]) -> float:
    return median(a / b for a, b in zip(one, other, strict=True))


def _cpu(enclave: Enclave) -> float:
    """Return the CPU seconds of this process and of the service."""
    fields = Path(f"/proc/{enclave.process.pid}/stat").read_text().rpartition(")")[2].split()
    return process_time() + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _plain(flips: Flips, counts: np.ndarray, request: Request) -> float:
    streams, everybody = Streams(0), np.arange(len(counts))
    key = streams("tiebreak").permutation(len(counts))
    client_info = ClientInfo(*counts.shape, everybody, key, {"counts": counts})
    space = ParameterSpace((), (), slice(0, 0), slice(0, 0), slice(0, 0))
    view = View(0, 1, request.k, everybody, client_info, space, partial(streams, round=0), lambda *_, **__: None)
    start = process_time()
    flips.select(flips.init(view), view)
    return process_time() - start


def _job(counts: np.ndarray, flips: Flips, rounds: int, noise: float = 0.0) -> tuple[Job, list[Party], list[bytes]]:
    """Return a job and its clients."""
    identities = [Identity.new(os.urandom) for _ in range(len(counts) + 1)]
    terms = Terms(*counts.shape, rounds, 0, flips, noise)
    job = Job(os.urandom(JOB), KeyDirectory.of(Identity.new(os.urandom), identities), terms.written())
    policy = Policy(dev_insecure.measured())
    parties = [Party(i, job, identities[i], DevInsecure(True), policy, os.urandom) for i in range(len(counts))]
    return job, parties, [os.urandom(SECRET) for _ in parties]


def _started(counts: np.ndarray, flips: Flips, rounds: int) -> tuple[Enclave, list[Party], list[bytes]]:
    job, parties, secrets = _job(counts, flips, rounds)
    return Enclave(job, SETTING), parties, secrets


def _dirichlet(clients: int, labels: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.array([rng.multinomial(50, mix) for mix in rng.dirichlet(np.full(labels, 0.3), clients)])


# ---- what watching gives away


def _watching(rounds: int, seeds: int) -> list[dict[str, Any]]:
    told = []
    for noise in (0.0, 0.1, 0.3):
        found, divergence = np.mean([_watched(noise, seed, rounds) for seed in range(seeds)], axis=0)
        name = f"enclave, noise {noise:g}"
        told.append(row(f"{name}: clusters found by who is selected together", found, "ARI"))
        told.append(row(f"{name}: label divergence of a round", divergence, "nats"))
    known = float(np.mean([_any_member(seed, rounds) for seed in range(seeds)]))
    return [*told, row("the same attack where clusters send any of their least picked members", known, "ARI")]


def _watched(noise: float, seed: int, rounds: int) -> tuple[float, float]:
    """Return how well the attack does, and the mean divergence of a round's labels from those of all."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, GROUPS, WATCHED)
    counts = np.array([rng.multinomial(100, np.where(np.arange(LABELS) == g, 0.82, 0.02)) for g in group])
    job, parties, secrets = _job(counts, Flips(clusters=GROUPS), rounds, noise)
    service = Service(job, dev_insecure.attest)
    for i, party in enumerate(parties):
        tell(service.relay, party, distribution(counts[i], secrets[i]))
    picked = np.zeros((rounds, WATCHED))
    for round in range(rounds):
        picked[round, service.ask(Request("select", round, K).written())] = 1
    mix = counts.sum(0) / counts.sum()
    divergence = np.mean([label_divergence(counts[row > 0].sum(0), mix) for row in picked])
    return attack(picked, group), float(divergence)


def _any_member(seed: int, rounds: int) -> float:
    """Return how well the attack does on ten clusters of ten that draw by lot instead of taking turns in one order."""
    rng, group = np.random.default_rng(seed), np.repeat(np.arange(GROUPS), WATCHED // GROUPS)
    picked = np.zeros((rounds, WATCHED))
    for round in range(rounds):
        lots = picked.sum(0) + rng.random(WATCHED)
        picked[round, [min(np.flatnonzero(group == g), key=lambda i: lots[i]) for g in range(GROUPS)]] = 1
    return attack(picked, group)


def attack(picked: np.ndarray, group: np.ndarray) -> float:
    """Guess clusters from who was selected, [rounds, clients]; give the adjusted Rand index of the best guess."""
    often = picked.sum(0)
    together = picked.T @ picked / np.maximum(np.outer(often, often) / len(picked), 1e-9)  # over what chance gives
    so_far = picked.cumsum(0)
    uneven = np.maximum(np.abs(so_far[:, :, None] - so_far[:, None, :]) - 1, 0).mean(0)
    guesses = [_linked(together + uneven), _cut(together), _cut(2 * (together + 2 * uneven))]
    return max(float(adjusted_rand_score(group, guess)) for guess in guesses)


def _linked(apart: np.ndarray) -> np.ndarray:
    np.fill_diagonal(apart, 0)
    found: np.ndarray = AgglomerativeClustering(GROUPS, metric="precomputed", linkage="average").fit_predict(apart)
    return found


def _cut(apart: np.ndarray) -> np.ndarray:
    near = np.exp(-apart)
    np.fill_diagonal(near, 1)
    found: np.ndarray = SpectralClustering(GROUPS, affinity="precomputed", random_state=0).fit_predict(near)
    return found
