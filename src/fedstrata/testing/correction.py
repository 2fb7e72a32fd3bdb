"""`check_correction`: whether the local step of a part can be captured once and replayed for every client."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fedstrata.client.trainer import Trainer
from fedstrata.core.client_parts import Client, ClientPlan, LocalPart, Optimizer
from fedstrata.core.contract import calling_part
from fedstrata.core.messages import Report, Task, Tensors, add_prefix
from fedstrata.core.part_class import leaves_alone
from fedstrata.core.server_parts import ServerStep
from fedstrata.runs.session import Session
from fedstrata.testing.conformance import check_part, check_run
from fedstrata.testing.tiny import session_of

# Operations whose result lies on the host, or whose output's shape depends on data.
HOST_READS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "unique", "bincount")


def check_correction(part: LocalPart, optimizer: bool = False) -> None:
    """Check that a correction or a local optimizer can be captured once and replayed for every client.

    Its local step must not read from the device, do the same whatever the batch, give what it declares, leave nothing
    behind for the next client, and count padded samples for nothing; and runs with it are deterministic and resumable.

    Parameters
    ----------
    part
        An object of a part of your own.
    optimizer
        True: it is an `Optimizer`.

    Raises
    ------
    AssertionError
        With what is wrong.

    Examples
    --------
    >>> import fedstrata
    >>> fedstrata.check_correction(fedstrata.make_part("corrections", "clip", norm=1.0))
    """
    check_part(part)
    work = session_of()
    plain = work.plan.local
    local = replace(plain, optimizer=cast(Optimizer, part)) if optimizer else replace(plain, parts={"checked": part})
    _check_trace(work, local, part)
    _check_declared(work, local, "optimizer" if optimizer else "checked", part)
    assert isinstance(part, ServerStep) or not leaves_alone(type(part), LocalPart), (
        f"{_name(part)} does nothing: it has none of fill, edit_logits, add_loss, observe, edit_gradient, finish"
    )
    _check_forgetful(work, local, part)
    _check_padding(work, local, part)
    if optimizer:
        moved = float(_run_task(_trainer(work, local, pad=False), work, 1)[0].read().update_norm)
        assert moved > 0, f"{_name(part)}: `move` leaves the weights where they were; change `w` in place: w.sub_(...)"
    check_run({"train.optimizer": part} if optimizer else {"method.corrections": [part]})


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
            self.reads.append(f"{calling_part()}: {name}")
        self.operations.append((name, *(tuple(t.shape) for t in tensors)))
        return func(*args, **(kwargs or {}))


def _trainer(work: Session, local: ClientPlan, pad: bool) -> Trainer:
    train = work.federation.train
    return Trainer(local, train.x, train.y, int(work.federation.train_split.sizes.max()), pad=pad)


def _run_task(
    trainer: Trainer, work: Session, client: int, client_state: Tensors | None = None
) -> tuple[Report, Tensors]:
    state = work.initial_state()
    down = state.model.wire()
    for name, part in trainer.local.chain.items():
        if isinstance(part, ServerStep):
            view = work.plan.view(work.client_info, 0, lambda *_, **__: None)
            down |= add_prefix(part.broadcast(part.init(view, state.model)), name)
    own: Client = work.federation.client(client)
    return trainer.run_task(own, Task(client, 0, 0, down=down), client_state or {})


def _name(part: LocalPart) -> str:
    return type(part).__name__


def _check_trace(work: Session, local: ClientPlan, part: LocalPart) -> None:
    trainer, traces = _trainer(work, local, pad=True), dict[tuple[int, bool], list[Any]]()
    step, places = trainer.step, set()

    def traced(width: int, full: bool = True) -> None:
        with Trace() as trace:
            step(width, full)
        assert not trace.reads, (
            f"the local step reads the device from the host: {', '.join(sorted(set(trace.reads)))}; no float(), "
            ".item(), `if` on a tensor or boolean mask there: use torch.where, or a slot that `fill` writes"
        )
        traces.setdefault((width, full), []).append(trace.operations)
        places.add(
            (
                trainer.buf.w.data_ptr(),
                trainer.buf.g.data_ptr(),
                *(t.data_ptr() for o in trainer.own.values() for t in o.values()),
            )
        )

    trainer.step = traced  # type: ignore[method-assign]
    for client in (1, 0, 5):  # of different sizes: full batches and tails
        _run_task(trainer, work, client)
    for (width, _), same in traces.items():
        different = sum(operations != same[0] for operations in same)
        said = f"{different} of {len(same)} of width {width} differ"
        assert not different, f"{_name(part)}: the local step is not the same for every batch: {said}"
    assert len(places) == 1, f"{_name(part)}: the local step moved its buffers; write into them instead"


def _check_declared(work: Session, local: ClientPlan, name: str, part: LocalPart) -> None:
    trainer = _trainer(work, local, pad=False)
    report, client_state = _run_task(trainer, work, 1)
    sent = {k.split("/")[1]: tuple(t.shape) for k, t in report.aggregated.items() if k.startswith(f"{name}/")}
    declared = {k: s.shape for k, s in part.declare_aggregated(trainer.space).items()}
    assert sent == declared, f"{_name(part)}: `finish` sent {sent}, but `declare_aggregated` declares {declared}"
    kept = {k.split("/")[1]: tuple(t.shape) for k, t in client_state.items() if k.startswith(f"{name}/")}
    declared = {k: s.shape for k, s in part.declare_client_state(trainer.space).items()}
    assert kept == declared, f"{_name(part)}: `finish` kept {kept}, but `declare_client_state` declares {declared}"
    buffers = {t.data_ptr() for o in trainer.own.values() for t in o.values() if t.numel()}
    for key, tensor in {**report.aggregated, **client_state}.items():
        assert tensor.data_ptr() not in buffers, f"{key} is the trainer's own buffer; the next client will overwrite it"


def _check_forgetful(work: Session, local: ClientPlan, part: LocalPart) -> None:
    """Nothing of one client may reach the next through the trainer."""
    trainer = _trainer(work, local, pad=False)
    _run_task(trainer, work, 4)
    used = _told(*_run_task(trainer, work, 1))
    for name, value in _told(*_run_task(_trainer(work, local, pad=False), work, 1)).items():
        assert value.isfinite().all(), (  # first: nan does not equal itself
            f"{_name(part)}: {name} is not finite after one client update; look for a division by 0 or a log of 0"
        )
        assert torch.equal(value, used[name]), (
            f"{_name(part)}: {name} depends on the client before; clear slots in `fill`"
        )


def _check_padding(work: Session, local: ClientPlan, part: LocalPart) -> None:
    """Check that a padded tail counts for nothing."""
    for client in (0, 1):
        padded = _told(*_run_task(_trainer(work, local, pad=True), work, client))
        for name, value in _told(*_run_task(_trainer(work, local, pad=False), work, client)).items():
            gap = float((value - padded[name]).abs().max()) if value.numel() else 0.0
            assert gap < 1e-9, f"{_name(part)}: padding changed {name} by {gap:.2g}; respect `batch.weight`"


def _told(report: Report, client_state: Tensors) -> dict[str, torch.Tensor]:
    """Return everything a client update gives back, as tensors."""
    read = report.read()
    numbers = {
        "loss": read.loss,
        "update_norm": read.update_norm,
        **{k: v for k, v in read.metrics.items() if not isinstance(v, str)},
    }
    return {
        **read.aggregated,
        **read.open_tensors,
        **client_state,
        **{k: torch.tensor(v).double() for k, v in numbers.items()},
    }
