"""The enclave's process: what it does, what the server hears of it, and how it ends."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
import torch
from enclave_parties import OPEN, parties_of

from fedstrata import Federation, RequestError
from fedstrata.config.sections import EnclaveChoice
from fedstrata.core.errors import FedstrataError
from fedstrata.core.flat_model import FlatModel
from fedstrata.core.rng import Streams
from fedstrata.methods.selectors.flips import Flips
from fedstrata.privacy.enclave import launch as starting
from fedstrata.privacy.enclave import service, sev_snp
from fedstrata.privacy.enclave.dev_insecure import InsecureWarning
from fedstrata.privacy.enclave.launch import Enclave, start
from fedstrata.privacy.enclave.policy import Scoring
from fedstrata.privacy.enclave.requests import Request
from fedstrata.privacy.frames import RefusedError, join, split
from fedstrata.server.evaluator import Evaluator
from fedstrata.testing import tiny_federation
from fedstrata.testing.tiny import session_of

PATIENCE = 300.0  # seconds: a deadline that no busy machine meets, only a process that never ends


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """A service that is slow to end is not killed: how it ends by itself is what is tested."""
    monkeypatch.setattr(starting, "ENDING", PATIENCE)


def runs(pid):
    """Say whether a process is there; one that nobody has waited for is a zombie, and gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pid):
    """Wait until a process is gone."""
    until = time.monotonic() + PATIENCE
    while runs(pid) and time.monotonic() < until:
        time.sleep(0.02)
    return not runs(pid)


def grouped():
    """Return clients that hold many samples of every label, and tests in groups: their counts are like nothing else."""
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(8), rng.integers(60, 90, 8))
    y = np.array([rng.choice(6, p=p) for p in rng.dirichlet(np.full(6, 3.0), 8)[owner]])
    x, tested = rng.normal(size=(len(y), 4)).astype(np.float32), np.arange(60) % 6
    test = rng.normal(size=(60, 4)).astype(np.float32), tested, np.where(tested > 2, "a", "b")
    federation = Federation.from_arrays(x, y, owner, test=test, test_clients=np.array_split(rng.permutation(60), 8))
    assert (federation.counts > 0).all()
    return federation


def test_the_process_from_start_to_end():
    work = session_of({"method.selector": "flips", "train.stop.vote": 0.5, "train.stop.target": 0.4}, grouped())
    federation, heard, events = work.federation, [], []
    flips, scoring = work.plan.selector, Scoring.of(work.experiment, federation, work.plan.local.head)
    with pytest.warns(InsecureWarning):
        started = start(
            flips,
            federation,
            work.plan.streams,
            OPEN,
            work.plan.rounds,
            scoring=scoring,
            note=lambda kind, **_: events.append(kind),
            heard=heard.append,
        )
    try:
        assert events == ["insecure"]
        view = work.plan.view(work.client_info, 0, lambda *_, **__: None)
        plain = flips.init(view)
        state = started.select.init(view)
        for round in range(4):
            view = work.plan.view(work.client_info, round, lambda *_, **__: None)
            assert started.select.select(state, view) == sorted(flips.select(plain, view))
        model, evaluator = work.initial_state().model, Evaluator(work.plan.local, federation, satisfied_at=0.4)
        assert started.evaluator.score(model) == evaluator.score(model)
        assert set(evaluator.score(model).figures) >= {"recall", "groups", "satisfied", "worst10"}
        assert started.evaluator(model, replace(view, round=3, rounds=4)) == evaluator.score(model)
        with pytest.raises(RefusedError, match="not among"):  # a refusal is no reason to end
            started.enclave.ask(Request("select", 0, 2, [np.array([99])]))
        assert started.enclave.process.poll() is None
    finally:
        started.close()
    assert started.enclave.process.returncode == 0  # it ended by itself
    started.close()
    with pytest.raises(FedstrataError, match="closed"):
        started.evaluator.score(model)

    seen = b"|".join(heard)
    for own in federation.counts:
        written = [own.astype(kind).tobytes() for kind in ("<i8", "<i4", "<i2", "<f4", "<f8")]
        assert not any(text in seen for text in [*written, json.dumps(own.tolist()).encode()])
    assert not any(x.numpy().tobytes() in seen for x in federation.test.x)
    assert federation.test.y.numpy().tobytes() not in seen
    assert all(key in seen for key in (b"dev-insecure", b"enclave-hello", b"accuracy"))  # it did hear the rest
    assert work.initial_state().model.params.numpy().tobytes() in seen


