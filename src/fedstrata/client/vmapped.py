"""A flock: many clients of a tiny model trained in one batched step, where a step's cost is mostly its overhead.

The local step is the lane's, mapped over a leading axis of seats, one a client. Clients take their seats from the most
steps to the fewest: those that still have batches are always the first, so nobody waits for others, and a seat whose
client is done is left alone. What differs between clients lies in their seats' slots, as it does in a lane's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from fedstrata.client.batches import RING, Course, Ring
from fedstrata.client.local_step import Slots, common, fill, finish, move, objective, observe
from fedstrata.client.trainer import Lane
from fedstrata.core.client_parts import Buffers, Client
from fedstrata.core.messages import Report, Task, Tensors
from fedstrata.core.transfer import give

SEATED = ("w", "g", "b", "w0", "b0", "loss")  # what every seat has of its own


class Flock:
    """Seats for clients that are trained at once, beside a lane that looks and plans for them."""

    def __init__(self, lane: Lane, seats: int):
        if lane.norms:
            raise ValueError("batch norms take statistics over a client's own batch, without padding")
        self.lane, self.seats = lane, seats
        buf, device = lane.buf, lane.buf.w.device

        def stacked(t: Tensor) -> Tensor:
            return torch.zeros((seats, *t.shape), dtype=t.dtype, device=device)

        self._width = buf.index.shape[1]
        self._state = {name: stacked(getattr(buf, name)) for name in SEATED}
        self._ring = {name: stacked(getattr(buf, name)) for name in ("index", "weight", "keys", "rate")}
        self._own = {name: {k: stacked(t) for k, t in own.items()} for name, own in lane.own.items()}
        self._t = torch.zeros_like(buf.t)
        self._seats = [self._at(i) for i in range(seats)]
        self.recorder: Callable[[int], None] | None = None  # an engine may replay steps instead of taking them

    @property
    def state(self) -> list[Tensor]:
        """All that a step changes."""
        return [*self._state.values(), self._t, *(t for own in self._own.values() for t in own.values())]

    def visit(
        self, clients: Sequence[Client], tasks: Sequence[Task], keeps: Sequence[Tensors]
    ) -> list[tuple[Report, Tensors]]:
        """Train clients that received the same model; reports and new state in task order."""
        lane = self.lane
        lane.load(tasks[0].down)
        planned = []
        for client, task, keep in zip(clients, tasks, keeps, strict=True):
            course = lane.course(lane.visiting(client, task, keep))
            planned.append((course, lane.look))
        by_steps = sorted(range(len(tasks)), key=lambda i: -len(planned[i][0].batches))
        courses = self._fill([planned[i][0] for i in by_steps])
        reports: dict[int, tuple[Report, Tensors]] = {}
        steps = [len(course.batches) for course in courses]
        active = len(courses)
        for t in range(steps[0] + 1):
            if active and steps[active - 1] == t:  # whoever has no batch left is done
                left = sum(count > t for count in steps[:active])
                every = common(lane.space, self._buffers({n: s[left:active] for n, s in self._state.items()}))
                for seat in range(left, active):
                    who = by_steps[seat]
                    looked, own = planned[who][1].work, every.of(seat - left)
                    reports[who] = finish(lane.local, *self._seats[seat], courses[seat], own, looked)
                active = left
            if active and t % RING == 0:
                self._fill_ring(courses[:active], t)
            if active and self.recorder is not None:  # what happens to seats beyond the active ones does not matter
                self.recorder(min(_about(active), self.seats))
            elif active:
                self.step(active)
        return [reports[i] for i in range(len(tasks))]

    def step(self, active: int) -> None:
        """Take one step on the next batches of the first seats' clients."""
        self.stepped(*self.seated(active))

    def stepped(self, state: Tensors, own: Slots, rings: Tensors, t: Tensor) -> None:
        """Take a step; everything that changes from step to step is an argument, so that it can be traced."""
        lane, active, slot = self.lane, len(state["w"]), t % RING
        ring = {name: values.index_select(1, slot)[:, 0] for name, values in rings.items() if name != "rate"}
        rate = rings["rate"].index_select(1, slot)
        rows, keys = ring["index"].reshape(-1), ring["keys"].reshape(-1)
        lane.clock.keys, lane.clock.uses = keys, 0
        x = lane.local.inputs(lane.buf.x.index_select(0, rows), lane.buf.w.dtype)
        x = lane.local.inputs.augmented(x, lane.clock)
        drawn = lane.clock.uses
        x, y = x.view(active, self._width, *x.shape[1:]), lane.buf.y.index_select(0, rows).view(active, self._width)

        def one(state: Tensors, own: Slots, x: Tensor, y: Tensor, weight: Tensor, keys: Tensor, rate: Tensor) -> Tensor:
            lane.clock.keys, lane.clock.uses = keys, drawn
            parts, buf = lane.local.chain, self._buffers(state)

            def loss(params: Tensors) -> tuple[Tensor, tuple[Tensor, ...]]:
                out = functional_call(lane.network, {**params, **lane.named(buffers=buf.b)}, (x,))
                return objective(parts, own, buf, x, y, weight, *out)

            gradients, batch = grad(loss, has_aux=True)(lane.named(params=buf.w))
            for name, to in lane.named(params=buf.g).items():
                to.copy_(gradients[name])
            with torch.no_grad():
                observe(parts, own, buf, batch)
                move(parts, own, buf, rate)
            return buf.loss  # vmap wants something back

        vmap(one)(state, own, x, y, ring["weight"], ring["keys"], rate)
        t.add_(1)

    def _fill(self, courses: Sequence[Course]) -> list[Course]:
        lane, state = self.lane, self._state
        lane.network.train()
        for name, received in (("w", "w0"), ("w0", "w0"), ("b", "b0"), ("b0", "b0")):
            state[name][: len(courses)] = getattr(lane.buf, received)
        state["loss"].zero_()
        self._t.zero_()
        pairs = zip(self._seats, courses, strict=False)
        return [fill(lane.local, lane.space, own, buf, course) for (own, buf), course in pairs]

    def _fill_ring(self, courses: Sequence[Course], start: int) -> None:
        ring = Ring.of([course.batches for course in courses], start, self._width)
        for name, to in self._ring.items():
            if name != "keys" or self.lane.draws:
                values = getattr(ring, name)
                give(values, to[: len(courses), : values.shape[1]])

    def seated(self, active: int) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]], dict[str, Tensor], Tensor]:
        """Give what a step of the first seats works on."""
        state = {name: t[:active] for name, t in self._state.items()}
        own = {name: {k: t[:active] for k, t in slots.items()} for name, slots in self._own.items()}
        return state, own, {name: t[:active] for name, t in self._ring.items()}, self._t

    def _at(self, seat: int) -> tuple[dict[str, dict[str, Tensor]], Buffers]:
        state = {name: t[seat] for name, t in self._state.items()}
        own = {name: {k: t[seat] for k, t in slots.items()} for name, slots in self._own.items()}
        return own, self._buffers(state)

    def _buffers(self, state: Mapping[str, Tensor]) -> Buffers:
        own: dict[str, Any] = {**state, "t": self._t}
        return replace(self.lane.buf, **own)


def _about(active: int) -> int:
    """Round a number of seats up, by a quarter at most: steps are recorded for few numbers, and spare seats cost."""
    unit = max(1 << active.bit_length() >> 3, 1)
    return -(-active // unit) * unit
