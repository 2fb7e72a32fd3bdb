"""A lane: one resident model replica that visits one client after another.

`Lane.step` is the whole local step of a composed method, over static buffers: eager engines call it, a capturing
engine records it once and replays it. Its only argument is the batch width, which the host knows beforehand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedstrata.clientside import Batch, Buffers, Client, Done, Gradient, Local, Order, Visit
from fedstrata.counter import Clock, sample_keys
from fedstrata.look import Look, under
from fedstrata.messages import Report, Task, Tensors, Value, prefixed, tensor_bytes, value_bytes
from fedstrata.network import Network, key_dropout
from fedstrata.norms import Meeting, Norms, Tally
from fedstrata.rng import torch_seeded
from fedstrata.serverside import Step
from fedstrata.space import Space

RING = 64  # batches filled ahead of the step


class Lane:
    """The client side of a plan, built once and reused for every client.

    `pad` fills every batch up to the ring's width with samples of weight 0, as capture needs, and lets batch norms
    leave them out; eager lanes take each batch at its own width.
    """

    def __init__(
        self,
        local: Local,
        x: Tensor,
        y: Tensor,
        largest: int,
        device: str = "cpu",
        pad: bool = False,
        fastest: float = 1.0,
    ):
        self.local, self.pad = local, pad
        module = local.build().to(device, local.dtype)
        self.space = space = Space.of(module, local.head)
        width = local.sampler.width(local.batch_size, max(largest, 1), fastest)

        def zeros(*shape: int, dtype: torch.dtype | None = None) -> Tensor:
            return torch.zeros(shape, dtype=dtype or local.dtype, device=device)

        self.buf = buf = Buffers(
            x=x.to(device, local.dtype) if x.is_floating_point() else x.to(device),
            y=y.to(device),
            w=zeros(space.P),
            g=zeros(space.P),
            b=zeros(space.Q),
            w0=zeros(space.P),
            b0=zeros(space.Q),
            index=zeros(RING, width, dtype=torch.int64),
            weight=zeros(RING, width),
            keys=zeros(RING, width, dtype=torch.int64),
            rate=zeros(RING),
            t=zeros(1, dtype=torch.int64),
            loss=zeros(),
            head=space.head,
            at=lambda params, buffers, x: under(self.network, self.space, params, buffers, x),
        )
        self.own = {
            name: {slot: zeros(*s.shape, dtype=s.dtype) for slot, s in part.lane(space).items()}
            for name, part in local.chain.items()
        }
        self._first_buffers = space.flatten(dict(module.named_buffers()), local.dtype, params=False).buffers.to(device)
        space.bind(module, buf.w, buf.b, buf.g)
        self._clock = Clock(buf.keys[0])
        self._draws = key_dropout(module, self._clock) or bool(local.inputs.crop or local.inputs.flip)
        self.network = Network(module, local.head)
        self._params = [p for p in module.parameters() if p.requires_grad]
        self._gradients = [p.of(buf.g) for p in space.params]
        self.norms = Norms.of(module)
        self._counters = [(b, b.clone()) for b in module.buffers() if not b.is_floating_point()]

    # ---- a visit, on the host -------------------------------------------------------------------------------

    def visit(
        self, client: Client, task: Task, keep: Tensors, meeting: Meeting | None = None
    ) -> tuple[Report, Tensors]:
        """Do one task for one client: its report, and its state if the server accepts the report.

        Clients of a step that is taken together meet while they compute: see `norms.py`.
        """
        visit = self.visiting(client, task, keep, meeting)
        self._load(task.down)
        where = {"round": task.round, "step": task.turn, "client": client.id}
        # Whatever a user's module draws for itself is tied to the visit too, not to the lane's past.
        # Clients that meet run side by side, and share torch's one generator: their engine seeds it for all.
        seed = self.local.streams.torch_seed("module", **where)
        with torch_seeded(seed) if meeting is None else nullcontext():
            if task.kind == "train":
                report, new = self._train(visit, meeting)
            else:
                done = self.local.programs[task.kind](visit)
                report, new = _report(visit, done), {**keep, **_copies(done.keep)} if done.keep else keep
        report = replace(report, work=report.work + self._look.work)
        if meeting is not None:
            report = replace(report, nbytes=report.nbytes + meeting.up, received=meeting.down)
        return report, new

    def visiting(self, client: Client, task: Task, keep: Tensors, meeting: Meeting | None = None) -> Visit:
        """Give what a client's parts may look at."""
        local = self.local
        where = {"round": task.round, "step": task.turn, "client": client.id}
        sees = "params" in task.down
        self._look = look = Look(self.network, self.space, local.inputs, self.buf, client)
        return Visit(
            client=client,
            task=task,
            keep=keep,
            down=task.down,
            epochs=int(task.config.get("epochs", local.epochs)),  # type: ignore[arg-type]
            batch_size=local.batch_size,
            rate=local.rate.at(task.round, task.part),
            rng=lambda purpose, **other: local.streams(purpose, **(where | other)),
            peek=look.peek if sees else _no_model,
            gradient=partial(self._gradient, client, self._key(task, client.id), meeting) if sees else _no_model,
            spread=look.variance if sees else _no_model,
            rounds=local.rounds,
        )

    def joint_keys(self, step: Step, tasks: Sequence[Task]) -> np.ndarray:
        """Give every sample of a joint step the key it would have in its own visit."""
        joint = step.joint
        assert joint is not None
        runs = joint.runs
        if not self._draws:
            return np.zeros(int(runs.sum()), dtype=np.int64)
        nth = np.arange(int(runs.sum())) - np.repeat(np.cumsum(runs) - runs, runs)  # of each sample inside its visit
        visits = [(turn, tasks[who]) for turn, who in zip(joint.turns.tolist(), joint.who.tolist(), strict=True)]
        own = [self._key(replace(task, turn=turn), task.client) for turn, task in visits]
        keys = np.repeat(np.array(own, dtype=np.uint64), runs)
        steps, places = (nth, np.zeros_like(nth)) if step.kind == "train" else (np.zeros_like(nth), nth)
        return sample_keys(keys, steps, places)

    def jointly(self, task: Task, rows: Sequence[np.ndarray], rates: np.ndarray, keys: np.ndarray) -> Report:
        """Train on batches of anybody's samples, as one machine that holds them all would; `keys` has one a sample."""
        everything = np.arange(len(self.buf.y))
        client = Client(-1, everything, everything[:0], 0)
        self._load(task.down)
        self.norms.tally = tally = Tally()
        with torch_seeded(self.local.streams.torch_seed("module", round=task.round, step=task.turn)):
            visit = self.visiting(client, task, {})
            report, _ = self._trained(visit, Order((), 1), rows, rates, keys)
        self.norms.tally = None
        return replace(report, nbytes=tally.up // max(len(rows), 1), received=tally.down // max(len(rows), 1))

    def _train(self, visit: Visit, meeting: Meeting | None) -> tuple[Report, Tensors]:
        order = self.local.sampler.plan(visit)
        batches = self._batches(order)
        rates = np.full(len(batches), visit.rate)
        key, sizes = self._key(visit.task, visit.client.id), np.array([len(b) for b in batches], dtype=np.int64)
        step = np.repeat(np.arange(len(sizes)), sizes)
        keys = sample_keys(key, step, np.arange(len(step)) - np.repeat(np.cumsum(sizes) - sizes, sizes))
        return self._trained(visit, order, [visit.client.rows[b] for b in batches], rates, keys, meeting)

    def _trained(
        self,
        visit: Visit,
        order: Order,
        batches: Sequence[np.ndarray],
        rates: np.ndarray,
        keys: np.ndarray,
        meeting: Meeting | None = None,
    ) -> tuple[Report, Tensors]:
        buf, chain = self.buf, self.local.chain
        visit = replace(
            visit,
            keep={**self._first_keep(), **visit.keep},
            planned=max(map(len, batches), default=0),
            steps=len(batches),
            rate_sum=float(rates.sum()),
        )
        for name, part in chain.items():
            part.fill(self.own[name], buf, visit.scoped(name))

        self._run(batches, rates, keys, meeting)

        update = buf.w - buf.w0
        common = {"update": update} | ({"buffers": buf.b - buf.b0} if self.space.Q else {})
        ends = {name: part.finish(self.own[name], buf, visit.scoped(name)) for name, part in chain.items()}
        done = Done(
            meta=_merged([order.meta, *(end.meta for end in ends.values())]),
            summed=common | _owned({name: end.summed for name, end in ends.items()}),
            shown=_owned({name: end.shown for name, end in ends.items()}),
            keep=_copies(order.keep) | _owned({name: end.keep for name, end in ends.items()}),
            samples=order.samples,
            loss=buf.loss / max(sum(map(len, batches)), 1),
            work=sum(map(len, batches)),
        )
        return _report(visit, done), {**visit.keep, **done.keep}

    def _gradient(self, client: Client, key: int, meeting: Meeting | None, positions: np.ndarray) -> Gradient:
        """Give the gradient of a sum of losses under the received model."""
        self._start()
        self._fill_ring([client.rows[positions]], np.zeros(1), sample_keys(key, 0, np.arange(len(positions))))
        self.buf.weight.ceil_()  # every sample counts whole
        self.norms.meeting = meeting
        self.norms.train(meeting is not None or len(positions) > 1)
        self.backward(self.buf.index.shape[1] if self.pad else len(positions))
        self.norms.meeting = None
        self._look.work += len(positions)
        return Gradient(self.buf.g.clone(), self.buf.loss / max(len(positions), 1))

    def _key(self, task: Task, client: int) -> int:
        """Give what a visit's random bits are made of, if the model or its inputs draw any."""
        where = {"round": task.round, "step": task.turn, "client": client}
        return self.local.streams.torch_seed("dropout", **where) if self._draws else 0

    def _batches(self, order: Order) -> list[np.ndarray]:
        size = order.batch_size
        epochs = [[e[i : i + size] for i in range(0, len(e), size)] for e in order.epochs]
        if self.norms:  # one sample has no variance: leave it out, unless it is all there is
            epochs = [[b for b in epoch if len(b) > 1] or epoch for epoch in epochs]
        return [batch for epoch in epochs for batch in epoch]

    def _first_keep(self) -> Tensors:
        return {
            f"{name}/{slot}": torch.zeros(s.shape, dtype=s.dtype or self.local.dtype)
            for name, part in self.local.chain.items()
            for slot, s in part.keep(self.space).items()
        }

    def _load(self, down: Tensors) -> None:
        if "params" in down:
            self.buf.w0.copy_(down["params"])
            self.buf.w.copy_(down["params"])
        buffers = down.get("buffers", self._first_buffers)
        self.buf.b0.copy_(buffers)
        self.buf.b.copy_(buffers)
        for counter, start in self._counters:
            counter.copy_(start)

    def _start(self) -> None:
        self.buf.t.zero_()
        self.buf.loss.zero_()
        self.network.train()

    def _run(self, batches: Sequence[np.ndarray], rates: np.ndarray, keys: np.ndarray, meeting: Meeting | None) -> None:
        self._start()
        self.norms.meeting = meeting
        done = 0
        for start in range(0, len(batches), RING):
            ring = batches[start : start + RING]
            self._fill_ring(ring, rates[start : start + RING], keys[done:])
            done += sum(map(len, ring))
            for batch in ring:
                self.norms.train(len(batch) > 1 or self.norms.meeting is not None)
                self.step(self.buf.index.shape[1] if self.pad else len(batch))
                self.norms.meeting = None  # local models go separate ways after their first step
        self.norms.meeting = None

    def _fill_ring(self, batches: Sequence[np.ndarray], rates: np.ndarray, keys: np.ndarray) -> None:
        sizes = np.array([len(rows) for rows in batches])
        slot = np.repeat(np.arange(len(sizes)), sizes)
        place = np.arange(len(slot)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        index = np.zeros(self.buf.index.shape, dtype=np.int64)
        index[: len(batches)] = [[rows[0]] for rows in batches]  # padding repeats a sample: no stranger's may overflow
        weight = np.zeros(index.shape)
        index[slot, place] = np.concatenate(batches)
        weight[slot, place] = 1.0 / sizes[slot]
        self.buf.index.copy_(torch.from_numpy(index))
        self.buf.weight.copy_(torch.from_numpy(weight))
        self.buf.rate[: len(rates)].copy_(torch.from_numpy(rates))
        if self._draws:
            own = np.zeros(index.shape, dtype=np.int64)
            own[slot, place] = keys[: len(slot)]
            self.buf.keys.copy_(torch.from_numpy(own))

    # ---- the local step: captured once, replayed for every batch of every client -----------------------------

    def step(self, width: int) -> None:
        """Take one step on the next batch of the ring."""
        buf = self.buf
        self.backward(width)
        with torch.no_grad():
            rate = buf.rate.index_select(0, buf.t % RING)
            for name, part in self.local.chain.items():
                part.grad(self.own[name], buf, rate)
            buf.t.add_(1)

    def backward(self, width: int) -> None:
        """Compute the gradient of the next batch of the ring."""
        buf, parts = self.buf, self.local.chain
        slot = buf.t % RING
        rows = buf.index.index_select(0, slot)[0, :width]
        weight = buf.weight.index_select(0, slot)[0, :width]
        if self._draws:
            self._clock.keys, self._clock.uses = buf.keys.index_select(0, slot)[0, :width], 0
        if self.pad and self.norms:
            self.norms.mask = (weight > 0).to(weight.dtype)
        x = self.local.inputs(buf.x.index_select(0, rows), buf.w.dtype)
        x, y = self.local.inputs.augmented(x, self._clock), buf.y.index_select(0, rows)

        features, logits = self.network(x)
        for name, part in parts.items():
            logits = part.logits(self.own[name], buf, logits)
        each = cross_entropy(logits, y, reduction="none")
        batch = Batch(x, y, weight, features, logits, each)
        loss = (each * weight).sum()
        for name, part in parts.items():
            extra = part.loss(self.own[name], buf, batch)
            if extra is not None:
                loss = loss + extra
        # Cheaper than `backward`, which adds to a gradient that must have been set to zero before.
        gradients = torch.autograd.grad(loss, self._params, allow_unused=True, materialize_grads=True)

        with torch.no_grad():
            torch._foreach_copy_(self._gradients, gradients)
            buf.loss.add_((each * (weight > 0)).sum())
            for name, part in parts.items():
                part.observe(self.own[name], buf, batch)


def _no_model(*_: object) -> Any:
    raise ValueError("this step sends no model to look with; use Step(model=True)")


def _report(visit: Visit, done: Done) -> Report:
    return Report(
        client=visit.client.id,
        samples=visit.client.samples if done.samples is None else done.samples,
        steps=visit.steps,
        loss=done.loss,
        drift=done.summed["update"].norm() if "update" in done.summed else 0.0,
        meta=done.meta,
        summed=done.summed,
        shown=done.shown,
        work=done.work,
        finite=_all_finite([*done.summed.values(), *done.shown.values()], done.loss),
        nbytes=tensor_bytes(done.summed) + tensor_bytes(done.shown) + value_bytes(done.meta),
    )


def _all_finite(tensors: Sequence[Tensor], loss: Tensor | float) -> Tensor:
    checks = [t.isfinite().all() for t in [*tensors, torch.as_tensor(loss)]]
    return torch.stack([c.to(checks[0].device) for c in checks]).all()


def _merged(metas: Sequence[Mapping[str, Value | Tensor]]) -> dict[str, Value | Tensor]:
    merged: dict[str, Value | Tensor] = {}
    for meta in metas:
        if twice := merged.keys() & meta.keys():
            raise ValueError(f"two parts report {sorted(twice)}; give one of them another name")
        merged |= {k: v.detach().clone() if isinstance(v, Tensor) else v for k, v in meta.items()}
    return merged


def _owned(of_parts: Mapping[str, Tensors]) -> dict[str, Tensor]:
    """Put what parts gave back under their names."""
    return {k: v for name, tensors in of_parts.items() for k, v in prefixed(_copies(tensors), name).items()}


def _copies(tensors: Tensors) -> dict[str, Tensor]:
    """Copy out at once: a lane's buffers serve the next client."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}
