"""What crosses the border between server and client, with its size in bytes.

Sizes are declared by the messages themselves, never measured on a wire, so that an engine which sends
nothing (one process, fused steps) accounts for the same traffic as real sites do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedstrata.core.compression import MARK, expand

Value = float | int | str | bool | tuple[int, ...] | tuple[float, ...]
Tensors = Mapping[str, Tensor]
Tag = tuple[int, int]  # (round, step)
Fragment = tuple[int, int]  # (i, n): the i-th of n equal parts of a round
WHOLE: Fragment = (0, 1)
REFUSED = "refused"  # in the metrics of a report: those of the labels it was asked for that a client has no sample of
FIGURES = "figures"  # in a masked sum: loss and length of the update, where no single client's are told
Record = TypeVar("Record")


@dataclass(frozen=True)
class Slot:
    """A tensor declared before it exists: sizes trainer buffers, client state and messages.

    Attributes
    ----------
    shape
        Of the tensor; `()` is one number.
    dtype
        None: the run's float type.

    Examples
    --------
    >>> from fedstrata import Slot
    >>> {"velocity": Slot((1000,)), "seen": Slot()}
    {'velocity': Slot(shape=(1000,), dtype=None), 'seen': Slot(shape=(), dtype=None)}
    """

    shape: tuple[int, ...] = ()
    dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.shape, tuple) or not isinstance(self.dtype, torch.dtype | None):
            said = f"Slot({self.shape!r:.40}{'' if self.dtype is None else f', {self.dtype!r:.40}'})"
            raise ValueError(f"{said}: a slot has a shape, such as (10,), and a dtype of torch; Slot() is one number")


@dataclass(frozen=True)
class Task:
    """Server to client: run one program.

    Attributes
    ----------
    client
        Its id.
    round
        Counted from 0.
    step
        Exchanges before this one in the round.
    kind
        The program: "train", or one that a part brings in `programs`.
    turn
        Exchanges of the same kind before this one. It keys random draws, so that a probe never shifts what training
        draws.
    part
        Where in the round this is, (i, n): moves learning rates.
    config
        Values for this client, from its `Ask`.
    down
        Tensors "params" and "buffers", and broadcasts of server steps; shared by all tasks of the step.
    accepted
        (round, step) of this client's last report that counted: its state starts from there.
    durable
        The same as of the last checkpoint: a site keeps that version too.
    """

    client: int
    round: int
    step: int
    kind: str = "train"
    turn: int = 0
    part: Fragment = WHOLE
    config: Mapping[str, Value] = field(default_factory=dict)
    down: Tensors = field(default_factory=dict)
    accepted: Tag | None = None
    durable: Tag | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors and of the numbers in `config`; the envelope is free."""
        return tensor_bytes(self.down) + value_bytes(self.config)


@dataclass(frozen=True)
class Report:
    """Client to server, split by who may read what.

    The open envelope (samples, steps, loss, length of the update) comes with every report and is not charged;
    `metrics` holds what parts add to it. Parts at the server see reports whose numbers are read: plain floats.

    Attributes
    ----------
    client
        Its id.
    samples
        Training samples that the report stands for.
    steps
        Local steps.
    loss
        Mean cross-entropy over the samples trained on; of steps that were run as one, over everybody's.
    update_norm
        Length of the update; NaN where many updates were run as one and nobody computed the single ones.
    metrics
        Open numbers that local parts added, by name; in `events.jsonl` by client.
    aggregated
        Tensors that reach the server only inside `Sums`: "update", and what parts declared.
    open_tensors
        Tensors that the server sees one by one; refused under masked aggregation.
    finite
        Whether everything in this report is.
    nbytes
        Size of the whole report, declared by the client.
    received
        Bytes that this client got during the client update, beside the task.
    work
        Samples that went through the model, forward and back.
    seconds
        From asking to having it, on the virtual clock.
    """

    client: int
    samples: int
    steps: int = 0
    loss: float | Tensor = 0.0  # a number may stay a 0-d tensor until the engine reads all of a step at once
    update_norm: float | Tensor = 0.0
    metrics: Mapping[str, Value | Tensor] = field(default_factory=dict)
    aggregated: Tensors = field(default_factory=dict)
    open_tensors: Tensors = field(default_factory=dict)
    finite: bool | Tensor = True
    nbytes: int = 0
    received: int = 0
    work: float = 0.0
    seconds: float = 0.0

    def read(self, known: Mapping[int, Any] | None = None) -> Report:
        """Read every number that is still a tensor.

        Parameters
        ----------
        known
            What some of the tensors hold, by their `id`; None: each is read on its own.

        Returns
        -------
        Report
        """

        def value(v: Any) -> Any:
            return v if not isinstance(v, Tensor) else v.item() if known is None else known[id(v)]

        return fast_replace(
            self,
            loss=float(value(self.loss)),
            update_norm=float(value(self.update_norm)),
            finite=bool(value(self.finite)),
            metrics={k: value(v) for k, v in self.metrics.items()},
        )

    @property
    def unread(self) -> list[Tensor]:
        """Numbers that are still tensors."""
        return [v for v in (self.loss, self.update_norm, self.finite, *self.metrics.values()) if isinstance(v, Tensor)]

    def to(self, device: str) -> Report:
        """Move the tensors.

        Parameters
        ----------
        device
            As torch names it.

        Returns
        -------
        Report
        """
        aggregated = {k: v.to(device) for k, v in self.aggregated.items()}
        return fast_replace(
            self, aggregated=aggregated, open_tensors={k: v.to(device) for k, v in self.open_tensors.items()}
        )

    def open(self) -> Report:
        """Leave out what the server must not see.

        Returns
        -------
        Report
            Without `aggregated`.
        """
        return fast_replace(self, aggregated={})


