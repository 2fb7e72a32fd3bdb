"""A site: its data, its model replica and its state. Everything it does is a request in and a reply out.

A client update that meets others on its way (synchronised norms) replies early with what it brings, and goes on when
the answer comes; so whoever carries the messages needs to know nothing of that.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from fedstrata.client.network import Network
from fedstrata.client.site_client import Site, Versions
from fedstrata.client.trainer import Trainer
from fedstrata.config.build import build_plan
from fedstrata.config.experiment import Experiment
from fedstrata.core.batch_norm import AllReduce, By
from fedstrata.core.flat_model import ParameterSpace
from fedstrata.core.messages import Report, fast_replace
from fedstrata.core.plan import Plan
from fedstrata.core.rng import unpredictable
from fedstrata.core.threads import one_thread
from fedstrata.core.wire import pack, pack_report, unpack, unpack_report, unpack_task
from fedstrata.data.federation import Federation
from fedstrata.privacy.envelopes import Letterbox
from fedstrata.privacy.frames import RefusedError
from fedstrata.privacy.identity import KeyDirectory
from fedstrata.privacy.noise import UpdateNoise
from fedstrata.privacy.protect import cut, hide_figures, protect_report, protect_update, sum_figures
from fedstrata.privacy.setup import encoding_of, hides_figures, hides_label_counts, noise_of
from fedstrata.privacy.sums.all_reduce import Participant
from fedstrata.privacy.sums.fixed_point import Encoding
from fedstrata.privacy.sums.member import SumMember
from fedstrata.privacy.sums.protocol import SumTask as Sum
from fedstrata.privacy.sums.secure_sum import act
from fedstrata.remote.chain_site import ChainSite
from fedstrata.remote.client_state import StateOnDisk
from fedstrata.remote.credentials import Credentials
from fedstrata.remote.introduction import Introduction, aligned
from fedstrata.remote.protocol import IN, AbsentError, build_refusal, build_reply, read_request, read_values, to_json
from fedstrata.remote.site_features import on_the_scale
from fedstrata.remote.site_privacy import SitePrivacy
from fedstrata.remote.transport import attempted
from fedstrata.server.evaluator import answers

COUNTED = frozenset({"labels", "totals", "counts"})  # facts of the client info that are made of label counts
MET, REPORT = b"meet", b"report"


@dataclass
class SiteSession:
    """One run, as this site takes part in it."""

    run: str
    client: int
    site: Site
    federation: Federation  # its own data, with the run's class indices
    network: Network
    space: ParameterSpace
    everybody: int  # sites that take part
    hides_label_counts: bool = False  # whether it tells nothing by label
    noise: UpdateNoise | None = None  # on what leaves it
    encoding: Encoding | None = None  # of what leaves it, where updates are masked
    hides_figures: bool = False  # the same: whether losses and lengths of updates are
    key_directory: KeyDirectory | None = None  # the same
    leaving: np.ndarray | None = None  # what was trained and waits for its sum, flat
    member: SumMember | None = None
    hops: ChainSite | None = None  # where a chain's models pass the server sealed


class Host:
    """Answers for one site.

    `load` gives its data, a federation of one client; `credentials` say who is who; in `folder` it remembers its state.
    """

    def __init__(
        self,
        name: str,
        load: Callable[[], Federation],
        credentials: Credentials | None = None,
        folder: Path | None = None,
    ):
        self.name, self._load, self._folder = name, load, folder
        self._guard = SitePrivacy(name, load, credentials)
        self._session: SiteSession | None = None
        self._running: RunningTask | None = None  # under way: it waits for others
        self._turn = threading.Lock()  # one request at a time: somebody may ask again before an answer is ready
        self._do: Mapping[str, Callable[..., tuple[bytes, ...]]] = {
            "introduce": self._introduce,
            "begin": self._begin,
            "task": self._task,
            "met": self._met,
            "evaluate": self._evaluate,
            "sum": self._sum,
            **self._guard.requests,
            "hello": lambda: self._chained().hello(),
            "hand_on": lambda about, hello: self._chained().hand_on(about, hello),
            "hop": lambda data, about, envelope: self._chained().hop(data, about, envelope, self._trained),
        }

    def answer(self, request: bytes) -> bytes:
        """Do what is asked for; whatever goes wrong is the answer."""
        return attempted(self._done, request, build_refusal)

    def _done(self, request: bytes) -> bytes:
        with self._turn:
            kind, fields = read_request(request)
            if kind == IN:
                run, inner = fields
                self._at_work(run.decode(errors="replace"))
                kind, fields = read_request(inner)
            if kind not in self._do:
                raise RefusedError(f"there is no request {kind!r}")
            return build_reply(*self._do[kind](*fields))

    # ---- requests

    def _introduce(self, asked: bytes) -> tuple[bytes]:
        told = read_values(asked)
        federation = self._load() if told.get("classes") is None else aligned(self._load(), told["classes"])
        counted = bool(set(told.get("needs", [])) & COUNTED)
        counts = self._guard.counts(federation, told.get("epsilon")) if counted else None
        facts = Introduction.of(federation, bool(told.get("named", True)), counts)
        return (to_json({"site": self.name, **facts.dump()}),)

    def _begin(self, asked: bytes, text: bytes) -> tuple[bytes]:
        told = read_values(asked)
        present = self._load().fingerprint
        if self._session is not None and self._session.run == told["run"]:  # a server that went on from a checkpoint
            return (to_json({"data": present}),)
        federation = on_the_scale(self._guard.own(told), told.get("preprocessing"))
        experiment = Experiment.of(read_values(text))
        privacy, plan = experiment.privacy, build_plan(experiment, federation)
        local = replace(plan.local, streams=replace(plan.local.streams, secret=os.urandom(32)))
        own = federation.client(0)
        rows = torch.from_numpy(own.rows)
        here = replace(own, id=int(told["client"]), rows=np.arange(own.samples), speed=float(told["speed"]))
        x, y = federation.train.x[rows], federation.train.y[rows]
        trainer = Trainer(local, x, y, max(own.samples, 1), fastest=here.speed)
        module = plan.local.build().to(plan.local.dtype)
        network = Network(module, plan.local.head, plan.local.half).eval()
        self._session = SiteSession(
            told["run"],
            here.id,
            Site(
                here, trainer, Versions() if self._folder is None else StateOnDisk(self._folder, told["run"], present)
            ),
            federation,
            network,
            ParameterSpace.of(module, plan.local.head),
            len(told["sites"]),
            hides_label_counts(privacy),
            noise_of(privacy),
            encoding_of(privacy),
            hides_figures(privacy, plan),
            self._guard.key_directory(told) if privacy.aggregate == "masked" else None,
            hops=self._hops(told, plan) if told.get("chained") else None,
        )
        untested = len(self._load().test_split[0]) - len(federation.test_split[0])
        return (to_json({"data": present, "untested": untested}),)

    def _hops(self, told: Mapping[str, Any], plan: Plan) -> ChainSite:
        """Return this site's part in a chain whose models the server cannot read."""
        run, key_directory = str(told["run"]), self._guard.key_directory(told)
        return ChainSite(
            Letterbox(int(told["client"]), self._guard.credentials.identity, key_directory, run), run, plan
        )

    def _task(self, data: bytes, by: bytes, invitation: bytes = b"") -> tuple[bytes, bytes]:
        session = self._at_work()
        if unpack_task(data).client != session.client:
            raise RefusedError(f"a task for another client reached site {self.name}")
        if by not in (b"", b"samples", b"clients"):
            raise RefusedError("clients meet by samples or by clients")
        if by and session.key_directory is not None and not invitation:
            raise RefusedError("this site meets others under masks only")
        if self._running is not None:  # it still waits for others
            self._running.end()
        participant = self._guard.participant(invitation) if invitation else None
        self._running = RunningTask(session.site, data, cast(By, by.decode()) if by else None, participant)
        return self._said(self._running)

    def _trained(self, data: bytes) -> tuple[bytes, bytes]:
        return self._task(data, b"")

    def _met(self, data: bytes) -> tuple[bytes, bytes]:
        if self._running is None:
            raise RefusedError(f"site {self.name} is not waiting for anybody")
        header, tensors = unpack(data)
        return self._said(self._running, (tensors["average"], float(header["count"])))

    def _said(self, context: RunningTask, met: tuple[Tensor, float] | None = None) -> tuple[bytes, bytes]:
        """Let a client update go on until it meets others again, or is over."""
        self._running = None
        what, data = context.next(met)
        self._running = context if what == MET else None
        return self._leaving(what, data)

    def _leaving(self, what: bytes, data: bytes) -> tuple[bytes, bytes]:
        """Clip and noise an update, and keep it here where only sums may leave; its report goes out without it."""
        session = self._at_work()
        noise = session.noise
        if what != REPORT or (session.key_directory is None and noise is None):
            return what, data
        report = unpack_report(data)
        leaving = None
        if report.aggregated:
            if session.hides_figures:
                report = self._hidden(report, session)
            leaving = protect_update(report.aggregated, noise, session.encoding, unpredictable)
            report = protect_report(report, noise)
        if session.key_directory is None:
            return what, pack_report(
                report if leaving is None else fast_replace(report, aggregated=cut(leaving, report.aggregated))
            )
        session.leaving, session.member = leaving, None
        return what, pack_report(report.open())

    def _hidden(self, report: Report, session: SiteSession) -> Report:
        """Tell loss and length of an update in the sum only; where it is noised, not at all."""
        if session.noise is not None or session.encoding is None or not report.finite:
            return hide_figures(report)
        report = fast_replace(report, work=0.0)  # how many samples it computed on
        return sum_figures(report, session.encoding.most(session.everybody))

    def _sum(self, step: bytes, about: bytes, message: bytes) -> tuple[bytes]:
        """Take a step of a secure sum over what was trained last: once."""
        session = self._at_work()
        if session.key_directory is None or session.encoding is None or session.leaving is None:
            raise RefusedError(f"site {self.name} has nothing to sum")
        if step == b"advertise":
            if session.member is not None:
                raise RefusedError("what a site trained is summed once")
            told = read_values(about)
            members = tuple(int(member) for member in told["members"])
            job = bytes.fromhex(told["job"])
            task = Sum(job, members, len(session.leaving), session.key_directory.digest, session.encoding)
            session.member = SumMember(
                task, session.client, self._guard.credentials.identity, session.key_directory, os.urandom
            )
        if session.member is None:
            raise RefusedError("a secure sum begins with its keys")
        return (act(session.member, step.decode(), message, session.leaving),)

    def _evaluate(self, data: bytes, invitation: bytes = b"") -> tuple[bytes, bytes]:
        session = self._at_work()
        _, down = unpack(data)
        session.space.bind(session.network.module, down["params"], down.get("buffers", torch.zeros(0)))
        federation = session.federation
        test = federation.test.keep(federation.test_split[0])
        with one_thread():
            none = np.zeros(0), np.zeros(0)
            hits, losses = answers(session.network, session.site.trainer.local, test) if len(test) else none
        labels, classes = test.y.numpy(), len(federation.classes)
        right = np.bincount(labels, weights=hits.astype(np.float64), minlength=classes)
        tested = np.bincount(labels, minlength=classes)
        by_label = np.concatenate([right, tested])
        if session.hides_label_counts:  # label by label only in a sum over all sites
            right, tested = right.sum(keepdims=True), tested.sum(keepdims=True)
        told = to_json({"right": right.tolist(), "tested": tested.tolist(), "loss": float(losses.sum())})
        return told, self._guard.by_label(invitation, session.everybody, by_label) if invitation else b""

    def _chained(self) -> ChainSite:
        hops = self._at_work().hops
        if hops is None:
            raise RefusedError(f"site {self.name} takes part in no chain of sealed models")
        return hops

    def _at_work(self, run: str | None = None) -> SiteSession:
        if self._session is None or run not in (None, self._session.run):
            raise AbsentError(f"site {self.name} was restarted, or takes part in another run")
        return self._session


