"""A trainer: one resident model replica that serves one client after another.

`Trainer.step` is the whole local step of a composed method, over static buffers: eager engines call it, a capturing
engine records it once and replays it. Its arguments are the batch's width and whether it is full, which the host knows
beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedstrata.client.local_step import (
    Batches,
    BatchPlan,
    Ring,
    common,
    copy_tensors,
    copy_to_device,
    fill,
    finish,
    objective,
    observe,
    report,
    ring_for,
    update_weights,
)
from fedstrata.client.network import Network, key_dropout
from fedstrata.client.probe import Probe, evaluate_at
from fedstrata.core.batch_norm import AllReduce, Norms, Tally
from fedstrata.core.client_context import Buffers, ClientContext, Done, Gradient, ProbeWork
from fedstrata.core.client_parts import Client, ClientPlan, Order
from fedstrata.core.contract import broken, expect, expect_slots
from fedstrata.core.counter_rng import Clock, sample_keys
from fedstrata.core.errors import PartError
from fedstrata.core.flat_model import ParameterSpace
from fedstrata.core.messages import Report, Task, Tensors, fast_replace
from fedstrata.core.rng import seed_torch
from fedstrata.core.sampler import Sampler
from fedstrata.core.steps import Step


class Trainer:
    """The client side of a plan, built once and reused for every client.

    `pad` fills batches up with samples of weight 0, so that few widths are recorded, and lets batch norms leave them
    out; eager trainers take each batch at its own width.
    """

    def __init__(
        self,
        local: ClientPlan,
        x: Tensor,
        y: Tensor,
        largest: int,
        device: str = "cpu",
        pad: bool = False,
        fastest: float = 1.0,
    ):
        self.local, self.pad = local, pad
        module = local.build().to(device, local.dtype)
        self.space = space = ParameterSpace.of(module, local.head)
        width = local.sampler.width(local.batch_size, max(largest, 1), fastest)
        self._ring = ring = ring_for(device, width)

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
            index=zeros(ring, width, dtype=torch.int64),
            weight=zeros(ring, width),
            keys=zeros(ring, width, dtype=torch.int64),
            rate=zeros(ring),
            t=zeros(1, dtype=torch.int64),
            loss=zeros(),
            head=space.head,
            at=lambda params, buffers, x: evaluate_at(self.network, self.space, params, buffers, x),
        )
        self.own = {
            name: {
                slot: zeros(*s.shape, dtype=s.dtype)
                for slot, s in expect_slots(part, "declare_slots", part.declare_slots(space)).items()
            }
            for name, part in local.chain.items()
        }
        for part in local.chain.values():
            expect_slots(part, "declare_aggregated", part.declare_aggregated(space))
            expect_slots(part, "declare_client_state", part.declare_client_state(space))
        self._first_buffers = space.flatten(dict(module.named_buffers()), local.dtype, params=False).buffers.to(device)
        space.bind(module, buf.w, buf.b, buf.g)
        self.clock = Clock(buf.keys[0])
        self._augments = bool(local.inputs.crop or local.inputs.flip)
        self.draws = key_dropout(module, self.clock) or self._augments
        self._ready = local.inputs.keeps(buf.x)  # samples lie here as the network takes them
        self.network = Network(module, local.head, local.half)
        self.network.train()  # a user's module may have been given in eval mode
        self.params: list[Tensor] = [p for p in module.parameters() if p.requires_grad]
        self.gradients: list[Tensor] | None = [p.of(buf.g) for p in space.params]  # None: there are no such views
        self.norms, self.tally = Norms.of(module), Tally()
        self._normed = bool(self.norms)
        self.counters = [(b, b.clone()) for b in module.buffers() if not b.is_floating_point()]
        self.recorder: Callable[[int, bool], None] | None = None  # an engine may replay steps instead of taking them

    # ---- a client update, on the host -------------------------------------------------------------------------------

    def run_task(
        self, client: Client, task: Task, client_state: Tensors, all_reduce: AllReduce | None = None
    ) -> tuple[Report, Tensors]:
        """Do one task for one client: its report, and its state if the server accepts the report.

        Clients of a step that is taken together all-reduce while they compute: see `core/batch_norm.py`.
        """
        return self.submit(client, task, client_state, all_reduce)()

    def submit(
        self, client: Client, task: Task, client_state: Tensors, all_reduce: AllReduce | None = None
    ) -> Callable[[], tuple[Report, Tensors]]:
        """Submit the work of a client update, and give a function that collects what it gave."""
        context = self.make_context(client, task, client_state, all_reduce)
        self.load(task.down)
        where = {"round": task.round, "step": task.turn, "client": client.id}
        # Whatever a user's module draws for itself is tied to the client update too, not to the trainer's past.
        # Clients that meet run side by side, and share torch's one generator: their engine seeds it for all.
        seed = self.local.streams.torch_seed("module", **where)
        with seed_torch(seed) if all_reduce is None else nullcontext():
            if task.kind == "train":
                return partial(self._end, self._train(self.plan_batches(context), all_reduce), all_reduce)
            done = self._run_program(task.kind, context)
            told = (
                report(context, done),
                {**client_state, **copy_tensors(done.client_state)} if done.client_state else client_state,
            )
            return partial(self._end, lambda: told, all_reduce)

    def _run_program(self, kind: str, context: ClientContext) -> Done:
        if (program := self.local.programs.get(kind)) is None:
            known = ", ".join(f'"{name}"' for name in ("train", *sorted(self.local.programs)))
            raise PartError(
                f'no part has a program "{kind}"; a step\'s kind is {known}, or what a part declares in `programs`'
            )
        allowed = "Done(metrics=..., ...): what the client tells, and keeps"
        return expect(f'the program "{kind}"', getattr(program, "__name__", kind), program(context), Done, allowed)

    def _end(
        self, collect: Callable[[], tuple[Report, Tensors]], all_reduce: AllReduce | None
    ) -> tuple[Report, Tensors]:
        told, new = collect()
        if all_reduce is not None:
            told = fast_replace(told, nbytes=told.nbytes + all_reduce.up, received=all_reduce.down)
        return told, new

    def make_context(
        self, client: Client, task: Task, client_state: Tensors, all_reduce: AllReduce | None = None
    ) -> ClientContext:
        """Return what a client's parts may look at."""
        local = self.local
        where = {"round": task.round, "step": task.turn, "client": client.id}
        sees, work = "params" in task.down, ProbeWork()

        @cache
        def probe() -> Probe:  # few methods look before they train
            return Probe(self.network, self.space, local.inputs, self.buf, client, work)

        return ClientContext(
            client=client,
            task=task,
            client_state=client_state,
            down=task.down,
            epochs=int(task.config.get("epochs", local.epochs)),  # type: ignore[arg-type]
            batch_size=local.batch_size,
            rate=local.rate.at(task.round, task.part),
            rng=lambda purpose, **other: local.streams(purpose, **(where | other)),
            score_samples=(lambda positions=None: probe().score_samples(positions)) if sees else _no_model,
            gradient=partial(self._gradient, client, self._key(task, client.id), all_reduce, work)
            if sees
            else _no_model,
            sample_variance=(lambda of, positions: probe().variance(of, positions)) if sees else _no_model,
            probe_work=work,
            rounds=local.rounds,
        )

    def fused_keys(self, step: Step, tasks: Sequence[Task]) -> np.ndarray | None:
        """Give every sample of a fused step the key it would have in its own client update."""
        fused = step.fused
        assert fused is not None
        runs = fused.runs
        if not self.draws:
            return None
        nth = np.arange(int(runs.sum())) - np.repeat(
            np.cumsum(runs) - runs, runs
        )  # of each sample inside its client update
        client_updates = [
            (turn, tasks[who]) for turn, who in zip(fused.turns.tolist(), fused.who.tolist(), strict=True)
        ]
        own = [self._key(fast_replace(task, turn=turn), task.client) for turn, task in client_updates]
        keys = np.repeat(np.array(own, dtype=np.uint64), runs)
        steps, places = (nth, np.zeros_like(nth)) if step.kind == "train" else (np.zeros_like(nth), nth)
        return sample_keys(keys, steps, places)

    def train_fused(self, task: Task, batches: Batches) -> Report:
        """Train on batches of anybody's samples, as one machine that holds them all would."""
        everything = np.arange(len(self.buf.y))
        client = Client(-1, everything, everything[:0], 0)
        self.load(task.down)
        self.norms.tally = self.tally
        with seed_torch(self.local.streams.torch_seed("module", round=task.round, step=task.turn)):
            context = self.make_context(client, task, {})
            report, _ = self._train(BatchPlan(context, Order((), 1), batches))()
        self.norms.tally = None
        up, down = self.tally.of_a_batch if len(batches) else (0, 0)
        return fast_replace(report, nbytes=up, received=down)

    def plan_batches(self, context: ClientContext) -> BatchPlan:
        """Let the sampler plan a client update's batches."""
        order = plan_order(self.local.sampler, context)
        positions, sizes, last = self._cut(order)
        if len(sizes) and sizes.max() > (width := self.buf.index.shape[1]):
            allowed = f"at most {width}, as `width` says; override `width` too"
            raise broken(self.local.sampler, "plan", f"makes a batch of {sizes.max()} samples; allowed: {allowed}")
        rates, keys = np.full(len(sizes), context.rate), None
        if self.draws:
            step = np.repeat(np.arange(len(sizes)), sizes)
            place = np.arange(len(step)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            keys = sample_keys(self._key(context.task, context.client.id), step, place)
        return BatchPlan(context, order, Batches(context.client.rows[positions], sizes, rates, keys), last)

    def _train(
        self, batch_plan: BatchPlan, all_reduce: AllReduce | None = None
    ) -> Callable[[], tuple[Report, Tensors]]:
        batch_plan = fill(self.local, self.space, self.own, self.buf, batch_plan)
        self._run(batch_plan, all_reduce)
        return lambda: finish(self.local, self.own, self.buf, batch_plan, common(self.space, self.buf))

    def _gradient(
        self, client: Client, key: int, all_reduce: AllReduce | None, work: ProbeWork, positions: np.ndarray
    ) -> Gradient:
        """Return the gradient of a sum of losses under the received model; of no samples, zero."""
        if not len(positions) and not (self._normed and all_reduce is not None):
            return Gradient(torch.zeros_like(self.buf.g), torch.zeros_like(self.buf.loss))
        self._start()
        keys = sample_keys(key, 0, np.arange(len(positions)))
        self._fill_ring(Batches(client.rows[positions], np.array([len(positions)]), np.zeros(1), keys))
        self.buf.weight.ceil_()  # every sample counts whole
        self.norms.all_reduce = all_reduce
        if self._normed:
            self.norms.train(all_reduce is not None or len(positions) > 1)
        self.backward(len(positions))
        self.norms.all_reduce = None
        work.samples += len(positions)
        return Gradient(self.buf.g.clone(), self.buf.loss / max(len(positions), 1))

    def _key(self, task: Task, client: int) -> int:
        """Return what a client update's random bits are made of, if the model or its inputs draw any."""
        where = {"round": task.round, "step": task.turn, "client": client}
        return self.local.streams.torch_seed("dropout", **where) if self.draws else 0

    def _cut(self, order: Order) -> tuple[np.ndarray, np.ndarray, int]:
        """Cut every epoch into batches: positions one after another, the size of each batch, how many the last has."""
        size, taken, sizes, last = order.batch_size, [], list[int](), 0
        for epoch in order.epochs:
            full, rest = divmod(len(epoch), size)
            if self._normed and full and rest == 1:  # one sample has no variance: leave it out
                rest = 0
            taken.append(epoch[: full * size + rest])
            sizes += [size] * full + [rest] * (rest > 0)
            last = full + (rest > 0) or last  # an epoch of nothing is none
        return np.concatenate([np.zeros(0, dtype=np.int64), *taken]), np.array(sizes, dtype=np.int64), last

    def load(self, down: Tensors) -> None:
        """Start from the received model."""
        if "params" in down:
            self.buf.w0.copy_(down["params"])
            self.buf.w.copy_(self.buf.w0)
        self.buf.b0.copy_(down.get("buffers", self._first_buffers))
        self.buf.b.copy_(self.buf.b0)
        for counter, start in self.counters:
            counter.copy_(start)

    def _start(self) -> None:
        self.buf.loss.zero_()
        if self._normed or not self.network.training:
            self.network.train()

    def _run(self, batch_plan: BatchPlan, all_reduce: AllReduce | None) -> None:
        self._start()
        self.norms.all_reduce = all_reduce
        sizes = batch_plan.batches.sizes.tolist()
        padded = self._padded(max(sizes, default=0)) if self.pad else None
        for start in range(0, len(sizes), self._ring):
            self._fill_ring(batch_plan.batches, start)
            for size in sizes[start : start + self._ring]:
                width = padded or size
                normal = size > 1 or not self._normed  # a batch norm does something else with one sample
                if self._normed:
                    self.norms.train(normal or self.norms.all_reduce is not None)
                alone = normal and self.norms.all_reduce is None
                step = self.recorder if alone and self.recorder is not None else self.step
                step(width, size == width or not self._normed)  # others do not ask
                self.norms.all_reduce = None  # local models go separate ways after their first step
        self.norms.all_reduce = None

    def _padded(self, largest: int) -> int:
        """Return the width of all batches of a client update: one of very few, because each of them is recorded."""
        widest = self.buf.index.shape[1]
        usual = min(self.local.batch_size, widest)
        return 1 if largest == 1 else usual if largest <= usual else widest

    @property
    def state(self) -> list[Tensor]:
        """All that a step changes."""
        buf, counters = self.buf, [counter for counter, _ in self.counters]
        return [
            buf.w,
            buf.g,
            buf.b,
            buf.t,
            buf.loss,
            *counters,
            *(t for own in self.own.values() for t in own.values()),
        ]

    def _fill_ring(self, batches: Batches, start: int = 0) -> None:
        self.buf.t.zero_()
        ring = Ring.of([batches], start, self.buf.index.shape[1], self._ring)
        for name in ("index", "weight", "rate", *(("keys",) if self.draws else ())):
            values = getattr(ring, name)[0]
            copy_to_device(values, getattr(self.buf, name)[: len(values)])

    def named(self, params: Tensor | None = None, buffers: Tensor | None = None) -> dict[str, Tensor]:
        """Return tensors of the network by name, out of flat vectors."""
        named = {} if params is None else {f"module.{p.name}": p.of(params) for p in self.space.params}
        return named | ({} if buffers is None else {f"module.{p.name}": p.of(buffers) for p in self.space.buffers})

    # ---- the local step: captured once, replayed for every batch of every client -----------------------------

    def step(self, width: int, full: bool = True) -> None:
        """Take one step on the next batch of the ring; one that is not full is padded."""
        buf = self.buf
        self.backward(width, full)
        with torch.no_grad():
            update_weights(self.local.chain, self.own, buf, buf.rate.index_select(0, buf.t))
            buf.t.add_(1)

    def backward(self, width: int, full: bool = True) -> None:
        """Compute the gradient of the next batch of the ring."""
        buf, parts = self.buf, self.local.chain
        rows = buf.index.index_select(0, buf.t)[0, :width]
        weight = buf.weight.index_select(0, buf.t)[0, :width]
        if self.draws:
            self.clock.keys, self.clock.uses = buf.keys.index_select(0, buf.t)[0, :width], 0
        self.norms.mask = None if full else (weight > 0).to(weight.dtype)
        x = buf.x.index_select(0, rows)
        if not self._ready:
            x = self.local.inputs(x, buf.w.dtype)
        if self.norms.tally is not None:
            self.norms.tally.batches += 1
        if self._augments:
            x = self.local.inputs.augment(x, self.clock)
        x = self.network.to_preferred_layout(x)
        y = buf.y.index_select(0, rows)

        loss, batch = objective(parts, self.own, buf, x, y, weight, *self.network(x))
        # Cheaper than `backward`, which adds to a gradient that must have been set to zero before.
        gradients = torch.autograd.grad(loss, self.params, allow_unused=True, materialize_grads=True)

        with torch.no_grad():
            if self.gradients is None:
                buf.g.copy_(torch.cat([g.reshape(-1) for g in gradients]))
            else:
                torch._foreach_copy_(self.gradients, gradients)
            observe(parts, self.own, buf, batch)


def plan_order(sampler: Sampler, context: ClientContext) -> Order:
    """Let a sampler plan, and check that it names samples that are there."""
    order = expect(sampler, "plan", sampler.plan(context), Order, "Order(epochs, batch_size)")
    samples = context.client.samples
    for epoch in order.epochs:
        if len(epoch) and not (epoch.min() >= 0 and epoch.max() < samples):
            strange = epoch[(epoch < 0) | (epoch >= samples)][0]
            allowed = f"0 to {samples - 1}, positions among the client's own samples"
            raise broken(sampler, "plan", f"names sample {strange}; allowed: {allowed}")
    return order


def _no_model(*_: object) -> Any:
    raise ValueError("this step sends no model to look with; use Step(model=True)")