@dataclass(frozen=True)
class Sums:
    """What the server learns of the aggregated tensors.

    Attributes
    ----------
    total
        By name, the sum of weight_k * aggregated_k[name] over the clients k.
    weight
        Sum of the weights.
    count
        Clients in the sum.
    reports
        Open halves of the reports that were summed.
    shares
        Weight of each client, where there are any.
    fused
        Many steps were run as one: this is the outcome of all of them.

    Examples
    --------
    >>> import torch
    >>> from fedstrata import Sums
    >>> Sums({"update": torch.tensor([2.0, 6.0])}, weight=4.0, count=2).mean("update").tolist()
    [0.5, 1.5]
    """

    total: Tensors
    weight: float
    count: int
    reports: Sequence[Report] = ()
    shares: Mapping[int, float] = field(default_factory=dict)
    fused: bool = False

    def mean(self, name: str) -> Tensor:
        """Return the weighted mean over the clients that arrived.

        Parameters
        ----------
        name
            "update", or what a part declared.

        Returns
        -------
        Tensor
        """
        return self.total[name] / self.weight

    def scope(self, part: str) -> Sums:
        """Show a part its own tensors under its own names, beside the common ones.

        Parameters
        ----------
        part
            The name of the part in the plan.

        Returns
        -------
        Sums
        """
        return fast_replace(self, total=scope(self.total, part))


def fast_replace(record: Record, **values: Any) -> Record:
    """Return a copy of a frozen dataclass with some fields changed; nothing is checked or worked out again.

    `dataclasses.replace` calls the constructor; a round of tiny clients revises hundreds of messages, and would feel
    it.
    """
    copy = object.__new__(type(record))
    copy.__dict__.update(record.__dict__, **values)
    return copy


def read(reports: Sequence[Report]) -> list[Report]:
    """Read what is still a tensor in all of them at once: on a GPU, every single look waits for the device."""
    tensors = [t for report in reports for t in report.unread]
    if not tensors or not tensors[0].is_cuda:
        return [report.read() for report in reports]
    alike: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for tensor in tensors:
        alike.setdefault((tensor.device, tensor.dtype), []).append(tensor)
    known: dict[int, Any] = {}
    for own in alike.values():
        known |= zip(map(id, own), torch.stack(own).tolist(), strict=True)

    return [report.read(known) for report in reports]


def weighted_sum(reports: Mapping[int, Report], weights: Mapping[int, float]) -> Sums:
    """Add reports up in the order of `weights`, so that no timing changes a bit; where the first one lies."""
    total: dict[str, Tensor] = {}
    for client, weight in weights.items():
        for name, tensor in whole_tensors(reports[client].aggregated).items():
            if name in total:  # others may come from another GPU
                total[name].add_(tensor.to(total[name].device), alpha=weight)
            else:
                total[name] = tensor * weight
    return Sums(total, float(sum(weights.values())), len(weights), shares=dict(weights))


def whole_tensors(tensors: Tensors) -> Tensors:
    """Return tensors as they were before some of them were compressed."""
    return expand(tensors) if any(MARK in name for name in tensors) else tensors


def shorten(tensor: Tensor, most: float) -> Tensor:
    """Return a tensor scaled to a length of at most `most`; a shorter one stays as it is."""
    length = float(tensor.double().norm())
    return tensor * (most / length) if length > most else tensor


def scope(tensors: Tensors, part: str) -> dict[str, Tensor]:
    """Keep common names and a part's own; `part/name` becomes `name`, other parts' names disappear."""
    own = {k.removeprefix(f"{part}/"): v for k, v in tensors.items() if k.startswith(f"{part}/")}
    return {k: v for k, v in tensors.items() if "/" not in k} | own


def to_host(tensor: Tensor) -> Tensor:
    """Bring a tensor to the host, and wait for it."""
    if not tensor.is_cuda:
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor)


def to_host_aside(tensors: Tensors) -> Tensors:
    """Bring finished tensors to the host beside whatever a GPU is doing, which does not wait and is not waited for."""
    away = [t.device for t in tensors.values() if t.is_cuda]
    if not away:
        return tensors
    # Streams come from a pool of 32, one for each priority: of another one, this is never that of a worker who records.
    stream = torch.cuda.Stream(away[0], priority=-1)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        here = {
            name: torch.empty(t.shape, dtype=t.dtype, pin_memory=True).copy_(t, non_blocking=True) if t.is_cuda else t
            for name, t in tensors.items()
        }
    stream.synchronize()
    return here


def add_prefix(tensors: Tensors, part: str) -> dict[str, Tensor]:
    """Undo `scope` for what a part gives back."""
    return {f"{part}/{name}": tensor for name, tensor in tensors.items()}


def tensor_bytes(tensors: Tensors) -> int:
    """Return the bytes that the tensors take on a wire."""
    return sum(t.numel() * t.element_size() for t in tensors.values())


def value_bytes(values: Mapping[str, object]) -> int:
    """Charge 8 bytes for each number, and a text by its length."""
    return sum(len(v) * (1 if isinstance(v, str) else 8) if isinstance(v, str | tuple) else 8 for v in values.values())
