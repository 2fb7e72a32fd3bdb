"""A lane: one resident model replica that visits one client after another.

`Lane.step` is the whole local step of a composed method, over static buffers: eager engines call it, a capturing
engine records it once and replays it. Its only argument is the batch width, which the host knows beforehand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from fedstrata.clientside import Batch, Buffers, Client, Done, Local, Order, Peek, Visit
from fedstrata.counter import Clock
from fedstrata.messages import Report, Task, Tensors, Value, prefixed, tensor_bytes, value_bytes
from fedstrata.network import Network, key_dropout
from fedstrata.rng import torch_seeded
from fedstrata.space import Space

RING = 64  # batches filled ahead of the step
CHUNK = 1024  # samples in one evaluation pass


class Lane:
    """The client side of a plan, built once and reused for every client.

    `pad` fills every batch up to the ring's width with samples of weight 0, as capture needs; eager lanes
    take each batch at its own width.
    """

    def __init__(self, local: Local, x: Tensor, y: Tensor, largest: int, device: str = "cpu", pad: bool = False):
        self.local, self.pad = local, pad
        module = local.build().to(device, local.dtype)
        self.space = space = Space.of(module, local.head)
        width = local.sampler.width(local.batch_size, max(largest, 1))

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
            rate=zeros(RING),
            t=zeros(1, dtype=torch.int64),
            key=zeros(1, dtype=torch.int64),
            loss=zeros(),
            head=space.head,
            at=self.at,
        )
        self.own = {
            name: {slot: zeros(*s.shape, dtype=s.dtype) for slot, s in part.lane(space).items()}
            for name, part in local.chain.items()
        }
        space.bind(module, buf.w, buf.b, buf.g)
        self._clock = Clock(buf.key, buf.t)
        key_dropout(module, self._clock)
        self.network = Network(module, local.head)
        self.norms: list[nn.Module] = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        if pad and self.norms:
            raise ValueError("padding a batch would change the statistics of its batch norm")
        self._counters = [(b, b.clone()) for b in module.buffers() if not b.is_floating_point()]

    # ---- a visit, on the host -------------------------------------------------------------------------------

    def visit(self, client: Client, task: Task, keep: Tensors) -> tuple[Report, Tensors]:
        """Do one task for one client: its report, and its state if the server accepts the report."""
        local = self.local
        where = {"round": task.round, "step": task.turn, "client": client.id}
        visit = Visit(
            client=client,
            task=task,
            keep=keep,
            down=task.down,
            epochs=int(task.config.get("epochs", local.epochs)),  # type: ignore[arg-type]
            batch_size=local.batch_size,
            rate=local.rate.at(task.round),
            rng=lambda purpose: local.streams(purpose, **where),
            peek=partial(self.peek, client) if "params" in task.down else _no_model,
        )
        self._load(task.down)
        self.buf.key.fill_(local.streams.torch_seed("dropout", **where))
        # Whatever a user's module draws for itself is tied to the visit too, not to the lane's past.
        with torch_seeded(local.streams.torch_seed("module", **where)):
            if task.kind == "train":
                return self._train(visit)
            done = local.programs[task.kind](visit)
        return _report(visit, done), {**keep, **_copies(done.keep)} if done.keep else keep

    def _train(self, visit: Visit) -> tuple[Report, Tensors]:
        buf, chain = self.buf, self.local.chain
        order = self.local.sampler.plan(visit)
        batches = self._batches(order)
        visit = replace(
            visit,
            keep={**self._first_keep(), **visit.keep},
            steps=len(batches),
            rate_sum=len(batches) * visit.rate,
        )
        for name, part in chain.items():
            part.fill(self.own[name], buf, visit.scoped(name))

        self._run([visit.client.rows[b] for b in batches], visit.rate)

        update = buf.w - buf.w0
        common = {"update": update} | ({"buffers": buf.b - buf.b0} if self.space.Q else {})
        ends = {name: part.finish(self.own[name], buf, visit.scoped(name)) for name, part in chain.items()}
        done = Done(
            meta=_merged([order.meta, *(end.meta for end in ends.values())]),
            summed=common | _owned({name: end.summed for name, end in ends.items()}),
            shown=_owned({name: end.shown for name, end in ends.items()}),
            keep=_copies(order.keep) | _owned({name: end.keep for name, end in ends.items()}),
        )
        loss = buf.loss / max(sum(map(len, batches)), 1)
        return _report(visit, done, loss, update.norm()), {**visit.keep, **done.keep}

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
        if "buffers" in down:
            self.buf.b0.copy_(down["buffers"])
            self.buf.b.copy_(down["buffers"])
        for counter, start in self._counters:
            counter.copy_(start)

    def _run(self, batches: Sequence[np.ndarray], rate: float) -> None:
        buf = self.buf
        buf.t.zero_()
        buf.loss.zero_()
        self.network.train()
        todo = iter(batches)
        while ring := list(islice(todo, RING)):
            self._fill_ring(ring, rate)
            for batch in ring:
                for norm in self.norms:
                    norm.train(len(batch) > 1)
                self.step(buf.index.shape[1] if self.pad else len(batch))

    def _fill_ring(self, batches: Sequence[np.ndarray], rate: float) -> None:
        index = np.zeros(self.buf.index.shape, dtype=np.int64)
        weight = np.zeros(self.buf.weight.shape)
        for i, rows in enumerate(batches):
            index[i, : len(rows)] = rows
            weight[i, : len(rows)] = 1.0 / len(rows)
        self.buf.index.copy_(torch.from_numpy(index))
        self.buf.weight.copy_(torch.from_numpy(weight))
        self.buf.rate.fill_(rate)

    # ---- the local step: captured once, replayed for every batch of every client -----------------------------

    def step(self, width: int) -> None:
        """Take one step on the next batch of the ring."""
        buf, parts = self.buf, self.local.chain
        slot = buf.t % RING
        rows = buf.index.index_select(0, slot)[0, :width]
        weight = buf.weight.index_select(0, slot)[0, :width]
        self._clock.uses = 0
        x = self.local.inputs(buf.x.index_select(0, rows), buf.w.dtype)
        x, y = self.local.inputs.augmented(x, self._clock), buf.y.index_select(0, rows)

        buf.g.zero_()
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
        loss.backward()  # type: ignore[no-untyped-call]

        with torch.no_grad():
            buf.loss.add_((each * (weight > 0)).sum())
            for name, part in parts.items():
                part.observe(self.own[name], buf, batch)
            rate = buf.rate.index_select(0, slot)
            for name, part in parts.items():
                part.grad(self.own[name], buf, rate)
            buf.t.add_(1)

    # ---- looking at data without training ---------------------------------------------------------------------

    def at(self, params: Tensor, buffers: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Give features and logits under other flat weights, in eval mode, without a gradient."""
        space, was = self.space, self.network.training
        tensors = {f"module.{p.name}": p.of(params) for p in space.params}
        tensors |= {f"module.{p.name}": p.of(buffers) for p in space.buffers}
        self.network.eval()
        with torch.no_grad():
            features, logits = functional_call(self.network, tensors, (x,))
        self.network.train(was)
        return features, logits

    def peek(self, client: Client) -> Peek:
        """Give losses and probabilities of a client's samples under the received model."""
        buf, losses, probabilities = self.buf, [], []
        for start in range(0, client.samples, CHUNK):
            rows = torch.from_numpy(client.rows[start : start + CHUNK]).to(buf.x.device)
            x, y = self.local.inputs(buf.x.index_select(0, rows), buf.w.dtype), buf.y.index_select(0, rows)
            logits = self.at(buf.w0, buf.b0, x)[1]
            losses.append(cross_entropy(logits, y, reduction="none"))
            probabilities.append(logits.softmax(1))
        return Peek(torch.cat(losses).cpu().numpy(), torch.cat(probabilities).cpu().numpy())


def _no_model() -> Peek:
    raise ValueError("this step sends no model to look with; use Step(model=True)")


def _report(visit: Visit, done: Done, loss: Tensor | float = 0.0, drift: Tensor | float = 0.0) -> Report:
    return Report(
        client=visit.client.id,
        samples=visit.client.samples,
        steps=visit.steps,
        loss=loss,
        drift=drift,
        meta=done.meta,
        summed=done.summed,
        shown=done.shown,
        finite=_all_finite([*done.summed.values(), *done.shown.values()], loss),
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
