"""`check_local_part`: can the local step of a part be captured once and replayed for every client?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fedstrata.client.trainer import Lane
from fedstrata.core.client_parts import Client, Local, LocalPart, Optimizer
from fedstrata.core.messages import Report, Task, Tensors, prefixed
from fedstrata.core.server_parts import ServerPart
from fedstrata.runs.session import Work
from fedstrata.testing.conformance import check_part, check_run
from fedstrata.testing.worlds import work_of

# Operations whose result lies on the host, or whose output's shape depends on data.
HOST_READS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "unique", "bincount")


def check_local_part(part: LocalPart, optimizer: bool = False) -> None:
    """Check a correction or meter, or a local optimizer; raises AssertionError with what is wrong."""
    check_part(part)
    work = work_of()
    plain = work.plan.local
    local = replace(plain, optimizer=cast(Optimizer, part)) if optimizer else replace(plain, parts={"checked": part})
    _check_trace(work, local)
    _check_declared(work, local, "optimizer" if optimizer else "checked", part)
    _check_forgetful(work, local)
    _check_padding(work, local)
    check_run({"train.optimizer": part} if optimizer else {"method.correct": [part]})


class Trace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records every operation with the shapes and addresses it touches."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[tuple[Any, ...]] = []
        self.reads: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note an operation, then do it."""
        name = func.overloadpacket.__name__
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        masks = [i for a in args if isinstance(a, list | tuple) for i in a if getattr(i, "dtype", None) == torch.bool]
        if name in HOST_READS or (name.startswith("index") and masks):
            self.reads.append(name)
        self.operations.append((name, *(tuple(t.shape) for t in tensors)))
        return func(*args, **(kwargs or {}))


def _lane(work: Work, local: Local, pad: bool) -> Lane:
    train = work.federation.train
    return Lane(local, train.x, train.y, int(work.federation.train_split.sizes.max()), pad=pad)


def _visit(lane: Lane, work: Work, client: int, keep: Tensors | None = None) -> tuple[Report, Tensors]:
    state = work.fresh()
    down = state.model.wire()
    for name, part in lane.local.chain.items():
        if isinstance(part, ServerPart):
            view = work.plan.view(work.roster, 0, lambda *_, **__: None)
            down |= prefixed(part.broadcast(part.init(view, state.model)), name)
    own: Client = work.federation.client(client)
    return lane.visit(own, Task(client, 0, 0, down=down), keep or {})


def _check_trace(work: Work, local: Local) -> None:
    lane, traces = _lane(work, local, pad=True), dict[int, list[Any]]()
    step, places = lane.step, set()

    def traced(width: int) -> None:
        with Trace() as trace:
            step(width)
        assert not trace.reads, f"the local step reads the device from the host: {sorted(set(trace.reads))}"
        traces.setdefault(width, []).append(trace.operations)
        places.add(
            (
                lane.buf.w.data_ptr(),
                lane.buf.g.data_ptr(),
                *(t.data_ptr() for o in lane.own.values() for t in o.values()),
            )
        )

    lane.step = traced  # type: ignore[method-assign]
    for client in (1, 0, 5):  # of different sizes: full batches and tails
        _visit(lane, work, client)
    for width, same in traces.items():
        different = sum(operations != same[0] for operations in same)
        said = f"{different} of {len(same)} of width {width} differ"
        assert not different, f"the local step is not the same for every batch: {said}"
    assert len(places) == 1, "the local step moved its buffers; write into them instead"


def _check_declared(work: Work, local: Local, name: str, part: LocalPart) -> None:
    lane = _lane(work, local, pad=False)
    report, keep = _visit(lane, work, 1)
    sent = {k.split("/")[1]: tuple(t.shape) for k, t in report.summed.items() if k.startswith(f"{name}/")}
    declared = {k: s.shape for k, s in part.up(lane.space).items()}
    assert sent == declared, f"`finish` sent {sent}, but `up` declares {declared}"
    kept = {k.split("/")[1]: tuple(t.shape) for k, t in keep.items() if k.startswith(f"{name}/")}
    declared = {k: s.shape for k, s in part.keep(lane.space).items()}
    assert kept == declared, f"`finish` kept {kept}, but `keep` declares {declared}"
    buffers = {t.data_ptr() for o in lane.own.values() for t in o.values() if t.numel()}
    for key, tensor in {**report.summed, **keep}.items():
        assert tensor.data_ptr() not in buffers, f"{key} is the lane's own buffer; the next client will overwrite it"


def _check_forgetful(work: Work, local: Local) -> None:
    """Nothing of one client may reach the next through the lane."""
    lane = _lane(work, local, pad=False)
    _visit(lane, work, 4)
    used = _told(*_visit(lane, work, 1))
    for name, value in _told(*_visit(_lane(work, local, pad=False), work, 1)).items():
        assert torch.equal(value, used[name]), f"{name} depends on the client before; clear slots in `fill`"


def _check_padding(work: Work, local: Local) -> None:
    """A padded tail must count for nothing."""
    for client in (0, 1):
        padded = _told(*_visit(_lane(work, local, pad=True), work, client))
        for name, value in _told(*_visit(_lane(work, local, pad=False), work, client)).items():
            gap = float((value - padded[name]).abs().max()) if value.numel() else 0.0
            assert gap < 1e-9, f"padding changed {name} by {gap:.2g}; respect `batch.weight`"


def _told(report: Report, keep: Tensors) -> dict[str, torch.Tensor]:
    """Give everything a visit gives back, as tensors."""
    read = report.read()
    numbers = {"loss": read.loss, "drift": read.drift, **{k: v for k, v in read.meta.items() if not isinstance(v, str)}}
    return {**read.summed, **read.shown, **keep, **{k: torch.tensor(v).double() for k, v in numbers.items()}}
