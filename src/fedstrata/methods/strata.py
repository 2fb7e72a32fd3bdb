"""strata: one plan from the stages of five papers, chosen by how skewed the federation is.

Which client selection, correction and server step belong together depends on the skew: what is best between mild and
strong skew fails where every client holds one label. `python -m studies strata_search` searched the product of the
stages, `python -m studies strata` confirms the choices below on data that the search did not use; docs/strata.md has
both. Thresholds are in terms of effective labels, which `fedstrata inspect` shows.
"""

from __future__ import annotations

from collections.abc import Iterator

from fedstrata.methods.recipes import Recipe
from fedstrata.methods.situation import Choice, Situation

EVEN = 5.0  # equivalent alpha from which on labels are spread evenly, as in the rules of inspect
FEW = 1.5  # effective labels of a client up to which its local optimum says nothing of the other labels


def choose(situation: Situation) -> list[Choice]:
    """Choose parts for the stages in which the plan is not FedAvg's."""
    return [*_selector(situation), *_corrections(situation), *_server_step(situation)]


def _selector(now: Situation) -> Iterator[Choice]:
    measured = {"alpha": now.alpha, "clients_per_round": now.k / now.clients}
    if now.k >= now.clients:
        return
    if now.table is None:
        part = {"kind": "flips", "clusters": now.clusters}
        yield Choice("selector", part, "label counts are hidden, and its clusters can be found without them", measured)
    elif now.alpha is not None and now.alpha < EVEN:
        why = (
            f"{now.k} of {now.clients} clients train in a round, and labels are as skewed as with an alpha of "
            f"{now.alpha:.2g}: together they should hold all labels"
        )
        yield Choice("selector", {"kind": "balanced-labels"}, why, measured)


def _corrections(now: Situation) -> Iterator[Choice]:
    if now.effective_labels is None or now.effective_labels <= FEW:
        return
    part = [{"kind": "feddyn"}, {"kind": "clip", "norm": 10.0}]
    why = f"clients hold {now.effective_labels:.1f} labels in effect, enough for local optima to be made to agree"
    yield Choice("corrections", part, why, {"effective_labels": now.effective_labels})


def _server_step(now: Situation) -> Iterator[Choice]:
    part = {"kind": "sgd", "momentum": 0.7}
    if now.effective_labels is None:
        yield Choice("server_step", part, "momentum does good under every skew that was tried", {})
        return
    few = now.effective_labels <= FEW
    why = f"clients hold {now.effective_labels:.1f} labels in effect, and momentum " + (
        "remembers those that a round lacks" if few else "speeds up what clients agree on"
    )
    yield Choice("server_step", part, why, {"effective_labels": now.effective_labels})


STRATA = Recipe(
    "Client selection, correction and server step, chosen by how skewed the federation is measured to be.",
    "ours, after FLIPS, FedPBS, FedBSS, Stratify and Terraform",
    {},
    choose=choose,
    needs=frozenset({"counts"}),
)
