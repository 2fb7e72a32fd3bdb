"""Reports that come from elsewhere are not trusted: what does not fit is refused, with the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import TypeGuard, cast

import torch
from torch import Tensor

from fedstrata.client.local_step import all_finite
from fedstrata.core.messages import (
    REFUSED,
    Report,
    Task,
    Tensors,
    fast_replace,
    tensor_bytes,
    value_bytes,
    whole_tensors,
)
from fedstrata.core.plan import Plan
from fedstrata.core.wire import unpack, unpack_report
from fedstrata.privacy.frames import RefusedError
from fedstrata.privacy.noise import UpdateNoise
from fedstrata.privacy.protect import hide_figures, protect_report
from fedstrata.remote.report_shapes import compression_of, expected_shapes, gradient_shapes
from fedstrata.remote.transport import LONGEST, SMALL

HUGE = 1e4  # times the length of the model: no training moves it that far
MOST = 1e15  # of anything that a report counts
METRICS = 1 << 16  # bytes of the open numbers of one report, beside those of labels: they all go into the events


def longest_reply(plan: Plan) -> int:
    """Return the bytes that no honest reply of a run exceeds: what a site can have to send grows with the model.

    32 bytes a number are four in double precision: an update or its masked words, and where a chain hands a model on,
    the model with an optimizer's memory. A part's tensors count as often; everything else is small.
    """
    space = plan.space
    declared = [s for part in plan.local.chain.values() for s in part.declare_aggregated(space).values()]
    numbers = space.P + space.Q + sum(int(torch.Size(slot.shape).numel()) for slot in declared)
    return min(SMALL + 32 * numbers, LONGEST)


def check_report(
    data: bytes,
    task: Task,
    plan: Plan,
    model: Tensor,
    masked: bool = False,
    noise: UpdateNoise | None = None,
    hidden: bool = False,
) -> Report:
    """Read a report and refuse it where it cannot be one; sizes and finiteness are found out here.

    Where updates are masked, or stay at their site, a report comes without one. Where they are noised, an update that
    is not finite was replaced at its site, and who had one must not show; under local noise no other number is told.
    Where its loss and the length of its update are `hidden`, they are in the sum alone.
    """
    try:
        report = unpack_report(data)
    except Exception as error:  # whatever bytes can do to a reader
        raise RefusedError(f"its report cannot be read: {type(error).__name__}") from None
    if type(report.client) is not int or report.client != task.client:
        raise RefusedError(f"it reports for client {report.client!r:.40}")
    for name in ("samples", "steps", "nbytes", "received", "work", "seconds"):
        number = getattr(report, name)
        kinds = (int,) if name in ("samples", "steps", "nbytes") else (int, float)
        if not isinstance(number, kinds) or not 0 <= number <= MOST:  # so that NaN is refused, too
            raise RefusedError(f"its report says {name} = {number!r:.40}")
    if not _number(report.loss) or not _number(report.update_norm):
        raise RefusedError("its report has no numbers for its loss and the length of its update")
    _check_shapes(report, plan, task, masked)
    local = noise is not None and noise.local
    if not local:
        _check_metrics(report, task, plan, finite=noise is None)
    finite = all(bool(all_finite(t)) for t in _all(report).values() if t.is_floating_point())
    # Of what stays at its site, only the site can say whether it is finite.
    finite = finite and (noise is not None or ((hidden or isfinite(report.loss)) and bool(report.finite)))
    update = whole_tensors(report.aggregated).get("update") if finite else None
    update_norm = float(update.norm()) if update is not None else float(report.update_norm)
    if update_norm > HUGE * (1.0 + float(model.norm())):
        raise RefusedError(f"its update is {update_norm:.3g} long, which no training gives")
    if noise is not None and update is not None and update_norm > (longest := noise.longest(len(update))) * (1 + 1e-5):
        raise RefusedError(f"its update is {update_norm:.3g} long, and was to be clipped to {longest:.3g}")
    size = tensor_bytes(_all(report)) + value_bytes(report.metrics)
    whole = size + 8 * sum(
        int(torch.Size(shape).numel()) for shape in (expected_shapes(plan, task.kind) or {}).values()
    )
    nbytes = min(max(report.nbytes, size), 2 * whole + 1_000_000)
    report = protect_report(fast_replace(report, finite=finite, update_norm=update_norm, nbytes=nbytes), noise)
    return hide_figures(report) if hidden else report


def unlike(reports: Mapping[int, Report]) -> list[int]:
    """Return the clients whose tensors have other names or shapes than most reports of the step: parts stack them."""
    forms = {client: frozenset((name, tuple(t.shape)) for name, t in _all(r).items()) for client, r in reports.items()}
    usual = Counter(forms.values()).most_common(1)
    return [client for client, form in forms.items() if form != usual[0][0]]


def _check_shapes(report: Report, plan: Plan, task: Task, masked: bool) -> None:
    """Refuse tensors that are not those of a task."""
    shapes: dict[str, tuple[int, ...]] | None = {} if masked else expected_shapes(plan, task.kind)
    told = {name: tuple(tensor.shape) for name, tensor in report.aggregated.items()}
    if (shapes is not None and told != shapes) or told.get("update", (plan.space.P,)) != (plan.space.P,):
        raise RefusedError("its update has another shape than the model")
    if task.kind == "gradient" and told and not compression_of(plan).fits(report.aggregated, "update", plan.space.P):
        raise RefusedError("its update names numbers that the model does not have")
    dtype, chain = plan.local.dtype, plan.local.chain
    declared: dict[str, torch.dtype | None] = {
        f"{name}/{slot}": s.dtype
        for name, part in chain.items()
        for slot, s in part.declare_aggregated(plan.space).items()
    }
    if task.kind == "gradient":
        declared |= {name: kind for name, (_, kind) in gradient_shapes(plan).items()}
    for name, tensor in report.aggregated.items():
        if tensor.dtype != (declared.get(name) or dtype):
            raise RefusedError(f"aggregated tensor {name} comes as {tensor.dtype}, and the run is in {dtype}")
    for name, tensor in report.open_tensors.items():
        if (tensor.is_floating_point() or tensor.is_complex()) and tensor.dtype != dtype:
            raise RefusedError(f"open tensor {name} comes as {tensor.dtype}, and the run is in {dtype}")


def _check_metrics(report: Report, task: Task, plan: Plan, finite: bool) -> None:
    """Refuse what is no plain value, or lacks a number that somebody reads.

    Of the labels that a task names, a client can refuse those and no others.
    """
    for name in {name for part in plan.server_side for name in part.metrics_read(task.kind)} - {REFUSED}:
        if not _number(report.metrics.get(name)):
            raise RefusedError(f"its report does not say what {name} is")
    asked = cast(tuple[int, ...], task.config.get("labels", ()))
    if value_bytes(report.metrics) + sum(map(len, report.metrics)) > METRICS + 8 * len(asked):
        raise RefusedError("its report has more metrics than a report can have")
    for name, value in report.metrics.items():
        if not name.isprintable() or (isinstance(value, str) and not value.isprintable()):
            raise RefusedError("its report has a metric that is no plain text")
        numbers = value if isinstance(value, tuple) else () if isinstance(value, str) else (value,)
        if not all(_number(number) and (isfinite(number) or not finite) for number in numbers):
            raise RefusedError(f"its report says {name:.40} = {value!r:.40}")
    if (labels := task.config.get("labels")) is not None:
        refused = report.metrics.get(REFUSED)
        codes = list(refused) if isinstance(refused, tuple) else [None]
        if any(type(code) is not int for code in codes) or Counter(codes) - Counter(cast(tuple[int, ...], labels)):
            raise RefusedError("it refuses other labels than it was asked for")


def _number(value: object) -> TypeGuard[float]:
    """Say whether a value is a number that floats can hold."""
    return isinstance(value, float) or (isinstance(value, int) and abs(value) <= MOST)


@dataclass(frozen=True)
class Brought:
    """What a site brings to a meeting."""

    what: str
    values: Tensor
    count: float


def read_all_reduce(data: Mapping[str, bytes], masked: bool) -> tuple[dict[str, Brought], dict[str, str]]:
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
        if not (one.values.dtype == torch.int64 if masked else one.values.is_floating_point()):
            strange[name] = "it brings numbers to a meeting of masked words, or words to one of numbers"
        elif (one.what, one.values.shape, one.values.dtype) != kinds.most_common(1)[0][0]:
            strange[name] = "it brings something else to a meeting than the others"
        elif not 0 <= one.count <= MOST or not bool(all_finite(one.values)):
            strange[name] = "what it brings to a meeting is not finite"
    return brought, strange


def _all(report: Report) -> dict[str, Tensor]:
    tensors: Mapping[str, Tensors] = {"aggregated": report.aggregated, "open": report.open_tensors}
    return {f"{half}:{name}": t for half, named in tensors.items() for name, t in named.items()}


def model_of(task: Task) -> Tensor:
    """Return the model that a task brought, to compare lengths with."""
    return task.down.get("params", torch.zeros(1))
