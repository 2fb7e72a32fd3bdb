"""An engine whose workers are real sites. It shares nothing with them but requests and replies.

A site that does not answer in time, answers with an error, or sends a report that cannot be one is left out of the
step, with an event; the run goes on with the others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256

import torch
from torch import Tensor

from fedstrata.client.all_reduce import Statistics, sum_in_order
from fedstrata.client.site_client import StatelessError
from fedstrata.core.batch_norm import By
from fedstrata.core.engine import AllReduceSum
from fedstrata.core.errors import FedstrataError
from fedstrata.core.events import Log
from fedstrata.core.messages import FIGURES, Report, Sums, Tag, Task, Tensors, weighted_sum
from fedstrata.core.plan import Plan, per_round
from fedstrata.core.rng import unpredictable
from fedstrata.core.steps import Step
from fedstrata.core.wire import pack, pack_task
from fedstrata.privacy import FEWEST
from fedstrata.privacy.frames import JOB, RefusedError
from fedstrata.privacy.masked_sum import MaskedStep, StepSum
from fedstrata.privacy.noise import UpdateNoise
from fedstrata.privacy.protect import flatten
from fedstrata.privacy.sums.all_reduce import TOO_FEW, add_tensors
from fedstrata.privacy.sums.fixed_point import Encoding
from fedstrata.privacy.sums.protocol import SumTask as Sum
from fedstrata.privacy.sums.secure_sum import Carry
from fedstrata.remote.credentials import Credentials
from fedstrata.remote.protocol import MET, build_request, to_json
from fedstrata.remote.report_shapes import expected_shapes
from fedstrata.remote.server.chain import SealedChain
from fedstrata.remote.server.checks import check_report, model_of, read_all_reduce, unlike
from fedstrata.remote.server.kept_sums import KeptSum, KeptSums
from fedstrata.remote.server.masked_all_reduce import invite_sites
from fedstrata.remote.server.site_registry import SiteNames, SiteRegistry, by_client

MOST_ALL_REDUCES = 1_000_000  # in one step: a site that never comes to its report does not hold up a run for ever


@dataclass(frozen=True)
class Masks:
    """What the server needs for masked sums."""

    credentials: Credentials
    names: Sequence[str]
    encoding: Encoding
    run: str

    def step(self, tasks: Sequence[Task]) -> MaskedStep:
        """Describe a step whose sites add up under masks."""
        job = sha256(f"{self.run}|{tasks[0].round}|{tasks[0].step}".encode()).digest()[:JOB]
        clients = [task.client for task in tasks]
        return MaskedStep(
            self.credentials.identity, self.credentials.key_directory(self.names), self.encoding, job, clients
        )


class AtSites:
    """Asks sites, by name; client i is the i-th of them."""

    device = "cpu"
    can_fuse = False
    all_reduce_sum: AllReduceSum | None = None

    def __init__(
        self,
        site_registry: SiteRegistry,
        plan: Plan,
        note: Log,
        masks: Masks | None = None,
        noise: UpdateNoise | None = None,
        relay: SealedChain | None = None,
        clip: float | None = None,
        kept_sums: KeptSums | None = None,
    ):
        self._site_registry, self._names, self._plan, self._note = site_registry, SiteNames(site_registry), plan, note
        self._masks, self._noise, self._relay, self._clip = masks, noise, relay, clip
        self._kept_sums = kept_sums if masks is not None or noise is not None else None
        self._kept: KeptSum | None = None  # what an interrupted server left of the step
        self._tasks: Sequence[Task] = ()
        self._sum = StepSum(noise, unpredictable, clip)
        self._overhead_bytes = 0, 0
        self._reports: dict[int, Report] = {}
        self._statistics: Tensor | None = None

    def ask(self, step: Step, tasks: Sequence[Task]) -> list[Report]:
        """Send every site its task; give the open halves of the reports that came back and can be read."""
        self._tasks, self._overhead_bytes, self._statistics = tasks, (0, 0), None
        # The server's noise is drawn from what no site could draw it from again.
        self._sum = StepSum(self._noise, unpredictable, self._clip)
        self._kept = self._kept_sums.find(tasks) if self._kept_sums is not None and step.combine else None
        if self._kept is not None:
            why = "it was kept when the server was interrupted: sites give their updates once"
            self._note("sum_reused", round=tasks[0].round + 1, step=tasks[0].step, why=why)
            self._overhead_bytes = self._kept.overhead_bytes
            self._reports = {report.client: report for report in self._kept.reports}
            return list(self._kept.reports)
        relay = self._relay if step.combine else None
        if relay is not None:  # a hop of a chain
            (task,) = tasks
            said = relay.ask(step, task, partial(self._ask, tasks=tasks, fields=1), self._send)
            self._overhead_bytes = relay.overhead_bytes
        elif step.together is None:
            said = self._send(tasks, _plainly(b""), self._enough(step, tasks))
        else:
            said = self._compute_together(tasks, step.together)
        self._reports = {}
        for task in tasks:
            data = said.get(self._names[task.client])
            if data is None:
                continue
            try:
                bare = (self._masks is not None and step.combine) or (relay is not None and step.sink == "peer")
                noise = self._noise if step.combine else None
                hidden = self._masks is not None and step.combine and not self._plan.reads_envelope
                report = check_report(data[1], task, self._plan, model_of(task), bare, noise, hidden)
                report = self._limit_samples(report, task) if step.combine else report
                self._reports[task.client] = report if relay is None else relay.read(report, data[1])
            except RefusedError as error:
                self._leave_out(task.client, tasks, str(error))
                if relay is not None:
                    relay.distrust()
        for client in unlike(self._reports):
            self._leave_out(client, tasks, "its report holds other tensors than those of the others")
            del self._reports[client]
        return [report.open() for report in self._reports.values()]

    def collect(self, weights: Mapping[int, float]) -> Sums:
        """Sum what the last step's sites sent; what they give only once is kept."""
        if self._kept is not None:
            return self._kept.of(weights)
        if self._masks is not None:
            sums = self._masked_sum(self._masks, weights)
            self._overhead_bytes = self._sum.overhead
        elif self._noise is not None:
            values = {client: flatten(self._reports[client].aggregated) for client in weights}
            sums = self._sum.sum_open(weights, values, self._layout())
        else:
            sums = weighted_sum(self._reports, weights)
        met = {} if self._statistics is None else {"statistics": self._statistics}
        sums = replace(sums, total={**sums.total, **met})
        if self._kept_sums is not None:
            self._keep(self._kept_sums, sums)
        return sums

    def each(self) -> Mapping[int, Report]:
        """Return the last step's reports whole."""
        return self._reports

    def overhead_bytes(self) -> tuple[int, int]:
        """Return the bytes of masks, keys and shares, or of sealing models and passing them on."""
        return self._overhead_bytes

    def settle(self, accepted: Collection[int], tag: Tag) -> None:
        """Log where a chain's model is; apart from that, the next task tells a site what was accepted."""
        self._reports = {}
        if self._relay is not None:
            self._relay.settle(accepted)

    def client_states(self) -> Mapping[int, tuple[Tag, Tensors]]:
        """Return nothing: client state stays at its site."""
        return {}

    def restore(self, client_states: Mapping[int, tuple[Tag, Tensors]]) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """End the connection."""
        self._site_registry.transport.close()

    def _masked_sum(self, masks: Masks, weights: Mapping[int, float]) -> Sums:
        """Let sites that reported add up under masks; one that fails on the way is left out of the sum."""

        def connect(task: Sum) -> Carry:
            about = to_json({"job": task.job.hex(), "members": task.members, "magnitudes": task.magnitudes})
            ask = by_client(self._names, partial(self._ask, tasks=self._tasks, fields=1))
            return lambda step, messages: ask(
                {c: build_request("sum", step.encode(), about, m) for c, m in messages.items()}
            )

        def refuse(client: int, error: RefusedError) -> None:
            self._leave_out(client, self._tasks, str(error))

        return self._sum.sum_masked(weights, self._layout(), masks.step(self._tasks), connect, refuse)

    def _keep(self, kept_sums: KeptSums, sums: Sums) -> None:
        """Store a sum before it is applied: its sites give it once."""
        opened, first = [report.open() for report in self._reports.values()], self._tasks[0]
        if not kept_sums.keep(self._tasks, KeptSum(opened, sums, self._overhead_bytes)):
            why = "the sums of this round are too large to be kept; after a crash, its steps make no update"
            self._note("fallback", what="sum of a step", round=first.round + 1, step=first.step, used="none", why=why)

    def _layout(self) -> Tensors:
        """Return what every site of the step sends, without its numbers."""
        shapes, dtype = expected_shapes(self._plan, self._tasks[0].kind) or {}, self._plan.local.dtype
        if self._masks is not None and self._noise is None and not self._plan.reads_envelope:
            shapes[FIGURES] = (2,)
        return {name: torch.empty(shape, dtype=dtype, device="meta") for name, shape in shapes.items()}

    def _enough(self, step: Step, tasks: Sequence[Task]) -> int | None:
        """Return how many reports end the wait for a round's training; None: all of them."""
        if not step.combine or step.source == "peer" or step.sink == "peer":
            return None
        return self._plan.system.count_to_wait_for(
            len(tasks), per_round(self._plan.clients_per_round, len(self._names))
        )

    def _send(
        self, tasks: Sequence[Task], request: Callable[[Task], bytes], enough: int | None = None
    ) -> dict[str, tuple[bytes, ...]]:
        """Send tasks, as they are written; a site that lost the state of which a task speaks goes on without one."""
        lost: list[Task] = []

        def remedy(name: str, error: FedstrataError) -> bool:
            if isinstance(error, StatelessError):
                lost.extend(task for task in tasks if self._names[task.client] == name)
            return isinstance(error, StatelessError)

        said = self._ask({self._names[t.client]: request(t) for t in tasks}, tasks, 2, enough, remedy)
        for task in lost:
            first = task.round + 1, task.step
            self._note("state_lost", round=first[0], step=first[1], site=self._names[task.client], client=task.client)
        anew = {self._names[t.client]: request(replace(t, accepted=None, durable=None)) for t in lost}
        return said | self._ask(anew, tasks)

    def _invite(self, tasks: Sequence[Task]) -> tuple[list[Task], bytes]:
        """Let the sites of a step say hello, so that they can meet under masks; too few do not meet."""
        assert self._masks is not None

        ask = by_client(self._names, partial(self._ask, tasks=tasks, fields=1))

        def refuse(client: int, error: RefusedError) -> None:
            self._leave_out(client, tasks, str(error))

        names = self._masks.names
        here, invitation = invite_sites(
            ask, names, [t.client for t in tasks], self._masks.credentials.key_directory(names), refuse
        )
        if len(here) >= FEWEST:
            return [task for task in tasks if task.client in here], invitation
        first = tasks[0]
        self._note("dropped", round=first.round + 1, step=first.step, clients=here, why=TOO_FEW)
        return [], b""

    def _ask(
        self,
        requests: Mapping[str, bytes],
        tasks: Sequence[Task],
        fields: int = 2,
        enough: int | None = None,
        remedy: Callable[[str, FedstrataError], bool] = lambda *_: False,
    ) -> dict[str, tuple[bytes, ...]]:
        """Ask, and give the replies that are ones; a refusal is an event here, silence is one of the loop."""
        said = {}
        for name, told in self._site_registry.ask(requests, fields, enough).items():
            if isinstance(told, tuple):
                said[name] = told
            elif not remedy(name, told):
                self._leave_out(self._names.index(name), tasks, str(told))
        return said

    def _compute_together(self, tasks: Sequence[Task], by: By) -> dict[str, tuple[bytes, ...]]:
        """Let sites compute together; where one leaves in the middle, the others begin anew without it.

        Under masks they do not: two sums over the same numbers that differ by one site would show what it brought.
        """
        if self._masks is not None:
            there, invitation = self._invite(tasks)
            said = self._send(there, _plainly(by.encode(), invitation))
            return self._all_reduce(said, by, tasks)[0] if len(said) == len(there) else {}
        there = list(tasks)
        while there:
            said = self._send(there, _plainly(by.encode()))
            done, stay = self._all_reduce(said, by, tasks)
            if len(stay) == len(said):
                return done
            there = [task for task in there if self._names[task.client] in stay]
        return {}

    def _all_reduce(
        self, said: dict[str, tuple[bytes, ...]], by: By, tasks: Sequence[Task]
    ) -> tuple[dict[str, tuple[bytes, ...]], set[str]]:
        """Average what sites bring to a meeting, as often as they meet, until they report; give also who stayed."""
        statistics, stay = Statistics(by), set(said)
        done = {name: told for name, told in said.items() if told[0] != MET}
        waiting = {name: told for name, told in said.items() if told[0] == MET}
        for _ in range(MOST_ALL_REDUCES):
            if not waiting:
                break
            brought, strange = read_all_reduce(
                {name: told[1] for name, told in sorted(waiting.items(), key=self._place)}, self._masks is not None
            )
            for name, why in strange.items():
                self._leave_out(self._names.index(name), tasks, why)
            if strange:
                return {}, stay - strange.keys()
            values = [one.values for one in brought.values()]
            if self._masks is None:
                total, count = sum_in_order(dict(enumerate(values))), sum(one.count for one in brought.values())
            else:  # of how many values, comes masked behind them
                summed = add_tensors(values, torch.float64)
                total, count = summed[:-1].to(self._plan.local.dtype), float(summed[-1])
            average, count = statistics.average(next(iter(brought.values())).what, total, count, len(values))
            told = pack({"count": count}, {"average": average})
            said = self._ask({name: build_request("met", told) for name in waiting}, tasks)
            if len(said) < len(waiting):  # the others cannot go on without it: their computation is lost
                return {}, (stay - waiting.keys()) | said.keys()
            done |= {name: reply for name, reply in said.items() if reply[0] != MET}
            waiting = {name: reply for name, reply in said.items() if reply[0] == MET}
        try:
            if waiting:
                raise RefusedError(f"it meets others more than {MOST_ALL_REDUCES} times")
            self._statistics = statistics.table(self._plan.space)
        except (RefusedError, KeyError, ValueError, RuntimeError) as error:  # what was brought is of no norm
            wrong = waiting or said
            why = str(error) if isinstance(error, RefusedError) else "what it brings to meetings is of no norm"
            for name in wrong:
                self._leave_out(self._names.index(name), tasks, why)
            return {}, stay - wrong.keys()
        return done, stay

    def _limit_samples(self, report: Report, task: Task) -> Report:
        """Return a report that stands for no more samples than its site said it has, or a batch can be asked for."""
        name = self._names[report.client]
        most, known = self._site_registry.facts[name].samples, "it introduced itself with so many"
        if task.kind == "gradient":
            most, known = self._plan.local.batch_size, "a batch has so many"
        if report.samples <= most:
            return report
        about = {"sites": [name], "said": [report.samples], "to": most, "why": known}
        self._note("samples_overstated", round=task.round + 1, step=task.step, clients=[report.client], **about)
        return replace(report, samples=most)

    def _place(self, item: tuple[str, object]) -> int:
        return self._names.index(item[0])

    def _leave_out(self, client: int, tasks: Sequence[Task], why: str) -> None:
        first = tasks[0]
        self._note(
            "site_refused", round=first.round + 1, step=first.step, site=self._names[client], client=client, why=why
        )


def _plainly(by: bytes, invitation: bytes = b"") -> Callable[[Task], bytes]:
    """Say how a task is written; `by` is how clients meet, and the invitation what they meet with under masks."""
    return lambda task: build_request("task", pack_task(task), by, invitation)
