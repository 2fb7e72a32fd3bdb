"""Advice that was fitted to runs: which recipe lost least, on federations like this one.

`python -m studies which_method --write` runs a grid of methods under different skews, noise, stragglers and
participation, fits a tree of a few questions to it and writes it into `measured.json`. docs/which-method.md shows the
tree, and what following it loses on whole data sets that the fit did not see.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

WORDS = {  # what a question asks, below and above its threshold
    "effective_labels": ("clients hold at most {:.2g} labels in effect", "clients hold more than {:.2g}"),
    "effective_share": ("clients hold at most {:.0%} of the labels in effect", "clients hold more than {:.0%} of them"),
    "alpha": ("the equivalent alpha is at most {:.2g}", "the equivalent alpha is above {:.2g}"),
    "size_gini": ("sizes have a Gini coefficient of at most {:.2g}", "sizes have a Gini coefficient above {:.2g}"),
    "participation": ("at most {:.0%} of the clients train in a round", "more than {:.0%} of them train in a round"),
    "wrong_labels": ("at most {:.0%} of the labels are wrong", "more than {:.0%} of the labels are wrong"),
    "stragglers": ("at most {:.0%} of the reports are lost", "more than {:.0%} of the reports are lost"),
}


@dataclass(frozen=True)
class Leaf:
    """What was found on federations of one kind; losses are in accuracy, against the best method of each."""

    recipe: str
    loss: float
    fedavg: float  # what FedAvg lost there
    federations: int
    questions: tuple[str, ...] = ()  # the answers that lead here, in words


def ask(tree: Mapping[str, Any], figures: Mapping[str, float], said: tuple[str, ...] = ()) -> Leaf:
    """Follow the questions of a tree."""
    if "recipe" in tree:
        return Leaf(**tree, questions=said)
    below = figures[tree["figure"]] <= tree["at"]
    words = WORDS[tree["figure"]][0 if below else 1].format(tree["at"])
    return ask(tree["below" if below else "above"], figures, (*said, words))


def leaves(tree: Mapping[str, Any], said: tuple[str, ...] = ()) -> list[Leaf]:
    """Return all leaves, with what leads to each."""
    if "recipe" in tree:
        return [Leaf(**tree, questions=said)]
    words = [word.format(tree["at"]) for word in WORDS[tree["figure"]]]
    return [*leaves(tree["below"], (*said, words[0])), *leaves(tree["above"], (*said, words[1]))]


@cache
def read_tree() -> dict[str, Any]:
    """Return the tree that was fitted to all runs."""
    tree: dict[str, Any] = json.loads(files("fedstrata.inspection").joinpath("measured.json").read_text())
    return tree