def served(monkeypatch, *requests):
    """Let the service answer in this process until the other side hangs up; give its exit code and the answers."""
    told = []
    monkeypatch.setattr(service.signal, "signal", lambda *how: told.append(how))
    monkeypatch.setattr(resource, "setrlimit", lambda *how: told.append(how))
    ours, theirs = socket.socketpair()
    with ours:
        line = Connection(os.dup(ours.fileno()))
        for request in requests:
            line.send_bytes(join(request))
        ours.shutdown(socket.SHUT_WR)
        code = service.main(theirs.detach())
        with line:
            answers = [split(data) for data in heard_on(line)]
    assert told == [(signal.SIGINT, signal.SIG_IGN), (resource.RLIMIT_CORE, (0, 0))]
    return code, answers


def heard_on(line):
    """Return what came over a line that was hung up since."""
    with suppress(EOFError, ConnectionError):
        while True:
            yield line.recv_bytes()


def begin():
    job = parties_of(np.ones((3, 2), dtype=int))[0]
    return (
        b"begin",
        job.id,
        join([job.key_directory.server, *job.key_directory.clients]),
        job.terms,
        b"dev-insecure",
        b".",
        b"0",
    )


def test_the_service_refuses_goes_on_and_ends_where_the_other_side_hangs_up(monkeypatch):
    ask = (b"ask", Request("select", 0, 2).written())
    code, answers = served(monkeypatch, begin(), ask, (b"score", b"0", b""), ask)
    assert code == 0
    assert [(how, kind) for how, kind, *_ in answers] == [(b"done", b""), *[(b"refused", b"RefusedError")] * 3]
    assert b"at least 3" in answers[1][2]


def test_an_error_inside_ends_the_service_and_tells_only_its_kind(monkeypatch):
    code, answers = served(monkeypatch, begin(), (b"tell me", b"a secret"), begin())
    assert code == 1
    assert answers == [(b"done", b""), (b"failed", b"ValueError")]


def test_the_service_asks_for_reports_at_the_level_that_parties_insist_on(monkeypatch):
    told, levels = [], []
    Enclave(parties_of(np.ones((3, 2), dtype=int))[0], OPEN.model_copy(update={"vmpl": 2}), told.append).close()
    fields = [b"sev-snp" if field == b"dev-insecure" else field for field in split(told[0])]
    monkeypatch.setattr(sev_snp, "attester", lambda _, vmpl: levels.append(vmpl))
    assert served(monkeypatch, fields) == (0, [(b"done", b"")])
    assert levels == [2]


@pytest.mark.extended
def test_an_error_inside_ends_the_process_and_tells_only_its_kind():
    work = session_of()
    scoring = Scoring.of(work.experiment, work.federation, work.plan.local.head)
    with pytest.warns(InsecureWarning):
        started = start(Flips(clusters=2), work.federation, Streams(0), OPEN, 9, scoring=scoring)
    with pytest.raises(FedstrataError, match=r"failed \(\w+\) and ended"):
        started.enclave.score(FlatModel(torch.zeros(3), torch.zeros(0)))
    assert gone(started.enclave.process.pid)
    with pytest.raises(FedstrataError, match="closed"):
        started.enclave.ask(Request("select", 0, 2))


ORPHAN = """
import sys, time, warnings
warnings.simplefilter("ignore")
from fedstrata.config.sections import EnclaveChoice
from fedstrata.privacy.enclave.launch import start
from fedstrata.core.rng import Streams
from fedstrata.methods.selectors.flips import Flips
from fedstrata.server.evaluator import Evaluator
from fedstrata.testing import tiny_federation
choice = EnclaveChoice(attestation="dev-insecure", allow_insecure=True)
started = start(Flips(clusters=2), tiny_federation(), Streams(0), choice, 9)
print(started.enclave.process.pid, flush=True)
input()
"""


@pytest.mark.extended
def test_the_process_ends_when_its_parent_dies():
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        [sys.executable, "-c", ORPHAN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    ) as parent:
        pid = int(parent.stdout.readline())
        assert runs(pid)
        parent.send_signal(signal.SIGKILL)
    assert gone(pid)


def test_a_dead_process_is_noticed(monkeypatch):
    monkeypatch.setattr(starting, "SERVICE", "this")  # says something, and ends
    with pytest.raises(FedstrataError, match="exit code 0"):
        Enclave(parties_of(np.ones((3, 2), dtype=int))[0], OPEN)


@pytest.mark.skipif(sev_snp.DEVICE.exists(), reason="this is a SEV-SNP guest")
def test_nothing_is_started_where_there_is_no_hardware(monkeypatch):
    monkeypatch.setattr(starting, "Enclave", None)
    with pytest.raises(RequestError, match="SEV-SNP guest"):
        start(Flips(), tiny_federation(), Streams(0), EnclaveChoice(attestation="sev-snp", measurement="00" * 48), 9)
