"""A trainer's local step as a function of tensors: all that it reads and changes is an argument.

A compiler may then reorder what it does without knowing which of the trainer's tensors share memory, and one compiled
step serves all trainers of a plan. The step itself is the trainer's own, on other tensors for as long as it takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

from torch import Tensor, nn

from fedstrata.client.trainer import Trainer


def step_tensors(trainer: Trainer) -> list[Tensor]:
    """Return all tensors that a step reads or changes, in the order in which `pure_step` takes them."""
    own = [tensor for slots in trainer.own.values() for tensor in slots.values()]
    return [getattr(trainer.buf, name) for name in _names(trainer)] + own + [c for c, _ in trainer.counters]


def pure_step(trainer: Trainer, tensors: Sequence[Tensor], width: int) -> None:
    """Take a step on a full batch and tensors like the trainer's; those that the trainer's step would change change."""
    with _on(trainer, iter(tensors)):
        trainer.step(width)


def _names(trainer: Trainer) -> list[str]:
    return [f.name for f in fields(trainer.buf) if isinstance(getattr(trainer.buf, f.name), Tensor)]


@contextmanager
def _on(trainer: Trainer, tensors: Iterator[Tensor]) -> Iterator[None]:
    """Let a trainer work on other tensors: buffers, slots, and a network whose weights are views of them."""
    network, space, buf, own, clock = trainer.network, trainer.space, trainer.buf, trainer.own, trainer.clock.keys
    before = {name: getattr(trainer, name) for name in ("buf", "own", "params", "gradients")}
    other: dict[str, Any] = {name: next(tensors) for name in _names(trainer)}
    trainer.buf = replace(buf, **other)
    trainer.own = {name: {slot: next(tensors) for slot in slots} for name, slots in own.items()}
    owners = dict(network.module.named_modules())
    counters = [name for name, b in network.module.named_buffers() if not b.is_floating_point()]
    params = {p.name: p.of(trainer.buf.w).detach().requires_grad_() for p in space.params}
    buffers = {b.name: b.of(trainer.buf.b) for b in space.buffers} | {name: next(tensors) for name in counters}
    trainer.params, trainer.gradients = list(params.values()), None
    held = _exchange(owners, "_parameters", params), _exchange(owners, "_buffers", buffers)
    try:
        yield
    finally:
        _exchange(owners, "_parameters", held[0])
        _exchange(owners, "_buffers", held[1])
        vars(trainer).update(before)
        trainer.clock.keys, trainer.norms.mask = clock, None


def _exchange(owners: dict[str, nn.Module], kind: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Put tensors into modules by name; give what was there."""
    held = {}
    for name, tensor in tensors.items():
        owner, _, own = name.rpartition(".")
        place = getattr(owners[owner], kind)
        held[name], place[own] = place[own], tensor
    return held
