"""What a run reports: accuracy seen from several sides, fairness, lengths of updates."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from fedstrata.core.client_info import GroundTruth
from fedstrata.core.messages import WHOLE
from fedstrata.core.steps import Outcome, View

LISTED = 50  # most steps of a round that are written down one by one
CLIENTS_LISTED = 1000  # most clients, and labels, of which an event holds a number each


def accuracy(hits: np.ndarray) -> float:
    """Share of right answers."""
    return float(hits.mean())


def recalls(hits: np.ndarray, labels: np.ndarray, classes: int) -> list[float | None]:
    """Share of right answers by label; None for a label that is not tested."""
    tested = np.bincount(labels, minlength=classes)
    right = np.bincount(labels, weights=hits, minlength=classes)
    return [float(r / n) if n else None for r, n in zip(right, tested, strict=True)]


def mean_recall(recall: Sequence[float | None]) -> float:
    """Mean recall over the labels that are tested: a lost rare label costs as much as a lost common one."""
    return float(np.mean([r for r in recall if r is not None]))


def worst(accuracies: np.ndarray) -> float:
    """Mean of the lowest tenth of the clients, at least one."""
    count = math.ceil(0.1 * len(accuracies) - 1e-9)
    return float(np.sort(accuracies)[: max(count, 1)].mean())


def jain(counts: np.ndarray) -> float:
    """Jain's fairness index of participation: 1 when everybody took part equally often."""
    return fairness(float(counts.sum()), float((counts.astype(np.float64) ** 2).sum()), len(counts))


def fairness(total: float, squares: float, clients: int) -> float:
    """Return the same from the sum of the counts and that of their squares."""
    return float(total) ** 2 / (clients * float(squares)) if squares else 1.0


def label_divergence(counts: np.ndarray, mix: np.ndarray) -> float | None:
    """Kullback-Leibler divergence, in nats, of the labels in `counts` from a mix; None where there are no labels."""
    if not counts.sum():
        return None
    share = counts / counts.sum()
    here = share > 0
    return float((share[here] * np.log(share[here] / mix[here])).sum())


def label_imbalance(counts: np.ndarray, mix: np.ndarray) -> float | None:
    """Return the same divergence from even shares of all labels that there are."""
    there = mix > 0
    return label_divergence(counts, there / max(int(there.sum()), 1))


def by_client(accuracies: Mapping[int, float], clients: int) -> dict[str, Any]:
    """Tell how each client fares, in thousandths to keep events short; of many clients, the deciles alone."""
    if not accuracies:
        return {}
    values = np.rint(1000 * np.fromiter(accuracies.values(), np.float64, len(accuracies))).astype(int)
    if clients > CLIENTS_LISTED:
        tenths = np.linspace(0, len(values) - 1, 11).round().astype(int)
        return {"client_deciles": np.sort(values)[tenths].tolist()}
    told: list[int | None] = [None] * clients  # some have nothing to be tested on
    for client, value in zip(accuracies, values.tolist(), strict=True):
        told[client] = value
    return {"client_accuracy": told}


def round_figures(
    outcomes: Sequence[Outcome],
    jain: float,
    view: View | None = None,
    accuracies: Mapping[int, float] = MappingProxyType({}),
) -> dict[str, Any]:
    """Sum a round's steps up: who trained, how it went for them; and how fair the run has been so far, by Jain.

    `accuracies` are those of the new model on clients' own test data, where it was evaluated.
    """
    combined = [o.reports for o in outcomes if o.step.combine]
    trained = [r for reports in combined for r in reports]
    ground_truth = None if view is None else view.client_info.ground_truth
    clients = sorted({r.client for r in trained})
    last = sorted({r.client for r in next((reports for reports in reversed(combined) if reports), ())})
    asked = sorted({a.client for o in outcomes if o.step.combine for a in o.step.asks})
    losses = [figures for o in outcomes if o.step.combine for figures in _figures(o)]
    whole = [
        figures for o in outcomes if o.step.combine and o.step.part == WHOLE for figures in _figures(o)
    ]  # of a round
    return {
        **({} if ground_truth is None else _divergences(ground_truth, clients, asked)),
        "loss_train": _mean([loss for loss, _, _ in losses], [samples for _, _, samples in losses]),
        "update_norm": _mean([length for _, length, _ in whole]),
        **_mean_over(accuracies, {"participant_mean": clients, "last_step_mean": last}),
        "jain": jain,
        "steps": _each(outcomes) if len(outcomes) <= LISTED else _by_kind(outcomes),
    }


def _mean_over(accuracies: Mapping[int, float], groups: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """Return the mean accuracy of each group of clients, where some of them have one."""
    known = {name: [accuracies[c] for c in clients if c in accuracies] for name, clients in groups.items()}
    return {name: float(np.mean(own)) for name, own in known.items() if own}


def _figures(outcome: Outcome) -> list[tuple[float, float, int]]:
    """Return what is known of losses, lengths of updates and samples: of each report, or in the mean of all."""
    if outcome.means is not None:
        return [(*outcome.means, r.samples) for r in outcome.reports]
    return [(float(r.loss), float(r.update_norm), r.samples) for r in outcome.reports]


def _divergences(ground_truth: GroundTruth, arrived: Sequence[int], selected: Sequence[int]) -> dict[str, Any]:
    """Say which labels those hold whose reports counted, and how far these are from those of all, and from even shares.

    Where some were lost, also how far the labels of all selected are from those of all.
    """
    counts = ground_truth.counts(arrived)
    mix = ground_truth.mix
    own: dict[str, Any] = {"label_divergence": label_divergence(counts, mix)}
    own["label_imbalance"] = label_imbalance(counts, mix)
    if len(counts) <= CLIENTS_LISTED:
        own["labels"] = counts.astype(int).tolist()
    if arrived == selected:
        return own
    return own | {"label_divergence_selected": label_divergence(ground_truth.counts(selected), ground_truth.mix)}


def _each(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    return [
        {
            "kind": o.step.kind,
            "clients": [r.client for r in o.reports],
            **({"missing": list(o.missing)} if o.missing else {}),
            **({"update_norm": _lengths(o)} if o.step.combine and o.means is None and o.step.fused is None else {}),
            **(
                {
                    "times": len(o.step.fused.sizes),
                    "client_updates": o.step.count_updates([r.client for r in o.reports]),
                }
                if o.step.fused is not None
                else {}
            ),
            **(
                {"metrics": {str(r.client): dict(r.metrics) for r in o.reports}}
                if any(r.metrics for r in o.reports)
                else {}
            ),
        }
        for o in outcomes
    ]


def _lengths(outcome: Outcome) -> dict[str, float]:
    return {str(r.client): float(r.update_norm) for r in outcome.reports}


def _by_kind(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Sum many steps up: how often each kind occurred, and how often with whom."""
    steps = []
    for kind in dict.fromkeys(o.step.kind for o in outcomes):
        own = [o for o in outcomes if o.step.kind == kind]
        missing = sorted({client for o in own for client in o.missing})
        counts = Counter(r.client for o in own for r in o.reports)
        clients = sorted(counts)
        told = {"kind": kind, "times": len(own), "clients": clients, "client_updates": [counts[c] for c in clients]}
        steps.append({**told, **({"missing": missing} if missing else {})})
    return steps


def _mean(values: Sequence[float], weights: Sequence[float] | None = None) -> float | None:
    told = ~np.isnan(np.array(values, dtype=np.float64))  # where updates carry noise, losses are not told
    if not told.any():
        return None
    return float(np.average(np.array(values)[told], weights=None if weights is None else np.array(weights)[told]))