class RunningTask:
    """A task; where norms meet, in a thread of its own: it can stop in the middle and wait for the other sites."""

    def __init__(self, site: Site, task: bytes, by: By | None, participant: Participant | None = None):
        self._participant = participant  # where what it brings must be masked
        self._out: queue.Queue[tuple[bytes, bytes] | BaseException] = queue.Queue()
        self._back: queue.Queue[tuple[Tensor, float] | None] = queue.Queue()
        all_reduce = None if by is None else AllReduce(by, self._exchange)
        self._thread: threading.Thread | None = None
        if all_reduce is None or not site.trainer.space.normed:
            self._run(site, task, all_reduce)
        else:
            self._thread = threading.Thread(target=self._run, args=(site, task, all_reduce), daemon=True)
            self._thread.start()

    def next(self, met: tuple[Tensor, float] | None = None) -> tuple[bytes, bytes]:
        """Let it go on, and give what it says next: what it brings to a meeting, or its report."""
        if met is not None:
            self._back.put(met)
        said = self._out.get()
        if isinstance(said, BaseException):
            raise said
        return said

    def end(self) -> None:
        """Let it go: nobody comes to meet it."""
        self._back.put(None)
        if self._thread is not None:
            self._thread.join()

    def _run(self, site: Site, task: bytes, all_reduce: AllReduce | None) -> None:
        try:
            with one_thread():
                self._out.put((REPORT, site.answer(task, all_reduce)))
        except BaseException as error:  # it belongs to whoever asked
            self._out.put(error)

    def _exchange(self, what: str, values: Tensor, count: float) -> tuple[Tensor, float]:
        told, brought = count, values
        if self._participant is not None:  # how many values they are of tells how many samples this site gives
            told, brought = (
                0.0,
                self._participant.masked_tensor(torch.cat([values.double().reshape(-1), _double(count)])),
            )
        self._out.put((MET, pack({"what": what, "count": told}, {"values": brought})))
        if (met := self._back.get()) is None:
            raise RefusedError("the meeting is over")
        return met[0].reshape(values.shape), met[1]


def _double(number: float) -> Tensor:
    return torch.tensor([number], dtype=torch.float64)
