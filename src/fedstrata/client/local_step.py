"""The batches of a client update, and the local step of a composed method, in pieces.

A trainer takes the step for one client, a vmapped trainer for many at once. Batches reach the device a ring at a time.
Slots are filled before a client update; the loss is made of the network's and every correction's; gradients are edited
in turn and the optimizer moves the weights; at the end everything is collected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import FrameType
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from fedstrata.core.client_context import Batch, Buffers, ClientContext, Done
from fedstrata.core.client_parts import ClientPlan, LocalPart, Optimizer, Order
from fedstrata.core.contract import broken, describe, expect, expect_nothing, expect_tensors
from fedstrata.core.errors import PartError
from fedstrata.core.flat_model import ParameterSpace
from fedstrata.core.messages import (
    Report,
    Tensors,
    Value,
    add_prefix,
    fast_replace,
    scope,
    tensor_bytes,
    value_bytes,
    whole_tensors,
)

Slots = Mapping[str, Tensors]  # of each part
SHAPES = re.compile(r"\bsizes?\b|\bshapes?\b")  # what torch says where tensors do not fit each other
RING = 64  # batches filled ahead of the step
LONG_RING, ROOM = 1024, 1 << 20  # the same on a GPU, which fetches them all at once: batches, and samples at most


@dataclass(frozen=True)
class Batches:
    """What is trained on: samples one after another, and how many of them each batch has."""

    rows: np.ndarray
    sizes: np.ndarray  # one a batch
    rates: np.ndarray  # likewise
    keys: np.ndarray | None = None  # one a sample, where the model or its inputs draw

    def __len__(self) -> int:
        return len(self.sizes)

    @cached_property
    def starts(self) -> np.ndarray:
        """Say where each batch begins, and where the last one ends."""
        return np.concatenate([[0], np.cumsum(self.sizes)])

    def of_ring(self, start: int, ring: int = RING) -> Batches:
        """Return a ring of them."""
        end = min(start + ring, len(self))
        samples = slice(self.starts[start], self.starts[end])
        keys = None if self.keys is None else self.keys[samples]
        return Batches(self.rows[samples], self.sizes[start:end], self.rates[start:end], keys)


@dataclass(frozen=True)
class BatchPlan:
    """A client update whose batches are planned."""

    context: ClientContext
    order: Order
    batches: Batches
    last: int = 0  # batches of the last epoch


@dataclass(frozen=True)
class Ring:
    """Batches as the local step finds them: so many at a time, at their places in the trainer's buffers."""

    index: np.ndarray  # [clients, batches, width]
    weight: np.ndarray
    keys: np.ndarray
    rate: np.ndarray  # [clients, batches]

    @classmethod
    def of(cls, clients: Sequence[Batches], start: int, width: int, ring: int = RING) -> Ring:
        """Lay out every client's batches from a step on; what is left of a row has weight 0."""
        cut = [batches.of_ring(start, ring) for batches in clients]
        rows, sizes, rates = (np.concatenate([getattr(b, name) for b in cut]) for name in ("rows", "sizes", "rates"))
        deep = max(map(len, cut))
        slot = np.concatenate([np.arange(i * deep, i * deep + len(b)) for i, b in enumerate(cut)])
        first, at = np.cumsum(sizes) - sizes, np.repeat(slot, sizes)
        place = np.arange(len(rows)) - np.repeat(first, sizes)
        index, weight, keys = (np.zeros((len(cut) * deep, width), dtype=t) for t in (np.int64, np.float64, np.int64))
        index[slot] = rows[first, None]  # padding repeats a sample: no stranger's may overflow
        index[at, place] = rows
        weight[at, place] = np.repeat(1.0 / sizes, sizes)
        own = [b.keys for b in cut if b.keys is not None]
        if own:
            keys[at, place] = np.concatenate(own)
        rate = np.zeros(len(cut) * deep)
        rate[slot] = rates
        shape = len(cut), deep, width
        return cls(index.reshape(shape), weight.reshape(shape), keys.reshape(shape), rate.reshape(shape[:2]))


