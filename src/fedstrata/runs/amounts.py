"""Amounts as people read them: shares in percent, bytes, durations, what was spent of privacy."""

from __future__ import annotations

import math

DIGITS = 10  # of a figure that count: those behind follow from the order in which it was summed up


def write_share(value: float) -> str:
    """Write a share in percent; two that differ in nothing but how they were rounded are written alike."""
    return f"{100 * round(value, DIGITS):.1f}"


def write_epsilon(epsilon: float | None) -> str:
    """Write what was spent of privacy in three digits, rounded up: it is a bound. Without noise there is none."""
    if epsilon is None or not math.isfinite(epsilon):
        return "infinite: there is no noise"
    if epsilon <= 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(epsilon)) - 2)
    return f"{math.ceil(epsilon / unit) * unit:.3g}"


def write_bytes(amount: float) -> str:
    """Write bytes in a unit that leaves few digits."""
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:,.3g} TB"


def write_seconds(amount: float) -> str:
    """Write a duration in a unit that leaves few digits."""
    if amount < 120:
        return f"{amount:.3g} s"
    return f"{amount / 60:.3g} min" if amount < 7200 else f"{amount / 3600:,.3g} h"
