"""Tasks and reports as bytes: a JSON header, then tensors in safetensors form. Nothing is pickled."""

from __future__ import annotations

import json
from typing import Any

from safetensors.torch import load, save

from fedstrata.core.messages import Report, Tag, Task, Tensors, Value


def pack(header: dict[str, Any], tensors: Tensors) -> bytes:
    """Join a header and named tensors."""
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + save({k: v.contiguous().cpu() for k, v in tensors.items()})


def unpack(data: bytes) -> tuple[dict[str, Any], Tensors]:
    """Undo `pack`."""
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + size]), load(data[8 + size :])


def pack_task(task: Task) -> bytes:
    """Write a task."""
    names = ("client", "round", "step", "kind", "turn", "part", "accepted", "durable")
    header = {name: getattr(task, name) for name in names}
    return pack(header | {"config": dict(task.config)}, task.down)


def unpack_task(data: bytes) -> Task:
    """Read a task."""
    header, down = unpack(data)
    return Task(
        client=header["client"],
        round=header["round"],
        step=header["step"],
        kind=header["kind"],
        turn=header["turn"],
        part=(header["part"][0], header["part"][1]),
        config=_values(header["config"]),
        down=down,
        accepted=_tag(header["accepted"]),
        durable=_tag(header["durable"]),
    )


def pack_report(report: Report) -> bytes:
    """Write a report, whole."""
    read = report.read()
    header = {
        name: getattr(read, name)
        for name in (
            "client",
            "samples",
            "steps",
            "loss",
            "update_norm",
            "finite",
            "nbytes",
            "received",
            "work",
            "seconds",
        )
    }
    tensors = {f"aggregated:{k}": v for k, v in read.aggregated.items()} | {
        f"open:{k}": v for k, v in read.open_tensors.items()
    }
    return pack(header | {"metrics": dict(read.metrics)}, tensors)


def unpack_report(data: bytes) -> Report:
    """Read a report."""
    header, tensors = unpack(data)

    def half(name: str) -> Tensors:
        return {k.removeprefix(f"{name}:"): v for k, v in tensors.items() if k.startswith(f"{name}:")}

    return Report(
        **(header | {"metrics": _values(header["metrics"])}), aggregated=half("aggregated"), open_tensors=half("open")
    )


def _values(values: dict[str, Any]) -> dict[str, Value]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}  # JSON has no tuples


def _tag(tag: Any) -> Tag | None:
    return None if tag is None else (tag[0], tag[1])
