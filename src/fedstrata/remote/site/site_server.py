"""A site: its data, its model replica and its state. Everything it does is a request in and a reply out."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from fedstrata import __version__
from fedstrata.client.network import Network
from fedstrata.client.site_client import Site, StatelessError, Versions
from fedstrata.client.trainer import Trainer
from fedstrata.config.build import build_plan, count_parameters
from fedstrata.config.experiment import Experiment
from fedstrata.config.sections import EnclaveChoice
from fedstrata.core import origin
from fedstrata.core.batch_norm import By
from fedstrata.core.errors import RequestError
from fedstrata.core.flat_model import ParameterSpace
from fedstrata.core.machine.threads import one_thread
from fedstrata.core.messages import Report, fast_replace
from fedstrata.core.plain_text import plain_text
from fedstrata.core.plan import Plan
from fedstrata.core.rng import unpredictable
from fedstrata.core.wire import pack_report, unpack, unpack_report, unpack_task
from fedstrata.data.federation import Federation
from fedstrata.privacy.envelopes import Letterbox
from fedstrata.privacy.frames import RefusedError
from fedstrata.privacy.protect import cut, hide_figures, protect_report, protect_update, sum_figures
from fedstrata.privacy.refusals import refuse
from fedstrata.privacy.setup import clip_of, encoding_of, hides_figures, hides_label_counts, most_spent, noise_of
from fedstrata.privacy.sums.fixed_point import TOO_LARGE, TooLargeError
from fedstrata.privacy.sums.member import SumMember
from fedstrata.privacy.sums.protocol import SumTask as Sum
from fedstrata.privacy.sums.secure_sum import act
from fedstrata.remote.credentials import Credentials
from fedstrata.remote.introduction import Introduction
from fedstrata.remote.protocol import (
    IN,
    MET,
    REPORT,
    AbsentError,
    SiteError,
    VersionError,
    build_refusal,
    build_reply,
    read_request,
    read_values,
    to_json,
)
from fedstrata.remote.protocol_version import PROTOCOL
from fedstrata.remote.site.chain import ChainSite
from fedstrata.remote.site.client_state import StateOnDisk
from fedstrata.remote.site.counts_asked import check_introduction, check_request
from fedstrata.remote.site.features import describe_units, on_the_scale
from fedstrata.remote.site.ledger import Ledger
from fedstrata.remote.site.policy.gate import PolicyGate
from fedstrata.remote.site.policy.rules import SitePolicy
from fedstrata.remote.site.privacy import SitePrivacy
from fedstrata.remote.site.running_task import RunningTask
from fedstrata.remote.site.session import SiteSession
from fedstrata.remote.site.source import align_classes
from fedstrata.remote.transport import hide_error
from fedstrata.server.evaluator import answers

LOG = logging.getLogger(__name__)
OPENING = ("introduce", "begin")  # requests that tell of a run; all others belong to one
TOLD = (SiteError, RefusedError, StatelessError)  # errors whose words were written for others to read
WORDS = 200  # characters of a refusal that the audit log keeps
SUMMED = frozenset({"train", "gradient"})  # tasks whose updates are summed, as all drivers here name them


class SiteServer:
    """Answers for one site.

    `load` gives its data, a federation of one client; `credentials` say who is who; in `folder` it remembers its state
    (`memory/`), what it gave (`ledger.json`, `summed.json`), what left it and what its owner approved; `policy` is what
    its owner allows, and `trusted` the enclave that it may tell its labels.
    """

    def __init__(
        self,
        name: str,
        load: Callable[[], Federation],
        credentials: Credentials | None = None,
        folder: Path | None = None,
        policy: SitePolicy | None = None,
        trusted: EnclaveChoice | None = None,
    ):
        self.name, self._load, self._folder, self._gate = name, load, folder, PolicyGate(policy, folder)
        self._guard = SitePrivacy(name, load, credentials, self._gate, trusted, folder)
        self._ledger = Ledger(folder)
        self._about: dict[str, Any] = {}  # the request, in words for the audit log
        self._session: SiteSession | None = None
        self._turn = threading.Lock()  # one request at a time: somebody may ask again before an answer is ready
        self._do: Mapping[str, Callable[..., tuple[bytes, ...]]] = {
            "introduce": self._introduce,
            "begin": self._begin,
            "task": self._task,
            "met": self._take_average,
            "evaluate": self._evaluate,
            "sum": self._sum,
            **self._guard.requests,
            "features": self._features,
            "hello": lambda: self._chain().hello(),
            "hand_on": lambda about, hello: self._chain().hand_on(about, hello),
            "hop": lambda data, about, envelope: self._chain().hop(data, about, envelope, self._train),
        }

    def state(self) -> dict[str, Any]:
        """Say which run was the last that asked for something, and by which roll this site goes; waits for nobody."""
        return {"run": self._about.get("run"), "roll": self._guard.serial}

    def answer(self, request: bytes) -> bytes:
        """Do what is asked for; whatever goes wrong is the answer, and whatever leaves is written down first.

        Some errors were written to be read by others. Any other one may quote a sample or a file: only its kind leaves
        the site, and the rest goes to the site's own log.
        """
        with self._turn:
            self._about = {"kind": "unknown"}
            try:
                reply = self._carry_out(request)
            except TOLD as error:
                reply = self._refuse(error)
            except TooLargeError as error:  # its words quote a number of the update
                LOG.info("an update cannot be added up under masks: %s", error)
                reply = self._refuse(RefusedError(TOO_LARGE))
            except Exception as error:
                reply = self._refuse(hide_error(error))
            try:
                self._gate.leaves(self._about.pop("kind"), reply, self._about)
            except OSError as error:
                LOG.error("the audit log cannot be written, so nothing leaves this site: %s", error)
                return build_refusal("it cannot write down what leaves it, and so nothing does: is its disk full?")
            return reply

    def _refuse(self, error: Exception) -> bytes:
        self._about["refused"] = str(error)[:WORDS]
        return build_refusal(error)

    def _carry_out(self, request: bytes) -> bytes:
        kind, fields = read_request(request)
        run = ""
        if kind == IN:
            run, (kind, fields) = fields[0].decode(errors="replace"), read_request(fields[1])
        if kind not in self._do:
            raise RefusedError(f"there is no request {kind[:40]!r}")
        self._about = {"kind": kind} | ({"run": plain_text(run, 80)} if run else {})
        self._gate.check_time()
        if kind not in OPENING:
            if kind not in self._guard.requests:
                self._at_work(run)
            self._gate.check_approved(run)
            check_request(kind, fields, lambda: self._gate.experiment(run))
        return build_reply(*self._do[kind](*fields))

    # ---- requests

    def _introduce(self, asked: bytes) -> tuple[bytes]:
        told = read_values(asked)
        if told.get("protocol", PROTOCOL) != PROTOCOL:
            theirs = f"the server has fedstrata {str(told.get('version'))[:20]} with protocol {told['protocol']!r:.20}"
            raise VersionError(f"{theirs}, this site {__version__} with protocol {PROTOCOL}; install the same at both")
        refused = self._guard.hear_of_roll(told.get("roll"), self._folder)
        experiment = self._gate.admit(self._run_of(told), told.get("experiment"))
        privacy = experiment.privacy
        self._check_size(experiment, self._load())
        federation = self._load() if told.get("classes") is None else align_classes(self._load(), told["classes"])
        counts = None
        if check_introduction(told.get("needs", []), experiment):
            counts = self._guard.counts(federation, privacy.histogram_epsilon)
            self._about["counts"] = self._gate.policy.privacy.counts
        facts = Introduction.of(federation, privacy.labels == "none", counts)
        present = self._load().fingerprint  # as `begin` tells it: class indices of a run make no other data of it
        facts = replace(facts, fingerprint=present, roll=self._guard.serial, roll_refused=refused)
        return (to_json({"site": self.name, "protocol": PROTOCOL, **facts.dump()}),)

    def _run_of(self, told: Mapping[str, Any]) -> str:
        run = told.get("run")
        if not isinstance(run, str) or not re.fullmatch(r"[A-Za-z0-9_-]{1,80}", run):
            raise RefusedError("a run has a name of letters and digits")
        self._about["run"] = run
        return run

    def _features(self, about: bytes, place: bytes, invitation: bytes) -> tuple[bytes, ...]:
        """Answer a question about features; in the open only where the run adds up updates in the open too."""
        run = str(self._about.get("run"))
        if not invitation and self._gate.experiment(run).privacy.aggregate == "masked":
            raise RefusedError("in this run, features are added up under masks")
        return self._guard.requests["features"](run, about, place, invitation)

    def _begin(self, asked: bytes, text: bytes) -> tuple[bytes]:
        told = read_values(asked)
        self._guard.hear_of_roll(told.get("roll"), self._folder)
        present, run = self._load().fingerprint, self._run_of(told)
        experiment = self._gate.admit(run, read_values(text))
        if self._session is not None and self._session.run == run:  # a server that went on from a checkpoint
            return (to_json({"data": present}),)
        federation = on_the_scale(self._guard.own(told), told.get("preprocessing"))
        if (units := describe_units(federation)) is not None:  # to the owner alone
            LOG.warning("site %s: %s", self.name, units)
        privacy, plan = experiment.privacy, self._build_plan(experiment, federation, len(told["sites"]))
        local = replace(plan.local, streams=replace(plan.local.streams, secret=os.urandom(32)))
        own = federation.client(0)
        rows = torch.from_numpy(own.rows)
        here = replace(own, id=int(told["client"]), rows=np.arange(own.samples), speed=float(told["speed"]))
        x, y = federation.train.x[rows], federation.train.y[rows]
        trainer = Trainer(local, x, y, max(own.samples, 1), fastest=here.speed)
        module = plan.local.build().to(plan.local.dtype)
        network = Network(module, plan.local.head, plan.local.half).eval()
        session = SiteSession(
            run,
            here.id,
            Site(here, trainer, self._versions(run, present)),
            federation,
            network,
            ParameterSpace.of(module, plan.local.head),
            len(told["sites"]),
            hides_label_counts(privacy) or self._gate.policy.privacy.counts != "exact",
            noise_of(privacy),
            encoding_of(privacy),
            clip_of(experiment, plan),
            hides_figures(privacy, plan),
            self._guard.key_directory(told) if privacy.aggregate == "masked" else None,
            most_spent(privacy, len(told["sites"])),
            hops=self._join_chain(told, plan) if told.get("chained") else None,
        )
        if self._session is not None:
            self._session.end()
        self._session = session
        untested = len(self._load().test_split[0]) - len(federation.test_split[0])
        return (to_json({"data": present, "untested": untested}),)

    def _versions(self, run: str, data: str) -> Versions:
        return Versions() if self._folder is None else StateOnDisk(self._folder / "memory", run, data)

    def _build_plan(self, experiment: Experiment, federation: Federation, sites: int) -> Plan:
        """Build the plan of a run; what privacy does not fit is refused here too, whatever the server says."""
        try:
            with origin.from_elsewhere(self._gate.policy.import_paths):
                self._check_size(experiment, federation)
                plan = build_plan(experiment, federation)
            refuse(experiment, plan, federation, sites)
        except RequestError as error:
            raise SiteError(str(error)) from None
        return plan

    def _check_size(self, experiment: Experiment, federation: Federation) -> None:
        """Refuse a model that is too large, before it takes any memory."""
        if self._gate.policy.limits.parameters is None:
            return
        shape, classes = tuple(federation.trial().shape[1:]), len(federation.classes)
        try:
            self._gate.policy.check_size(count_parameters(experiment.model, shape, classes))
        except RequestError as error:
            raise SiteError(str(error)) from None

    def _join_chain(self, told: Mapping[str, Any], plan: Plan) -> ChainSite:
        """Return this site's part in a chain whose models the server cannot read."""
        run, key_directory = str(told["run"]), self._guard.key_directory(told)
        return ChainSite(
            Letterbox(int(told["client"]), self._guard.credentials.identity, key_directory, run), run, plan
        )

    def _task(self, data: bytes, by: bytes, invitation: bytes = b"") -> tuple[bytes, bytes]:
        session, task = self._at_work(), unpack_task(data)
        self._gate.check_update(session.run, task.round)
        self._gate.check_budget(session.noise, self._ledger.spent())
        if task.client != session.client:
            raise RefusedError(f"a task for another client reached site {self.name}")
        if by not in (b"", b"samples", b"clients"):
            raise RefusedError("clients meet by samples or by clients")
        if by and session.key_directory is not None and not invitation:
            raise RefusedError("this site meets others under masks only")
        self._about |= {"round": task.round, "step": task.step, "task": task.kind}
        session.end()
        session.step, session.given, session.leaving, session.member = (task.round, task.step), False, None, None
        if session.protected and task.kind in SUMMED:  # not to train for nothing
            self._ledger.check(session.run, session.step)
        participant = self._guard.participant(invitation) if invitation else None
        if participant is not None:  # what it brings there is given
            self._give(session)
        running = RunningTask(session.site, data, cast(By, by.decode()) if by else None, participant)
        return self._go_on(session, running)

    def _train(self, data: bytes) -> tuple[bytes, bytes]:
        return self._task(data, b"")

    def _take_average(self, data: bytes) -> tuple[bytes, bytes]:
        session = self._at_work()
        if session.running is None:
            raise RefusedError(f"site {self.name} is not waiting for anybody")
        header, tensors = unpack(data)
        return self._go_on(session, session.running, (tensors["average"], float(header["count"])))

    def _go_on(
        self, session: SiteSession, running: RunningTask, met: tuple[Tensor, float] | None = None
    ) -> tuple[bytes, bytes]:
        """Let a client update go on until it meets others again, or is over."""
        session.running = None
        what, data = running.next(met)
        session.running = running if what == MET else None
        return self._protect(session, what, data)

    def _protect(self, session: SiteSession, what: bytes, data: bytes) -> tuple[bytes, bytes]:
        """Clip and noise an update, and keep it here where only sums may leave; its report goes out without it."""
        noise = session.noise
        if what != REPORT or (session.key_directory is None and noise is None):
            return what, data
        report = unpack_report(data)
        leaving = None
        if report.aggregated:
            if session.hides_figures:
                report = self._hide_figures(report, session)
            leaving = protect_update(report.aggregated, noise, session.encoding, unpredictable, session.clip)
            report = protect_report(report, noise)
            if noise is not None and noise.local and noise.noise:
                self._about["noise"] = noise.noise
        if session.key_directory is None:
            if leaving is not None:
                self._give(session)
                report = fast_replace(report, aggregated=cut(leaving, report.aggregated))
            return what, pack_report(report)
        session.leaving, session.member = leaving, None
        return what, pack_report(report.open())

    def _give(self, session: SiteSession) -> None:
        """Write down that the update at hand leaves, before anything of it does."""
        if not session.given:
            self._gate.check_budget(session.noise, self._ledger.spent())
            cost = 0.0 if session.noise is None else session.noise.cost
            self._ledger.enter(session.run, session.step, cost, session.most_spent)
            session.given = True

    def _hide_figures(self, report: Report, session: SiteSession) -> Report:
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
            size, roll = len(session.leaving), session.key_directory.digest
            task = Sum(job, members, size, roll, session.encoding, magnitudes=tuple(told["magnitudes"]))
            session.member = SumMember(
                task, session.client, self._guard.credentials.identity, session.key_directory, os.urandom
            )
        if session.member is None:
            raise RefusedError("a secure sum begins with its keys")
        reply = act(session.member, step.decode(), message, session.leaving)
        if step == b"masked":
            self._give(session)
        return (reply,)

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

    def _chain(self) -> ChainSite:
        hops = self._at_work().hops
        if hops is None:
            raise RefusedError(f"site {self.name} takes part in no chain of sealed models")
        return hops

    def _at_work(self, run: str | None = None) -> SiteSession:
        if self._session is None or run not in (None, self._session.run):
            raise AbsentError(f"site {self.name} was restarted, or takes part in another run")
        return self._session