def ring_for(device: str, width: int) -> int:
    """Return how many batches a trainer's buffers hold."""
    return RING if device == "cpu" else max(RING, min(LONG_RING, ROOM // width))


def copy_to_device(values: np.ndarray, to: Tensor) -> None:
    """Copy from the host to a tensor; the host goes on at once."""
    host = torch.from_numpy(values)
    if not to.is_cuda:
        to.copy_(host)
        return
    pinned = torch.empty(host.shape, dtype=to.dtype, pin_memory=True)
    to.copy_(pinned.copy_(host), non_blocking=True)


# ---- the step


def scope_context(context: ClientContext, part: str) -> ClientContext:
    """Show a part its own state and broadcast under its own names."""
    if not any("/" in name for names in (context.client_state, context.down) for name in names):
        return context
    state, down = scope(context.client_state, part), scope(context.down, part)
    return fast_replace(context, client_state=state, down=down)


def fill(local: ClientPlan, space: ParameterSpace, own: Slots, buf: Buffers, batch_plan: BatchPlan) -> BatchPlan:
    """Let every part write this client update's values into its slots."""
    known = batch_plan.context.client_state
    client_state = {
        f"{name}/{slot}": torch.zeros(s.shape, dtype=s.dtype or local.dtype, device=buf.w.device)
        for name, part in local.chain.items()
        for slot, s in part.declare_client_state(space).items()
        if f"{name}/{slot}" not in known
    }
    context = fast_replace(
        batch_plan.context,
        client_state={**client_state, **known},
        planned=int(batch_plan.batches.sizes.max(initial=0)),
        steps=len(batch_plan.batches),
        last_steps=batch_plan.last,
        rate_sum=float(batch_plan.batches.rates.sum()),
    )
    try:
        for name, part in local.chain.items():
            write: Callable[..., Any] = part.fill
            given = write(own[name], buf, scope_context(context, name))
            expect_nothing(part, "fill", given, "Write into the slots: own[...].copy_(...)")
    except (KeyError, RuntimeError) as error:
        _raise_named(error)
    return fast_replace(batch_plan, context=context)


def objective(
    parts: Mapping[str, LocalPart],
    own: Slots,
    buf: Buffers,
    x: Tensor,
    y: Tensor,
    weight: Tensor,
    features: Tensor,
    logits: Tensor,
) -> tuple[Tensor, Batch]:
    """Return the loss of a batch under all corrections."""
    try:
        for name, part in parts.items():
            logits = _expect_like(part, part.edit_logits(own[name], buf, logits), logits)
        # One by one what `cross_entropy` does, without its search for labels to ignore, which costs more than all this.
        each = -logits.log_softmax(-1).gather(-1, y.unsqueeze(-1)).squeeze(-1)
        batch = Batch(x, y, weight, features, logits, each)
        loss = (each * weight).sum()
        for name, part in parts.items():
            extra = part.add_loss(own[name], buf, batch)
            if extra is not None:
                loss = loss + _expect_number(part, extra)
    except (KeyError, RuntimeError) as error:
        _raise_named(error)
    return loss, batch


def observe(parts: Mapping[str, LocalPart], own: Slots, buf: Buffers, batch: Batch) -> None:
    """Let every part see what the batch gave."""
    buf.loss.add_((batch.each * (batch.weight > 0)).sum())
    try:
        for name, part in parts.items():
            look: Callable[..., Any] = part.observe
            if (given := look(own[name], buf, batch)) is not None:
                expect_nothing(part, "observe", given, "Write into a slot: own[...].add_(...)")
    except (KeyError, RuntimeError) as error:
        _raise_named(error)


def update_weights(parts: Mapping[str, LocalPart], own: Slots, buf: Buffers, rate: Tensor) -> None:
    """Let every part edit the gradient; the optimizer, which is last, moves the weights."""
    try:
        for name, part in parts.items():
            edit: Callable[..., Any] = part.edit_gradient
            if (given := edit(own[name], buf, rate)) is not None:
                _refuse_edit(part, given)
    except (KeyError, RuntimeError) as error:
        _raise_named(error)


class Common(NamedTuple):
    """What every client update gives back, of one client or of several at once."""

    aggregated: Tensors
    update_norm: Tensor  # length of the update
    finite: Tensor
    loss: Tensor  # sum over the samples

    def of(self, replica: int) -> Common:
        """Return one client's."""
        aggregated = {name: t[replica] for name, t in self.aggregated.items()}
        return Common(aggregated, self.update_norm[replica], self.finite[replica], self.loss[replica])


def common(space: ParameterSpace, buf: Buffers) -> Common:
    """Collect it; the last axis is that of the model."""
    aggregated = {"update": buf.w - buf.w0} | ({"buffers": buf.b - buf.b0} if space.Q else {})
    loss = buf.loss.clone()
    finite = loss.isfinite()
    for tensor in aggregated.values():
        finite = finite & all_finite(tensor, -1)
    return Common(aggregated, aggregated["update"].norm(dim=-1), finite, loss)


def finish(local: ClientPlan, own: Slots, buf: Buffers, batch_plan: BatchPlan, every: Common) -> tuple[Report, Tensors]:
    """Collect what a client update gives back: its report, and the client's new state."""
    context, order, samples = batch_plan.context, batch_plan.order, len(batch_plan.batches.rows)
    ends = {name: _finish(part, own[name], buf, scope_context(context, name)) for name, part in local.chain.items()}
    done = Done(
        metrics=_merge_metrics([order.metrics, *(end.metrics for end in ends.values())]),
        aggregated={**every.aggregated, **_scope_names({name: end.aggregated for name, end in ends.items()})},
        open_tensors=_scope_names({name: end.open_tensors for name, end in ends.items()}),
        client_state=copy_tensors(order.client_state)
        | _scope_names({name: end.client_state for name, end in ends.items()}),
        samples=order.samples,
        loss=every.loss / max(samples, 1),
        work=samples,
    )
    return report(context, done, every), {**context.client_state, **done.client_state}


def _finish(part: LocalPart, own: Tensors, buf: Buffers, context: ClientContext) -> Done:
    """Let a part report, and check what it gives."""
    allowed = "Done(metrics=..., aggregated=..., client_state=...)"
    try:
        end = expect(part, "finish", part.finish(own, buf, context), Done, allowed)
    except (KeyError, RuntimeError) as error:
        _raise_named(error)
    for half in ("aggregated", "open_tensors", "client_state"):
        expect_tensors(part, "finish", getattr(end, half), f"Done({half}=...) with tensors by name")
    return end


def report(context: ClientContext, done: Done, every: Common | None = None) -> Report:
    """Write down what a client update gave; `every` holds what was found out already."""
    more = [t for name, t in done.aggregated.items() if every is None or name not in every.aggregated]
    finite = _all_finite([*more, *done.open_tensors.values()], done.loss if every is None else every.finite)
    update = whole_tensors(done.aggregated).get("update") if every is None else None
    update_norm = 0.0 if update is None else update.norm()
    return Report(
        client=context.client.id,
        samples=context.client.samples if done.samples is None else done.samples,
        steps=context.steps,
        loss=done.loss,
        update_norm=update_norm if every is None else every.update_norm,
        metrics=_plain(done.metrics),
        aggregated=done.aggregated,
        open_tensors=done.open_tensors,
        work=done.work + context.probe_work.samples,
        finite=finite,
        nbytes=tensor_bytes(done.aggregated) + tensor_bytes(done.open_tensors) + value_bytes(done.metrics),
    )


def all_finite(tensor: Tensor, axis: int | None = None) -> Tensor:
    """Say whether all numbers are finite, in one pass: in a sum, what is not finite stays, and nothing overflows."""
    return tensor.sum(axis, dtype=torch.float64).isfinite()


def _all_finite(tensors: Sequence[Tensor], known: Tensor | float) -> Tensor:
    """Check tensors; `known` is a number that must be finite, or whether all others are."""
    finite = torch.as_tensor(known)
    finite = finite if finite.dtype == torch.bool else finite.isfinite()
    for tensor in tensors:
        finite = finite.to(tensor.device) & all_finite(tensor)
    return finite


def _merge_metrics(all_metrics: Sequence[Mapping[str, Value | Tensor]]) -> dict[str, Value | Tensor]:
    merged: dict[str, Value | Tensor] = {}
    for metrics in all_metrics:
        if twice := merged.keys() & metrics.keys():
            raise ValueError(f"two parts report {sorted(twice)}; give one of them another name")
        merged |= {k: v.detach().clone() if isinstance(v, Tensor) else v for k, v in metrics.items()}
    return merged


def _plain(metrics: Mapping[str, Value | Tensor]) -> dict[str, Value | Tensor]:
    """Return numbers as they travel; numpy's own are turned into Python's."""
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in metrics.items()}
    for name, value in plain.items():
        if value.ndim if isinstance(value, Tensor) else not isinstance(value, int | float | str | tuple):
            allowed = "numbers, text, tuples, tensors of one number; others go into `open_tensors` or `aggregated`"
            raise PartError(f"a report says {name} = {describe(value)}; allowed in `metrics`: {allowed}")
    return plain


def _scope_names(of_parts: Mapping[str, Tensors]) -> dict[str, Tensor]:
    """Put what parts gave back under their names."""
    return {k: v for name, tensors in of_parts.items() for k, v in add_prefix(copy_tensors(tensors), name).items()}


def copy_tensors(tensors: Tensors) -> dict[str, Tensor]:
    """Copy out at once: a trainer's buffers serve the next client."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


# ---- what parts may have forgotten -----------------------------------------------------------------------------------


def _expect_like(part: LocalPart, changed: Tensor, logits: Tensor) -> Tensor:
    if isinstance(changed, Tensor) and changed.shape == logits.shape:
        return changed
    allowed = f"a tensor of shape {tuple(logits.shape)}, like the logits it gets"
    raise broken(part, "edit_logits", f"gave {describe(changed)}; allowed: {allowed}")


def _expect_number(part: LocalPart, extra: Tensor) -> Tensor:
    if isinstance(extra, Tensor) and extra.ndim == 0:
        return extra
    raise broken(part, "add_loss", f"gave {describe(extra)}; allowed: a tensor of one number, or None")


def _refuse_edit(part: LocalPart, given: Any) -> None:
    moves = isinstance(part, Optimizer)  # its `step` is called by its `edit_gradient`
    how = "Move `w` in place: w.sub_(...)" if moves else "Change `buf.g` in place: buf.g.mul_(...)"
    expect_nothing(part, "step" if moves else "edit_gradient", given, how)


def _raise_named(error: KeyError | RuntimeError) -> NoReturn:
    """Say which part it was that used what is not there, or put together what does not fit; other errors go on."""
    trace, found = error.__traceback__, None
    while trace is not None:
        part, own = (trace.tb_frame.f_locals.get(name) for name in ("self", "own"))
        if isinstance(part, LocalPart) and isinstance(own, Mapping):
            found = part, own, trace.tb_frame
        trace = trace.tb_next
    if found is not None and isinstance(error, KeyError) and error.args[0] not in found[1]:
        _raise_missing(error, *found)
    if found is not None and type(error) is RuntimeError and SHAPES.search(str(error)):
        _raise_misfit(error, *found)
    raise error


def _raise_missing(error: KeyError, part: LocalPart, own: Tensors, frame: FrameType) -> NoReturn:
    there = {f"`own`, as `{_declares(part)}` declares it": own}
    if isinstance(context := frame.f_locals.get("context"), ClientContext):
        there |= {
            "`context.client_state`, as `declare_client_state` declares it": context.client_state,
            "`context.down`": context.down,
        }
    said = "; ".join(f"{place}: {', '.join(names) or 'nothing'}" for place, names in there.items())
    raise broken(part, frame.f_code.co_name, f"uses {error.args[0]!r}, which is not there. {said}") from error


def _raise_misfit(error: RuntimeError, part: LocalPart, own: Tensors, frame: FrameType) -> NoReturn:
    buf, why = frame.f_locals.get("buf"), str(error).strip().splitlines()[0]
    weights = buf.w if isinstance(buf, Buffers) else frame.f_locals.get("w")  # an optimizer's `step` gets these alone
    shapes = [f'own["{name}"] {tuple(slot.shape)}, as `{_declares(part)}` declares it' for name, slot in own.items()]
    if isinstance(weights, Tensor):
        shapes.append(f"weights and gradient {tuple(weights.shape)}, as Slot((space.P,)) declares it")
    said = f"puts shapes together that do not fit: {why}. There are: {'; '.join(shapes)}"
    raise broken(part, frame.f_code.co_name, said) from error


def _declares(part: LocalPart) -> str:
    return "declare_memory" if isinstance(part, Optimizer) else "declare_slots"
