"""Which parts go together? Tries every pair of parts, or the whole product of some stages, in tiny runs."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.progress import track

from studies._pairs import STAGES, attempt, named, pairs, table, whole

PAGE = Path(__file__).parent.parent / "docs" / "combinations.md"
INTRODUCTION = """# Which parts go together

Any selector, sampler, corrections, combiner, server step and optimizer may be combined, but for the pairs below: they
are refused before a run starts, with the reason given here. Options may make the difference: here are the defaults.
This page is written by `python -m studies composition --write`, and a test checks that it is true.

"""


def main(arguments: Sequence[str]) -> int:
    """Try and tell."""
    parser = argparse.ArgumentParser(prog="python -m studies composition", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the refused pairs into the documentation")
    parser.add_argument("--product", nargs="*", metavar="STAGE", choices=list(STAGES), help=PRODUCT)
    asked = parser.parse_args(arguments)
    if asked.product is not None:
        return product(asked.product or ["selector", "sampler", "corrections", "combiner"])
    tried = [(choice, attempt(choice)) for choice in track(list(pairs()), "pairs of parts")]
    refused = {named(choice): reason for choice, reason in tried if reason is not None}
    print(table(refused))
    print(f"{len(tried)} pairs were tried, {len(refused)} are refused, all others ran")
    if asked.write:
        PAGE.write_text(INTRODUCTION + table(refused))
    return 0


PRODUCT = "try every combination of parts of these stages; without a name: selector, sampler, corrections and combiner"


def product(stages: Sequence[str]) -> int:
    """Try every combination, and count reasons."""
    reasons: Counter[str] = Counter()
    choices = list(whole(stages))
    for choice in track(choices, f"combinations of {', '.join(stages)}"):
        if (reason := attempt(choice)) is not None:
            reasons[reason] += 1
    for reason, count in reasons.most_common():
        print(f"{count:>6} refused: {reason}")
    print(f"{len(choices)} combinations were tried, {reasons.total()} are refused, all others ran")
    return 0
