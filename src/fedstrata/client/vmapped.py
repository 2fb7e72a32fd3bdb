"""A vmapped trainer: many clients of a tiny model trained in one batched step.

Where a step's cost is mostly its overhead.

The local step is the trainer's, mapped over a leading axis of replicas, one a client. Clients take their replicas from
the most steps to the fewest: those that still have batches are always the first, so nobody waits for others, and a
replica whose client is done is left alone. What differs between clients lies in their replicas' slots, as it does in a
trainer's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedstrata.client.local_step import (
    RING,
    BatchPlan,
    Ring,
    Slots,
    common,
    copy_to_device,
    fill,
    finish,
    objective,
    observe,
    update_weights,
)
from fedstrata.client.trainer import Trainer
from fedstrata.client.whole_batch import WHOLE_BATCH, looks_at_whole_batch
from fedstrata.core.client_context import Batch, Buffers
from fedstrata.core.client_parts import Client
from fedstrata.core.messages import Report, Task, Tensors

REPLICATED = ("w", "g", "b", "w0", "b0", "loss")  # what every replica has of its own
MOST_REPLICAS = 64  # most clients that are trained at once
TINY = 2e6  # multiplications of a batch below which a step's cost is mostly its overhead, on a core
TINY_ON_GPU = 5e6
SMALL = 200_000  # parameters above which replicas take more memory than they are worth


class VmappedTrainer:
    """Replicas that train several clients at once, with a trainer for probes and batch plans."""

    def __init__(self, trainer: Trainer, replicas: int):
        if trainer.space.normed:
            raise ValueError("batch norms take statistics over a client's own batch, without padding")
        if _has_special_rows(trainer.network):
            raise ValueError("embeddings with padding_idx, max_norm or scale_grad_by_freq are not trained many at once")
        if looks_at_whole_batch(trainer.local, trainer.buf.x):
            raise ValueError(f"{WHOLE_BATCH}, which would be filled up")
        self.trainer, self.replicas = trainer, replicas
        buf, device = trainer.buf, trainer.buf.w.device

        def stacked(t: Tensor) -> Tensor:
            return torch.zeros((replicas, *t.shape), dtype=t.dtype, device=device)

        self._width = buf.index.shape[1]
        self._state = {name: stacked(getattr(buf, name)) for name in REPLICATED}
        self._ring = {name: stacked(getattr(buf, name)) for name in ("index", "weight", "keys", "rate")}
        self._own = {name: {k: stacked(t) for k, t in own.items()} for name, own in trainer.own.items()}
        self._t = torch.zeros_like(buf.t)
        self._replicas = [self._at(i) for i in range(replicas)]
        self.recorder: Callable[[int], None] | None = None  # an engine may replay steps instead of taking them

    @property
    def state(self) -> list[Tensor]:
        """All that a step changes."""
        return [*self._state.values(), self._t, *(t for own in self._own.values() for t in own.values())]

    def run_tasks(
        self, clients: Sequence[Client], tasks: Sequence[Task], client_states: Sequence[Tensors]
    ) -> list[tuple[Report, Tensors]]:
        """Train clients that received the same model; reports and new state in task order."""
        trainer = self.trainer
        trainer.load(tasks[0].down)
        planned = []
        for client, task, client_state in zip(clients, tasks, client_states, strict=True):
            planned.append(trainer.plan_batches(trainer.make_context(client, task, client_state)))
        by_steps = sorted(range(len(tasks)), key=lambda i: -len(planned[i].batches))
        batch_plans = self._fill([planned[i] for i in by_steps])
        reports: dict[int, tuple[Report, Tensors]] = {}
        steps = [len(batch_plan.batches) for batch_plan in batch_plans]
        active = len(batch_plans)
        for t in range(steps[0] + 1):
            if active and steps[active - 1] == t:  # whoever has no batch left is done
                left = sum(count > t for count in steps[:active])
                every = common(trainer.space, self._buffers({n: s[left:active] for n, s in self._state.items()}))
                for replica in range(left, active):
                    slots, buf = self._replicas[replica]
                    reports[by_steps[replica]] = finish(
                        trainer.local, slots, buf, batch_plans[replica], every.of(replica - left)
                    )
                active = left
            if active and t % RING == 0:
                self._fill_ring(batch_plans[:active], t)
            if active and self.recorder is not None:  # what happens to replicas beyond the active ones does not matter
                self.recorder(min(_about(active), self.replicas))
            elif active:
                self.step(active)
        return [reports[i] for i in range(len(tasks))]

    def step(self, active: int) -> None:
        """Take one step on the next batches of the first replicas' clients."""
        self.take_step(*self.in_use(active))

    def take_step(self, state: Tensors, own: Slots, rings: Tensors, t: Tensor) -> None:
        """Take a step; everything that changes from step to step is an argument, so that it can be traced."""
        trainer, active = self.trainer, len(state["w"])
        ring = {name: values.index_select(1, t)[:, 0] for name, values in rings.items() if name != "rate"}
        rate = rings["rate"].index_select(1, t)
        rows, keys = ring["index"].reshape(-1), ring["keys"].reshape(-1)
        trainer.clock.keys, trainer.clock.uses = keys, 0
        x = trainer.local.inputs(trainer.buf.x.index_select(0, rows), trainer.buf.w.dtype)
        x = trainer.local.inputs.augment(x, trainer.clock)
        drawn = trainer.clock.uses
        x, y = x.view(active, self._width, *x.shape[1:]), trainer.buf.y.index_select(0, rows).view(active, self._width)

        parts = trainer.local.chain

        def loss(
            params: Tensors, state: Tensors, own: Slots, x: Tensor, y: Tensor, weight: Tensor, keys: Tensor
        ) -> tuple[Tensor, Batch]:
            trainer.clock.keys, trainer.clock.uses = keys, drawn
            buf = self._buffers(state)
            out = functional_call(trainer.network, {**params, **trainer.named(buffers=buf.b)}, (x,))
            return objective(parts, own, buf, x, y, weight, *out)

        def move(state: Tensors, own: Slots, batch: Batch, rate: Tensor) -> Tensor:
            buf = self._buffers(state)
            observe(parts, own, buf, batch)
            update_weights(parts, own, buf, rate)
            return buf.loss  # vmap wants something back

        # Replicas do not touch each other: the gradient of the sum of their losses holds the gradient of each. (With
        # `torch.func.grad` inside, a process would first import the compiler, which takes a second and more.)
        params = {name: w.detach().requires_grad_() for name, w in self._stacked(state["w"]).items()}
        losses, batch = vmap(loss)(params, state, own, x, y, ring["weight"], ring["keys"])
        gradients = torch.autograd.grad(losses.sum(), list(params.values()), allow_unused=True, materialize_grads=True)
        with torch.no_grad():
            torch._foreach_copy_(list(self._stacked(state["g"]).values()), gradients)
            vmap(move)(state, own, Batch(*(part.detach() for part in batch)), rate)
        t.add_(1)

    def _stacked(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the network's tensors of all replicas by name."""
        places = self.trainer.space.params
        return {f"module.{p.name}": flat[:, p.start : p.stop].view(len(flat), *p.shape) for p in places}

    def _fill(self, batch_plans: Sequence[BatchPlan]) -> list[BatchPlan]:
        trainer, state = self.trainer, self._state
        trainer.network.train()
        for name, received in (("w", "w0"), ("w0", "w0"), ("b", "b0"), ("b0", "b0")):
            state[name][: len(batch_plans)] = getattr(trainer.buf, received)
        state["loss"].zero_()
        pairs = zip(self._replicas, batch_plans, strict=False)
        return [fill(trainer.local, trainer.space, own, buf, batch_plan) for (own, buf), batch_plan in pairs]

    def _fill_ring(self, batch_plans: Sequence[BatchPlan], start: int) -> None:
        self._t.zero_()
        ring = Ring.of([batch_plan.batches for batch_plan in batch_plans], start, self._width)
        for name, to in self._ring.items():
            if name != "keys" or self.trainer.draws:
                values = getattr(ring, name)
                copy_to_device(values, to[: len(batch_plans), : values.shape[1]])

    def in_use(self, active: int) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]], dict[str, Tensor], Tensor]:
        """Return what a step of the first replicas works on."""
        state = {name: t[:active] for name, t in self._state.items()}
        own = {name: {k: t[:active] for k, t in slots.items()} for name, slots in self._own.items()}
        return state, own, {name: t[:active] for name, t in self._ring.items()}, self._t

    def _at(self, replica: int) -> tuple[dict[str, dict[str, Tensor]], Buffers]:
        state = {name: t[replica] for name, t in self._state.items()}
        own = {name: {k: t[replica] for k, t in slots.items()} for name, slots in self._own.items()}
        return own, self._buffers(state)

    def _buffers(self, state: Mapping[str, Tensor]) -> Buffers:
        own: dict[str, Any] = {**state, "t": self._t}
        return replace(self.trainer.buf, **own)


def _about(active: int) -> int:
    """Round a number of replicas up, by a quarter at most.

    Steps are recorded for few numbers, and spare replicas cost.
    """
    unit = max(1 << active.bit_length() >> 3, 1)
    return -(-active // unit) * unit


def worth_grouping(module: nn.Module, products: float, device: str) -> bool:
    """Say whether training many clients in one step pays: tiny models, whose batches do not share statistics."""
    normed = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in module.modules())
    small = sum(p.numel() for p in module.parameters()) < SMALL
    able = not normed and not _has_special_rows(module)
    return able and small and products < (TINY if device == "cpu" else TINY_ON_GPU)


def _has_special_rows(module: nn.Module) -> bool:
    """Say whether an embedding treats rows otherwise than by looking them up.

    vmap lays the tables of all replicas end to end and looks up there, without `padding_idx` and `scale_grad_by_freq`:
    a row of padding would be trained like any other, and nothing would say so. `max_norm` it takes client by client.
    """
    return any(
        layer.padding_idx is not None or layer.max_norm is not None or layer.scale_grad_by_freq
        for layer in module.modules()
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag)
    )
