"""strata: one plan from the stages of five papers, chosen by what is measured about the federation.

Rounds whose clients together hold all labels (after FLIPS), local optima that are made to agree (FedDyn), and a server
step that is as long as clients disagree (FedExP) go together under any skew between even labels and a few a client, and
where reports are lost. Where clients hold one label each, nothing at a client can agree: clusters of labels take turns
(FLIPS), and momentum at the server remembers what a round lacked. Wrong labels add FedBSS's order of samples.

Where every client trains many times, two of these were a head start only, as runs on other data confirmed: FedDyn where
clients train with Adam, and momentum where they hold one label each, which Yogi passes. Such runs have FedExP alone,
and Yogi. Yogi for FedDyn and FedExP under SGD was tried, too, and not confirmed.

`python -m studies strata_search` searched the product of the stages. FedPBS's selective pull and Terraform's second
pass brought nothing there, and stand in no choice. docs/strata.md has the figures, on data of the search and others.
"""

from __future__ import annotations

from collections.abc import Iterator

from fedstrata.methods.recipes import Recipe
from fedstrata.methods.situation import Situation, StageChoice

EVEN = 5.0  # equivalent alpha from which on labels are spread evenly, as in the rules of inspect
ONE = 1.5  # effective labels of a client up to which it counts as holding one
OFTEN = 40  # times that a client trains from which on a run is long
WRONG = 0.05  # share of wrong labels from which on samples are taken in the order of their losses


def choose(now: Situation) -> list[StageChoice]:
    """Choose parts for the stages in which the plan is not FedAvg's."""
    return [*_selector(now), *_sampler(now), *_corrections(now), *_server_step(now)]


def _one_label(now: Situation) -> bool:
    """Say whether clients hold one label each; labels must not be lost with stragglers, or turns are no turns."""
    return now.effective_labels is not None and now.effective_labels <= ONE and not now.stragglers


def _long(now: Situation) -> bool:
    """Say whether clients train so often that a head start is worth less than what it costs at the end."""
    return now.updates_each >= OFTEN


def _wears_off(now: Situation) -> bool:
    """Say whether a linear term at clients costs accuracy at the end, as it does beside Adam."""
    return _long(now) and now.optimizer != "sgd"


def _say_held(now: Situation) -> str:
    """Say how many labels clients hold."""
    return "label counts are hidden" if now.table is None else f"clients hold {now.effective_labels:.1f} labels each"


def _measured(now: Situation) -> dict[str, float | None]:
    """Return what corrections and server steps are chosen by."""
    each = now.updates_each
    return {"effective_labels": now.effective_labels, "stragglers": now.stragglers, "updates_each": each}


def _selector(now: Situation) -> Iterator[StageChoice]:
    flips = {"kind": "flips", "clusters": now.clusters}
    round = f"{now.k} of {now.clients} clients train in a round"
    measured = {"alpha": now.alpha, "effective_labels": now.effective_labels, "participation": now.k / now.clients}
    if now.k >= now.clients:
        return  # nobody is to be chosen
    if now.alpha is None:
        yield StageChoice("selector", flips, "label counts are hidden, and clusters can be found under masks", measured)
    elif _one_label(now):
        yield StageChoice("selector", flips, f"{_say_held(now)}, {round}: {now.clusters} clusters take turns", measured)
    elif now.alpha < EVEN:
        why = f"{round}, and labels are skewed (alpha {now.alpha:.2g}): together they shall have the mix of all"
        yield StageChoice("selector", "balanced-labels", why, measured)


def _sampler(now: Situation) -> Iterator[StageChoice]:
    if now.wrong_labels is not None and now.wrong_labels >= WRONG:
        why = f"{now.wrong_labels:.0%} of the labels are wrong: samples of high loss come later"
        yield StageChoice("sampler", "bias-aware", why, {"wrong_labels": now.wrong_labels})


def _corrections(now: Situation) -> Iterator[StageChoice]:
    if not _one_label(now) and not _wears_off(now):
        lost = f" and {now.stragglers:.0%} of the reports are lost" if now.stragglers else ""
        why = f"{_say_held(now)}{lost}: a linear term at each makes their optima agree"
        parts = [{"kind": "feddyn"}, {"kind": "clip", "norm": 10.0}]
        yield StageChoice("corrections", parts, why, _measured(now))


def _server_step(now: Situation) -> Iterator[StageChoice]:
    measured, held = _measured(now), _say_held(now)
    if _one_label(now) and not _long(now):
        why = f"{held}: momentum 0.7 remembers the labels that a round lacked"
        yield StageChoice("server_step", {"kind": "sgd", "momentum": 0.7}, why, measured)
    elif _one_label(now) and now.optimizer == "sgd":
        why = f"{held}, and train {now.updates_each:.0f} times: a step of its own for every weight goes further then"
        yield StageChoice("server_step", "yogi", why, measured)
    else:
        why = f"{held}: its step is the longer, the more their updates differ"
        yield StageChoice("server_step", "fedexp", why, measured)


STRATA = Recipe(
    "Selection, samples, correction and server step, chosen by skew, noise, participation, stragglers and length.",
    "ours, after FLIPS and FedBSS",
    {},
    choose=choose,
    needs=frozenset({"counts"}),
    version=4,
)
