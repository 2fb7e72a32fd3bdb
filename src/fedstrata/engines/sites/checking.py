"""Reports that come from elsewhere are not trusted: what does not fit is refused, with the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from fedstrata.local_step import all_finite
from fedstrata.messages import Report, Task, Tensors, tensor_bytes, value_bytes
from fedstrata.plan import Plan
from fedstrata.privacy.frames import RefusedError
from fedstrata.privacy.guarded import NOT_TOLD
from fedstrata.privacy.noising import Noise
from fedstrata.revised import revised
from fedstrata.wire import unpack, unpack_report

HUGE = 1e4  # times the length of the model: no training moves it that far


def expected(plan: Plan, kind: str) -> dict[str, tuple[int, ...]] | None:
    """Give the shapes of what a training report sums, by name; None where the kind of task decides."""
    if kind == "gradient":
        return {"update": (plan.space.P,)}
    if kind != "train":
        return None
    space = plan.space
    shapes: dict[str, tuple[int, ...]] = {"update": (space.P,)}
    if space.Q:
        shapes["buffers"] = (space.Q,)
    for name, part in plan.local.chain.items():
        shapes |= {f"{name}/{slot}": tuple(s.shape) for slot, s in part.up(space).items()}
    return dict(sorted(shapes.items()))


def checked(
    data: bytes, task: Task, plan: Plan, model: Tensor, masked: bool = False, noise: Noise | None = None
) -> Report:
    """Read a report and refuse it where it cannot be one; sizes and finiteness are found out here.

    Where updates are masked, a report comes without one. Where they are noised, an update that is not finite was
    replaced at its site, and who had one must not show; under local noise no other number is told.
    """
    try:
        report = unpack_report(data)
    except Exception as error:  # whatever bytes can do to a reader
        raise RefusedError(f"its report cannot be read: {type(error).__name__}") from None
    if report.client != task.client:
        raise RefusedError(f"it reports for client {report.client}")
    for name in ("samples", "steps", "work", "seconds"):
        number = getattr(report, name)
        if not isinstance(number, int | float) or not isfinite(number) or number < 0:
            raise RefusedError(f"its report says {name} = {number}")
    shapes: dict[str, tuple[int, ...]] | None = {} if masked else expected(plan, task.kind)
    if shapes is not None and {k: tuple(t.shape) for k, t in report.summed.items()} != shapes:
        raise RefusedError("its update has another shape than the model")
    for name, tensor in _all(report).items():
        if tensor.is_floating_point() and tensor.dtype != plan.local.dtype:
            raise RefusedError(f"{name} comes as {tensor.dtype}, and the run is in {plan.local.dtype}")
    finite = all(bool(all_finite(t)) for t in _all(report).values() if t.is_floating_point())
    finite = finite and (noise is not None or isfinite(report.loss))
    update = report.summed.get("update")
    drift = float(update.norm()) if update is not None and finite else float(report.drift)
    if drift > HUGE * (1.0 + float(model.norm())):
        raise RefusedError(f"its update is {drift:.3g} long, which no training gives")
    size = tensor_bytes(_all(report)) + value_bytes(report.meta)
    whole = size + 8 * sum(int(torch.Size(shape).numel()) for shape in (expected(plan, task.kind) or {}).values())
    if noise is not None and noise.local:
        report, drift = revised(report, loss=NOT_TOLD, meta={}), NOT_TOLD
    return revised(report, finite=finite, drift=drift, nbytes=min(max(report.nbytes, size), 2 * whole + 1_000_000))


@dataclass(frozen=True)
class Brought:
    """What a site brings to a meeting."""

    what: str
    values: Tensor
    count: float


def read_meeting(data: Mapping[str, bytes], masked: bool) -> tuple[dict[str, Brought], dict[str, str]]:
    """Read what sites bring to a meeting, numbers or masked words; give also why some cannot take part in it."""
    brought, strange = dict[str, Brought](), dict[str, str]()
    for name, told in data.items():
        try:
            header, tensors = unpack(told)
            brought[name] = Brought(str(header["what"]), tensors["values"], float(header["count"]))
        except Exception as error:  # whatever bytes can do to a reader
            strange[name] = f"what it brings to a meeting cannot be read: {type(error).__name__}"
    kinds = Counter((one.what, one.values.shape, one.values.dtype) for one in brought.values())
    for name, one in list(brought.items()):
        if (one.what, one.values.shape, one.values.dtype) != kinds.most_common(1)[0][0]:
            strange[name] = "it brings something else to a meeting than the others"
        elif masked != (one.values.dtype == torch.int64):
            strange[name] = "it brings numbers to a meeting of masked words, or words to one of numbers"
        elif not isfinite(one.count) or one.count < 0 or not (masked or bool(all_finite(one.values))):
            strange[name] = "what it brings to a meeting is not finite"
    return brought, strange


def _all(report: Report) -> dict[str, Tensor]:
    tensors: Mapping[str, Tensors] = {"summed": report.summed, "shown": report.shown}
    return {f"{half}:{name}": t for half, named in tensors.items() for name, t in named.items()}


def model_of(task: Task) -> Tensor:
    """Give the model that a task brought, to compare lengths with."""
    return task.down.get("params", torch.zeros(1))
