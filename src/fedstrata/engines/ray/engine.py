"""The engine on a cluster: tasks go to the workers that own their clients, and one sum comes back from each.

A step is two exchanges. First the model goes once into the object store, workers run their clients' tasks, and the
open halves of the reports come back, with new client state. Then weights go out, every worker sums what its clients
sent, on a grid on which sums are exact (`grid.py`), and the workers of a node pass their sums to one of them: so a node
sends one sum, however many clients and workers it has.

A client's state stays with the worker that trained it last. The server has a copy, which the checkpoint needs anyway:
from that, the tasks of a worker that was lost are run again elsewhere. A client update is a pure function, so the
result is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch

from fedstrata.core.engine import AllReduceSum, ClientStates
from fedstrata.core.errors import ClientError, FedstrataError
from fedstrata.core.messages import Report, Sums, Tag, Task, Tensors, fast_replace, read, weighted_sum
from fedstrata.core.steps import Step
from fedstrata.engines.local.client_states import ClientStateStore
from fedstrata.engines.local.engine import InProcessPool
from fedstrata.engines.ray.cluster import Cluster
from fedstrata.engines.ray.grid import Units, add_parts, choose_units
from fedstrata.engines.ray.members import ClusterWorkers
from fedstrata.engines.ray.packing import Packed, pack, packed_bytes, unpack
from fedstrata.engines.ray.placement import choose_home, deal
from fedstrata.engines.ray.samples import SamplePlacement
from fedstrata.engines.ray.under_way import StepUnderWay
from fedstrata.engines.ray.worker import TaskDone, WorkDone, WorkOrder

LOSSES = 3  # of workers in a row, without an answer in between, after which a run gives up


class RayEngine:
    """Deals tasks to the members of a cluster, adds up what they sum, and knows all client state."""

    can_fuse = True

    def __init__(
        self,
        cluster: Cluster,
        members: ClusterWorkers,
        samples: SamplePlacement,
        here: Callable[[], InProcessPool],
        remark: Callable[[str], None],
        device: str = "cpu",
        client_state: Literal["memory", "disk"] = "memory",
    ):
        self._cluster, self._members, self._samples, self._remark = cluster, members, samples, remark
        self.device, self._on_disk, self._make_here = device, client_state == "disk", here
        self._store = ClientStateStore()
        self._on_file: ClientStates = {}  # read when it is needed
        self._holder: dict[int, str] = {}  # by client: the worker that has its state
        self._now: StepUnderWay | None = None
        self._pool_here: InProcessPool | None = None
        self._home: str | None = None  # where clients compute together
        self.all_reduce_sum: AllReduceSum | None = None
        self.bytes_stored = 0  # through the object store, so far
        self._place()

    @property
    def workers(self) -> dict[str, int]:
        """The process of each worker, by its name."""
        return {name: member.pid for name, member in sorted(self._members.present.items())}

    def ask(self, step: Step, tasks: Sequence[Task]) -> list[Report]:
        """Run tasks; give the open half of every report."""
        if tasks[0].step == 0:
            self._look_around()
        self._now = now = StepUnderWay(step, {task.client: task for task in tasks}, self._put(pack(tasks[0].down)))
        if step.together is not None and self.all_reduce_sum is not None:
            return self._meet_here(now, list(tasks))
        self._run(now, list(now.tasks))
        return [self._open(now.told[task.client]) for task in tasks]

    def collect(self, weights: Mapping[int, float]) -> Sums:
        """Sum what the last step's clients sent; in any order, because the sums are exact."""
        now = self._now
        assert now is not None
        if now.outcome is not None:
            return Sums(now.outcome, 1.0, len(weights), fused=True)
        if now.here is not None:
            sums = weighted_sum(now.here, weights)
        else:
            peaks = {client: now.told[client].peaks for client in weights}
            units = choose_units(peaks, weights)
            parts = self._sum_by_node(now, weights, units)
            dtypes = {n: getattr(torch, kind) for client in weights for n, kind in now.told[client].dtypes.items()}
            self.bytes_stored += sum(map(packed_bytes, parts))
            total = add_parts((unpack(part, copy=False) for part in parts), units, dtypes)
            sums = Sums(total, float(sum(weights.values())), len(weights), shares=dict(weights))
        if now.statistics is None:
            return sums
        return replace(sums, total={**sums.total, "statistics": now.statistics})

    def each(self) -> Mapping[int, Report]:
        """Return the last step's reports whole."""
        now = self._now
        if now is None:
            return {}
        if now.here is not None:
            return now.here
        whole: dict[int, Report] = {}
        for part in self._from_all(now, now.told, lambda actor: actor.each.remote()):
            self.bytes_stored += sum(map(packed_bytes, part.values()))
            for client, aggregated in part.items():
                whole[client] = fast_replace(self._open(now.told[client]), aggregated=unpack(aggregated))
        return {client: whole[client] for client in now.tasks if client in whole}

    def overhead_bytes(self) -> tuple[int, int]:
        """Return nothing: what travels between machines of one cluster is no federated traffic."""
        return 0, 0

    def settle(self, accepted: Collection[int], tag: Tag) -> None:
        """Commit the state of the clients whose report counted; workers are told with their next order."""
        now, self._now = self._now, None
        if now is None:
            return
        for client in accepted:
            if (state := now.told[client].client_state) is None:
                continue
            self._store.put(client, tag, unpack(state))
            before, worker = self._holder.get(client), now.worker.get(client)
            if before in self._members.present and before != worker:
                self._members.present[before].moved_away.append(client)
            self._holder.pop(client, None)
            if worker in self._members.present:
                self._holder[client] = worker
                self._members.present[worker].committed.append(client)

    def client_states(self) -> ClientStates:
        """Return the state of every client that has any, but for what a checkpoint holds already."""
        return self._store.states

    def restore(self, client_states: ClientStates) -> None:
        """Take client state back from a checkpoint."""
        self._store.replace_all({} if self._on_disk else client_states)
        if self._on_disk:  # as it was given to the checkpoint: workers have it still
            self._on_file = client_states
        else:
            self._holder = {}

    def close(self) -> None:
        """End the workers, and the cluster if it was started for this run."""
        self._now = None
        self._members.close()
        self._cluster.close()

    # ---- tasks to workers

    def _run(self, now: StepUnderWay, clients: Sequence[int]) -> None:
        """Have these clients' tasks run; and again, elsewhere, where a worker is lost."""
        fruitless = 0
        while clients:
            refs, dealt = {}, self._deal(now, clients)
            for name, own in dealt.items():
                now.worker |= dict.fromkeys(own, name)
                refs[name] = self._send(now, name, own)
            answers, lost = self._members.gather(refs)
            for done in answers.values():
                self._take(now, done)
            fruitless = 0 if answers else fruitless + 1
            if fruitless == LOSSES:
                raise FedstrataError(
                    f"workers were lost {LOSSES} times in a row while they trained clients {sorted(clients)[:10]}: "
                    f"{next(iter(lost.values()))}"
                )
            clients = self._lose(now, lost)

    def _deal(self, now: StepUnderWay, clients: Sequence[int]) -> dict[str, list[int]]:
        """Say who trains which client."""
        if now.step.fused is not None or now.step.together is not None:
            return {self._settle_home(): list(clients)}
        by_node, sizes = self._members.by_node, self._samples.sizes
        nodes = [[by_node[node] for node in self._samples.nodes_of(client)] for client in clients]
        homes = [choose_home(client, own[0]) for client, own in zip(clients, nodes, strict=True)]
        candidates = [[name for workers in own for name in workers] for own in nodes]
        work = [float(sizes[client]) for client in clients]
        dealt: dict[str, list[int]] = {}
        for client, name in zip(clients, deal(work, homes, candidates, list(self._members.present)), strict=True):
            dealt.setdefault(name, []).append(client)
        return dealt

    def _send(self, now: StepUnderWay, name: str, clients: Sequence[int]) -> Any:
        """Give a worker its order: tasks, and the state of clients that it does not have."""
        member = self._members.present[name]
        states = {client: pack(own) for client in clients if (own := self._missing_state(client, name)) is not None}
        tasks = [fast_replace(now.tasks[client], down={}) for client in clients]
        order = WorkOrder(now.tag, tasks, states, tuple(member.committed), tuple(member.moved_away))
        member.committed.clear()
        member.moved_away.clear()
        self.bytes_stored += sum(map(packed_bytes, states.values()))
        if now.step.fused is not None or now.step.together is not None:
            return member.actor.work_together.remote(now.down, order, replace(now.step, meanwhile=None))
        return member.actor.work.remote(now.down, order)

    def _missing_state(self, client: int, worker: str) -> Tensors | None:
        if self._holder.get(client) == worker:
            return None
        place = self._store.states if client in self._store.states else self._on_file
        return place[client][1] if client in place else None

    def _take(self, now: StepUnderWay, done: WorkDone) -> None:
        """Read a worker's answer."""
        for remark in done.remarks:
            self._remark(remark)
        if done.failed is not None:
            raise ClientError(done.failed.client, done.failed.trace)
        for told in done.tasks:
            now.told[told.report.client] = told
            self.bytes_stored += packed_bytes(told.client_state or {}) + packed_bytes(told.open_tensors)
        common = unpack(done.common)
        if now.step.fused is not None:
            now.outcome = common
        elif now.step.together is not None:
            now.statistics = common.get("statistics")

    def _from_all(self, now: StepUnderWay, clients: Iterable[int], call: Callable[[Any], Any]) -> list[Any]:
        """Ask every worker that has reports of these clients; what a lost one had is run again first."""
        wanted = list(clients)
        while True:
            calls = {name: call(self._actor(name)) for name in now.owners(wanted)}
            answers, lost = self._members.gather(calls)
            if not lost:
                return list(answers.values())
            self._run(now, self._lose(now, lost))

    def _sum_by_node(self, now: StepUnderWay, weights: Mapping[int, float], units: Units) -> list[Packed]:
        """Return one sum of each node; what a lost worker had is run again first."""
        while True:
            own = {name: {client: weights[client] for client in mine} for name, mine in now.owners(weights).items()}
            beside: dict[str, Any] = {}
            sums: dict[str, Any] = {}
            for workers in self._members.by_node.values():
                busy = [name for name in workers if name in own]
                parts = {name: self._actor(name).collect.remote(own[name], units) for name in busy[:-1]}
                for last in busy[-1:]:  # to whom the others pass what they have summed; that stays on the node
                    sums[last] = self._actor(last).collect.remote(own[last], units, *parts.values())
                beside |= parts
            answers, failed = self._members.gather(sums)
            if not failed:
                return list(answers.values())
            beside |= {name: self._actor(name).__ray_ready__.remote() for name in failed}  # or did it only miss a part?
            _, lost = self._members.gather(beside)
            self._run(now, self._lose(now, lost or failed))

    def _actor(self, name: str) -> Any:
        return self._members.present[name].actor

    def _open(self, told: TaskDone) -> Report:
        return fast_replace(told.report, open_tensors=unpack(told.open_tensors))

    def _put(self, value: Any) -> Any:
        self.bytes_stored += packed_bytes(value)
        with self._cluster.storing():
            return self._cluster.ray.put(value)

    # ---- clients that compute together

    def _settle_home(self) -> str:
        """Return the worker that has everybody's samples; the one that has most gets the rest."""
        if self._home not in self._members.present:
            self._home = self._samples.best_home()
            self._samples.place_all_at(self._home)
        return self._home

    def _meet_here(self, now: StepUnderWay, tasks: list[Task]) -> list[Report]:
        """Let clients meet in this process, where the parties of the protocol are that adds up under masks."""
        assert self.all_reduce_sum is not None
        assert now.step.together is not None
        if self._pool_here is None:
            self._pool_here = self._make_here()
        states = {t.client: own for t in tasks if (own := self._missing_state(t.client, "")) is not None}
        answers, now.statistics = self._pool_here.lockstep(tasks, states, now.step.together, self.all_reduce_sum(tasks))
        reports = read([report for report, _ in answers])
        now.here = {report.client: report for report in reports}
        for report, (_, new) in zip(reports, answers, strict=True):
            now.told[report.client] = TaskDone(report.open(), {}, None if new is None else pack(new), {}, {})
        return [report.open() for report in reports]

    # ---- who is there

    def _look_around(self) -> None:
        """Before a round: let new nodes in, and notice those that are gone."""
        before = set(self._members.present)
        gone = self._members.refresh()
        if gone:
            nodes = sorted({f"{member.node.address} ({member.node.name[:8]})" for member in gone})
            self._remark(f"lost between rounds: node {', '.join(nodes)}; its clients go to others")
        joined = set(self._members.present) - before
        if joined:
            nodes = sorted({self._members.present[name].node.address for name in joined})
            self._remark(f"joined: {len(joined)} worker(s) on node {', '.join(nodes)}")
        if gone or joined:
            self._forget([member.name for member in gone])
            self._place()

    def _lose(self, now: StepUnderWay, lost: Mapping[str, str]) -> list[int]:
        """Strike lost workers off; return the clients whose tasks they had."""
        if not lost:
            return []
        clients = [client for client, name in now.worker.items() if name in lost]
        who, why = self._members.describe(lost), next(iter(lost.values()))
        self._remark(f"round {now.tag[0] + 1}: lost {who}; {len(clients)} of its tasks are run again elsewhere ({why})")
        for name in lost:
            self._members.lose(name)
        self._forget(lost)
        if not self._members.present:
            self._members.refresh()
            self._members.wait()
        self._place()
        for client in clients:
            now.worker.pop(client)
            now.told.pop(client, None)
        return clients

    def _forget(self, names: Collection[str]) -> None:
        """Let others have the state that lost workers had from the copy here."""
        self._holder = {client: name for client, name in self._holder.items() if name not in names}

    def _place(self) -> None:
        """See to it that every node has its clients' samples; workers that are lost meanwhile are struck off."""
        while lost := self._samples.place():
            self._remark(f"lost {self._members.describe(lost)} while samples were placed")
            for name in lost:
                self._members.lose(name)
            self._forget(lost)
            if not self._members.present:
                self._members.refresh()
                self._members.wait()
