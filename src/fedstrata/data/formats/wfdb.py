"""PhysioNet's WFDB records, as far as the MIT-BIH databases need them: header, signals of format 212, annotations.

Moody, WFDB Applications Guide, header(5), signal(5), annot(5): https://physionet.org/physiotools/wag/
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from fedstrata.core.errors import RequestError

SKIP, NUM, SUB, CHN, AUX = 59, 60, 61, 62, 63  # words of an annotation file that are no annotation


@dataclass(frozen=True)
class Signal:
    """One signal of a record, as its header says."""

    format: str
    checksum: int | None
    lead: str


@dataclass(frozen=True)
class Header:
    """What the header of a record says."""

    frequency: float
    samples: int | None
    signals: tuple[Signal, ...]


def read_header(data: bytes, name: str) -> Header:
    """Read a `.hea` file."""
    lines = [line.strip() for line in data.decode("latin-1").splitlines()]
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    try:
        count = int(rows[0][1])
        frequency = float(re.split(r"[/(]", rows[0][2])[0]) if len(rows[0]) > 2 else 250.0  # the format's default
        samples = int(rows[0][3]) if len(rows[0]) > 3 and int(rows[0][3]) else None
        signals = tuple(
            Signal(row[1], int(row[6]) if len(row) > 6 else None, " ".join(row[8:])) for row in rows[1 : 1 + count]
        )
    except (IndexError, ValueError):
        raise RequestError(f"{name} is not the header of a WFDB record") from None
    if len(signals) != count or count < 1:
        raise RequestError(f"{name} is truncated: {len(signals)} of {count} signals")
    return Header(frequency, samples, signals)


def read_212(data: bytes, header: Header, name: str) -> np.ndarray:
    """Read a `.dat` file of format 212: pairs of 12-bit numbers in three bytes. Gives [samples, signals]."""
    if strange := {s.format for s in header.signals} - {"212"}:
        raise RequestError(f"{name} has format {sorted(strange)[0]}; only 212 is known")
    signals = len(header.signals)
    values = len(data) * 2 // 3
    wanted = values if header.samples is None else header.samples * signals
    if values < wanted:
        raise RequestError(f"{name} is truncated: {values // signals} of {header.samples} samples")
    triples = np.frombuffer(data + bytes(-len(data) % 3), np.uint8).reshape(-1, 3).astype(np.int16)
    pairs = np.stack([triples[:, 0] | (triples[:, 1] & 0x0F) << 8, triples[:, 2] | (triples[:, 1] & 0xF0) << 4], axis=1)
    signed = np.where(pairs > 2047, pairs - 4096, pairs).reshape(-1)
    samples = signed[: wanted - wanted % signals].reshape(-1, signals)
    for signal, column in zip(header.signals, samples.T, strict=True):
        total = int(column.sum(dtype=np.int64))
        if signal.checksum is not None and (total - signal.checksum) % 65536:
            raise RequestError(f"{name} is damaged: the checksum of lead {signal.lead} does not fit its header")
    return samples


def read_annotations(data: bytes, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Read a `.atr` file in MIT format: sample numbers and codes of all annotations."""
    if len(data) % 2:
        raise RequestError(f"{name} is truncated")
    words = np.frombuffer(data, "<u2").tolist()
    times: list[int] = []
    codes: list[int] = []
    at = now = 0
    while at < len(words):
        code, value = words[at] >> 10, words[at] & 0x3FF
        at += 1
        if code == value == 0:
            return np.array(times, dtype=np.int64), np.array(codes, dtype=np.int64)
        if code == SKIP:  # the interval does not fit: it follows, high word first
            if at + 2 > len(words):
                break
            step = words[at] << 16 | words[at + 1]
            now += step - (1 << 32) * (step >> 31)
            at += 2
        elif code == AUX:
            at += (value + 1) // 2
        elif code not in (NUM, SUB, CHN):
            now += value
            times.append(now)
            codes.append(code)
    raise RequestError(f"{name} is truncated: it has no end mark")
