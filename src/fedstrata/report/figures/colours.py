"""Which colour a line has: a method has the same one in every figure of every report, board and notebook.

Colours are Okabe and Ito's, without black, which vanishes on dark paper, and yellow, which does on white; violet and
brown are added, as far from the others as those are from each other, whatever colours a reader sees.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any
from zlib import crc32

from fedstrata.config.naming import folder_name

LINES = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#9048F0", "#56B4E9", "#CC79A7", "#904830")
DASHES = ("solid", "dash", "dot", "dashdot")
SLOTS = len(LINES) * len(DASHES)  # lines that can be told apart
KNOWN = (  # the place of a name gives its line, so new names go to the end; a column has one colour: none of two that
    # are often compared
    *("fedavg", "fedbss", "terraform", "scaffold", "strata", "stratify-batch", "flips", "fedpbs"),
    *("stratify-single", "fedadam", "feddyn", "fednova", "moon", "fedprox", "oort", "power-of-choice"),
    *("fedsgd", "fedadagrad", "fedlc", "fedrs", "fedexp", "sfl", "balanced-labels", "fedyogi"),
    *("fedtan", "fedbs", "fedcda", "inco", "fedga-greedy", "tifl", "clustered-size", "gradclus"),
    *("hics", "divfl"),
)


def line_style(at: int) -> dict[str, Any]:
    """Return the colour and dash of a line. Neighbours differ in both: one may lie on the other, or be grey."""
    dash = DASHES[(at + at // len(LINES)) % len(DASHES)]
    return {"color": LINES[at % len(LINES)], "dash": dash, "width": 2}


def line_styles(named: Iterable[tuple[str, str]]) -> dict[str, dict[str, Any]]:
    """Return the style of each line, given its title and its method's name.

    The name alone says which, in whatever order lines come. Only where two lines would look alike, as those of one
    method on two data sets, one of them gets another dash or, if all are taken, another colour: not a known method's
    first line, and of two other names the one that comes later in the alphabet.
    """
    names: dict[str, str] = {}
    for title, name in named:
        names.setdefault(title, folder_name(name))  # a row is coloured as the run in its folder
    taken: dict[str, int] = {}
    for title in _by_precedence(names):
        free = (slot for slot in _wishes(names[title]) if slot not in taken.values())
        taken[title] = next(free, _slot(names[title]))
    return {title: line_style(taken[title]) for title in names}


def _by_precedence(names: dict[str, str]) -> list[str]:
    """Order titles so that the same names always get the same lines: known ones first, second lines of a name last."""
    seen: Counter[str] = Counter()
    places = {}
    for title, name in names.items():
        places[title] = (seen[name], name not in KNOWN, name)
        seen[name] += 1
    return sorted(names, key=lambda title: places[title])


def _slot(name: str) -> int:
    return (KNOWN.index(name) if name in KNOWN else crc32(name.encode())) % SLOTS


def _wishes(name: str) -> list[int]:
    """Return all slots: a name's own, those of the same colour, then the others."""
    own = _slot(name)
    same = [(own + len(LINES) * more) % SLOTS for more in range(len(DASHES))]
    return [*same, *(slot for slot in range(SLOTS) if slot not in same)]
