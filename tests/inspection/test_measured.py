"""Rules that are fitted to runs: trees of questions, what they advise, and what following them loses."""

from __future__ import annotations

import pytest

from fedstrata.core import registry
from fedstrata.inspection.measured import Leaf, ask, leaves, read_tree
from studies._rules import Case, advised, cases, fit

TREE = {
    "figure": "effective_labels",
    "at": 1.5,
    "below": {"recipe": "flips", "loss": 0.01, "fedavg": 0.3, "federations": 6},
    "above": {"recipe": "feddyn", "loss": 0.02, "fedavg": 0.1, "federations": 12},
}
FIGURES = dict.fromkeys(
    ("effective_labels", "effective_share", "alpha", "size_gini", "participation", "wrong_labels", "stragglers"), 0.5
)


def case(labels, data="a", seed=0, **reached):
    best = max(reached.values())
    lost = {name: best - value for name, value in reached.items()}
    return Case(data, "skewed", seed, {**FIGURES, "effective_labels": labels}, reached, lost)


FEW = [case(1.0 + i / 100, seed=i, fedavg=0.4, flips=0.8, feddyn=0.5) for i in range(6)]
MANY = [case(3.0 + i / 100, seed=i, fedavg=0.7, flips=0.7, feddyn=0.9) for i in range(6)]


def test_questions_lead_to_a_leaf_and_say_what_was_answered():
    assert ask(TREE, {"effective_labels": 1.5}) == Leaf(
        "flips", 0.01, 0.3, 6, ("clients hold at most 1.5 labels in effect",)
    )
    assert ask(TREE, {"effective_labels": 1.51}).recipe == "feddyn"
    assert [leaf.recipe for leaf in leaves(TREE)] == ["flips", "feddyn"]


def test_the_fit_asks_where_it_pays():
    tree = fit([*FEW, *MANY], ["fedavg", "flips", "feddyn"])
    assert (tree["figure"], tree["below"]["recipe"], tree["above"]["recipe"]) == ("effective_labels", "flips", "feddyn")
    assert 1.05 < tree["at"] < 3.0
    assert tree["below"]["fedavg"] == pytest.approx(0.4)
    assert advised(tree, case(1.2, fedavg=0.4, flips=0.8, feddyn=0.5)) == 0
    assert advised(tree, case(2.9, fedavg=0.4, flips=0.8, feddyn=0.5)) == pytest.approx(0.3)


def test_the_fit_asks_nothing_that_saves_nothing_or_rests_on_few():
    assert fit(MANY, ["fedavg", "feddyn"]) == {"recipe": "feddyn", "loss": 0.0, "fedavg": 0.2, "federations": 6}
    assert fit([*FEW[:5], *MANY], ["fedavg", "flips", "feddyn"])["federations"] == 11


def test_a_case_has_every_method_and_its_figures_at_a_share_of_the_bytes():
    curve = [[100, 10, 0.2], [200, 20, 0.4], [300, 30, 0.6], [400, 40, 0.9]]
    line = {"data": "a", "condition": "even", "seed": 0, "bytes": 30, "updates": 300, "measured": FIGURES}
    lines = [
        {**line, "row": row, "curve": [[u, b * factor, a] for u, b, a in curve]}
        for row, factor in (("fedavg", 1), ("scaffold", 2))
    ]
    (whole,), (third,) = (cases(lines, ["fedavg", "scaffold"], share) for share in (1.0, 1 / 3))
    assert whole.accuracy == {"fedavg": pytest.approx(0.4), "scaffold": pytest.approx(0.2)}  # means until the budget
    assert third.accuracy == {"fedavg": 0.2, "scaffold": 0.0}
    assert whole.loss == {"fedavg": 0.0, "scaffold": pytest.approx(0.2)}
    assert cases(lines[:1], ["fedavg", "scaffold"]) == []


def test_what_is_fitted_names_recipes():
    assert {leaf.recipe for leaf in leaves(read_tree())} <= set(registry.names("methods"))
