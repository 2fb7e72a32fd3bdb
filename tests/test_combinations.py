"""Every pair of parts across stages runs with finite results or is refused with a reason, which the docs repeat."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import torch
from sweeping import sweep

from fedstrata.core import registry
from fedstrata.testing.tiny import run_rounds, session_of
from studies._pairs import STAGES, attempt, named, overrides, pairs, table

PAGE = Path(__file__).parents[1] / "docs" / "combinations.md"
CHUNKS = 12  # so that several workers can share


def documented():
    """Read the refused pairs of the docs: {pair, in either order: reason}."""
    found = {}
    for line in PAGE.read_text().splitlines():
        if line.startswith("| ") and not line.startswith("| part"):
            one, others, reason = (cell.strip() for cell in line.strip("|").split(" | "))
            found |= {frozenset((one, other)): reason for other in others.split(", ")}
    return found


@sweep(lambda chunk: chunk % 3 == 0, chunk=range(CHUNKS))
def test_every_pair_runs_or_is_refused_as_documented(chunk):
    docs = documented()
    for choice in islice(pairs(), chunk, None, CHUNKS):
        reason = attempt(choice)
        assert reason == docs.get(frozenset(named(choice))), f"{choice}: run `python -m studies composition --write`"
        assert reason is None or len(reason) > 20


def test_the_docs_name_no_pair_that_does_not_exist():
    assert set(documented()) <= {frozenset(named(choice)) for choice in pairs()}


def test_every_part_of_every_stage_is_tried():
    tried = {(stage, kind) for choice in pairs() for stage, kind in choice.items()}
    assert tried >= {(stage, kind) for stage, names in STAGES.items() for kind in registry.names(names)}


def test_a_combination_is_what_runs():
    choice = {"selector": "size", "sampler": "bias-aware", "corrections": "moon", "also": "prox", "combiner": "median"}
    plan = session_of(overrides({**choice, "server_step": "yogi", "optimizer": "adam"})).plan
    parts = [plan.selector, plan.local.sampler, *plan.local.parts.values(), plan.combiner]
    parts += [plan.server_steps["server_step"], plan.local.optimizer]
    named = ["SelectBySize", "BiasAware", "Moon", "Prox", "Median", "ServerYogi", "Adam"]
    assert [type(part).__name__ for part in parts] == named


def test_refusals_are_written_in_few_lines():
    refused = {("a", "x"): "why", ("b", "x"): "why", ("c", "x"): "why", ("a", "y"): "other"}
    assert table(refused).splitlines()[2:] == ["| x | a, b, c | why |", "| a | y | other |"]


def test_two_stages_may_want_two_variances():
    asked = {"method.name": "fedpbs", "method.combiner": "soft"}  # the gate reads losses, the weights read gradients
    state, rounds = run_rounds(session_of(asked))
    told = rounds[-1][0].reports[0].metrics
    assert {"loss_variance", "gradient_variance", "mu"} <= set(told)
    assert torch.isfinite(state.model.params).all()
