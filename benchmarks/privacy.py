"""What privacy costs: labels behind placeholders, sums behind masks, clusters behind an enclave.

Label masking is measured in CPU seconds of all parties together, from labels to placeholders and totals, with keys,
encryption and signatures. Sizes are those of Stratify's Table IV: of 2, 10 and 100 classes a client holds 1, 5 and 50.
The table's own seconds (unique labels + map + counts, on its authors' machine, encryption not counted) stand beside.
The printed protocol is split into these phases too, and stops looking for labels as section V-E says; it is measured
once, for at 100 classes it takes minutes.
"""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from statistics import median
from time import process_time
from typing import Any

import numpy as np

from benchmarks import _enclave, _secure_sums
from benchmarks._rows import row
from fedstrata.core.errors import RequestError
from fedstrata.privacy.labels.ckks_paper import PrivacyWarning
from fedstrata.privacy.labels.masking import MaskedLabels, Message, Transcript, mask_labels

HOLDS = {2: 1, 10: 5, 100: 50}  # labels of a client, by classes
TABLE_IV = {  # seconds in the paper
    (2, 5): (0.020, 0.8, 0.008),
    (2, 10): (0.020, 0.8, 0.009),
    (2, 20): (0.009, 0.9, 0.010),
    (10, 5): (0.4, 1.3, 0.040),
    (10, 10): (0.5, 1.7, 0.040),
    (10, 20): (0.6, 2.0, 0.050),
    (100, 5): (63.0, 19.0, 0.4),
    (100, 10): (90.0, 22.0, 0.5),
    (100, 20): (102.0, 27.0, 0.6),
}
TIMES = 500.0
Case = tuple[int, int]  # classes, clients
PHASES = {"unique": "unique labels", "map": "map", "sums": "counts"}  # of the printed protocol, as the table has them


@dataclass(frozen=True)
class Size:
    """Which labels are masked, and how often."""

    cases: tuple[Case, ...]
    printed: tuple[Case, ...]  # those at which the printed protocol runs too
    slow: Case  # of the printed protocol, which is compared with
    fast: Case  # of ours
    turns: int


FULL = Size(tuple(TABLE_IV), tuple(TABLE_IV), slow=(100, 5), fast=(100, 20), turns=5)
QUICK = Size(((2, 5), (10, 5)), ((2, 5),), slow=(2, 5), fast=(10, 5), turns=1)


def measure(quick: bool = False) -> list[dict[str, Any]]:
    """Return the cost of label masking, then that of secure sums and of the enclave."""
    return [*_labels(QUICK if quick else FULL), *_secure_sums.rows(quick), *_enclave.rows(quick)]


def versions() -> dict[str, str]:
    """Name what the figures hang on."""
    return {name: version(name) for name in ("cryptography", "tenseal") if find_spec(name)}


def _labels(size: Size) -> list[dict[str, Any]]:
    rows, seconds = [], {}
    _masked("prf", 2, 5)  # imports and first use
    for case in size.cases:
        name = f"{case[0]} classes x {case[1]} clients"
        for mode in ("prf", *(["ckks-paper"] if case in size.printed else [])):
            runs = [_masked(mode, *case) for _ in range(size.turns if mode == "prf" else 1)]
            known, spent = runs[0][1], runs[0][0].spent
            seconds[mode, case] = None if known is None else median(run[0].total for run in runs)
            moved = None if known is None else float(known.bytes_up.sum() + known.bytes_down.sum()) / 1e6
            rows.append(row(f"{name}, {mode}", seconds[mode, case], "CPU s"))
            rows.append(row(f"{name}, {mode}, traffic", moved, "MB"))
        for (step, phase), theirs in zip(PHASES.items(), TABLE_IV[case], strict=True):
            if case in size.printed:
                told = None if known is None else spent[step]
                rows.append(row(f"{name}, ckks-paper, {phase}", told, "CPU s"))
            rows.append(row(f"{name}, the paper's Table IV, {phase}", theirs, "s"))
    slow, fast = seconds["ckks-paper", size.slow], seconds["prf", size.fast]
    ratio = None if slow is None or fast is None else slow / fast
    ours, theirs = (f"{classes} x {clients}" for classes, clients in (size.fast, size.slow))
    name = f"prf at {ours} against ckks-paper at {theirs}, CPU"
    return [*rows, row(name, ratio, "x less", at_least=TIMES)]


class Stopwatch(list[Message]):
    """In place of a list of messages: notes what each step of a protocol took, and forgets the messages."""

    def __init__(self) -> None:
        super().__init__()
        self.spent: Counter[str] = Counter()
        self._last = process_time()

    def append(self, message: Message) -> None:
        """Charge what passed since the last message to the step that this one is of."""
        now = process_time()
        self.spent[message.step] += now - self._last  # type: ignore[assignment]
        self._last = now

    @property
    def total(self) -> float:
        """Return the seconds of all steps."""
        return float(sum(self.spent.values()))


def _masked(mode: str, classes: int, clients: int) -> tuple[Stopwatch, MaskedLabels | None]:
    """Return the CPU seconds of one masking, and what it gave; nothing where the mode's library is missing."""
    rng = np.random.default_rng(0)
    held = [
        {int(label): int(rng.integers(1, 1_000)) for label in rng.choice(classes, HOLDS[classes], replace=False)}
        for _ in range(clients)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)  # that it should not guard anything is what is measured here
        watch = Stopwatch()
        try:
            known = mask_labels(mode, held, rng=rng, transcript=Transcript(watch), classes=classes)
        except RequestError:
            return watch, None
        return watch, known
