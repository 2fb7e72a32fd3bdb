"""All measures of a federation, and what each of them means in one plain sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedstrata.data.concentration import LEAST, MOST, concentration
from fedstrata.data.label_table import LabelTable
from fedstrata.inspection.contents import Contents
from fedstrata.inspection.domains import Domains
from fedstrata.methods.selectors.flips import Flips
from fedstrata.methods.selectors.random import Random
from fedstrata.runs.replay import Record, replay

REPLAYED = 60  # rounds


@dataclass(frozen=True)
class RoundBalance:
    """How far the labels of a round are from those of all, and from even shares, in nats, by who chooses clients."""

    random: float
    flips: float
    random_even: float
    flips_even: float
    clusters: int  # that FLIPS drew from

    @property
    def gain(self) -> float:
        """Share of the distance to those of all that FLIPS takes away; negative where it adds to it."""
        return 1 - self.flips / self.random if self.random > 0 else 0.0

    @property
    def even_gain(self) -> float:
        """Share of the distance to even shares that it takes away."""
        return 1 - self.flips_even / self.random_even if self.random_even > 0 else 0.0


@dataclass(frozen=True)
class Measures:
    """How skewed the data are. What cannot be known from counts alone is None."""

    clients: int
    empty_clients: int
    samples: int
    labels: int
    smallest: int
    median_size: float
    largest: int
    emd_mean: float
    emd_worst: float
    js_mean: float
    js_worst: float
    effective_labels_mean: float
    effective_labels_fewest: float
    effective_labels_spread: float  # between the tenth with fewest and the tenth with most
    missing_labels_mean: float
    missing_labels_most: int
    size_gini: float
    alpha_client: float  # the equivalent alpha of dirichlet-client
    alpha_class: float  # and of dirichlet-class
    round_balance: RoundBalance | None  # with a cluster a label; None where everybody trains in every round
    own_balance: RoundBalance | None = None  # with the experiment's own FLIPS, where it selects by that
    duplicate_clients: tuple[tuple[str, ...], ...] | None = None
    copied_samples: float | None = None
    conflicting_labels: float | None = None
    wrong_labels: float | None = None
    domains: Domains | None = None

    @classmethod
    def of(
        cls,
        table: LabelTable,
        k: int,
        contents: Contents | None = None,
        domains: Domains | None = None,
        seed: int = 0,
        own: Flips | None = None,
    ) -> Measures:
        """Measure a table of counts in which k clients train a round, by an own FLIPS or another way, and samples."""
        few, many = np.quantile(table.effective, (0.1, 0.9))
        alpha = concentration(table)
        return cls(
            clients=len(table),
            empty_clients=table.empty,
            samples=int(table.counts.sum()),
            labels=len(table.labels),
            smallest=int(table.sizes.min()),
            median_size=float(np.median(table.sizes)),
            largest=int(table.sizes.max()),
            emd_mean=float(table.emd.mean()),
            emd_worst=float(table.emd.max()),
            js_mean=float(table.js.mean()),
            js_worst=float(table.js.max()),
            effective_labels_mean=float(table.effective.mean()),
            effective_labels_fewest=float(table.effective.min()),
            effective_labels_spread=float(many - few),
            missing_labels_mean=float(table.missing.mean()),
            missing_labels_most=int(table.missing.max()),
            size_gini=table.gini,
            alpha_client=alpha,
            alpha_class=alpha / len(table.labels),
            round_balance=round_balance(table, k, seed),
            own_balance=None if own is None else round_balance(table, k, seed, own),
            duplicate_clients=None if contents is None else tuple(tuple(map(str, group)) for group in contents.twins),
            copied_samples=None if contents is None else contents.copied,
            conflicting_labels=None if contents is None else contents.conflicting,
            wrong_labels=None if contents is None else contents.wrong,
            domains=domains,
        )


def round_balance(table: LabelTable, k: int, seed: int = 0, own: Flips | None = None) -> RoundBalance | None:
    """Let random choice and FLIPS, with a cluster a label or as it is given, choose the clients of some rounds."""
    if k >= len(table):
        return None
    record = Record(table.counts, np.zeros((1, len(table))))
    chosen = own or Flips(clusters=max(2, min(len(table.labels), k, len(table) - 1)))
    random, flips = (replay(selector, record, REPLAYED, k, seed=seed) for selector in (Random(), chosen))
    return RoundBalance(
        random=float(np.mean(random.divergence)),
        flips=float(np.mean(flips.divergence)),
        random_even=float(np.mean(random.imbalance)),
        flips_even=float(np.mean(flips.imbalance)),
        clusters=next(event["clusters"] for event in flips.events if event["event"] == "clusters"),
    )


@dataclass(frozen=True)
class Measure:
    """A measure in words."""

    name: str
    value: str
    meaning: str


def readings(m: Measures, from_samples: bool) -> list[Measure]:
    """Say every measure, and what it means."""
    if m.alpha_client >= MOST * 0.999:
        alpha, even = "none", "Clients differ by no more than chance: the labels are spread evenly."
    elif m.alpha_client <= LEAST * 1.001:
        alpha, even = "towards 0", "Clients hold one label each, or nearly so."
    else:
        alpha = f"{m.alpha_class:.3g} (dirichlet-class), {m.alpha_client:.3g} (dirichlet-client)"
        even = "A Dirichlet partition of this alpha is as skewed, by maximum likelihood; below 0.5 is strong skew."
    found = [
        Measure(
            "EMD to the global mix",
            f"mean {m.emd_mean:.2f}, worst {m.emd_worst:.2f}",
            "How much of a client's label mix must change to become that of all, from 0 to 2. "
            "Small clients have some of it by chance.",
        ),
        Measure(
            "Jensen-Shannon",
            f"mean {m.js_mean:.3f}, worst {m.js_worst:.3f}",
            "The same in bits, from 0 (the mix of all) to 1 (nothing in common).",
        ),
        Measure(
            "effective labels",
            f"mean {m.effective_labels_mean:.1f} of {m.labels}, fewest {m.effective_labels_fewest:.1f}",
            "To how many equally common labels a client's mix amounts.",
        ),
        Measure(
            "missing labels",
            f"mean {m.missing_labels_mean:.1f}, most {m.missing_labels_most} of {m.labels}",
            "Labels a client never sees, and forgets while it trains alone.",
        ),
        Measure(
            "size inequality",
            f"Gini {m.size_gini:.2f}; {m.smallest} to {m.largest} samples, median {m.median_size:g}",
            "0: all are of one size; towards 1: few hold nearly everything, and a mean by size hears only them.",
        ),
        Measure("equivalent alpha", alpha, even),
    ]
    if (advised := m.round_balance) is not None:
        found.append(_of_rounds(m, advised, m.own_balance))
    if from_samples:
        assert m.duplicate_clients is not None
        found += _of_samples(m, m.duplicate_clients)
    else:
        needs = "duplicate clients, copied samples, conflicting labels, feature skew"
        found.append(Measure("not measured", needs, "These need the samples, and only label counts are known."))
    return found


def _of_rounds(m: Measures, advised: RoundBalance, own: RoundBalance | None) -> Measure:
    balance = own or advised
    setting = f"method.selector.clusters={advised.clusters}"
    if own is None:
        how = f"FLIPS is measured with {setting}; without it, FLIPS finds a number of clusters itself."
    elif own.clusters == advised.clusters:
        how = f"FLIPS takes clients from {own.clusters} clusters here."
    else:
        how = (
            f"FLIPS takes clients from {own.clusters} clusters here; with {setting} it would be {advised.flips:.3f} "
            f"and, from even shares, {advised.flips_even:.3f}."
        )
    return Measure(
        "labels of a round",
        f"{balance.random:.3f} nats with random clients, {balance.flips:.3f} with {'your ' if own else ''}FLIPS; from "
        f"even shares {balance.random_even:.3f} and {balance.flips_even:.3f}",
        "How far the labels of a round are from those of all clients, and from even shares, which have every label "
        f"equally often: 0 is no distance, and a round of a single label is {math.log(m.labels):.1f} nats from those. "
        f"{how}",
    )


def _of_samples(m: Measures, twins: Sequence[Sequence[str]]) -> list[Measure]:
    first = f": {', '.join(twins[0][:5])}" if twins else ""
    found = [
        Measure(
            "duplicate clients",
            f"{len(twins)} groups{first}" if twins else "none",
            "Clients that hold exactly the same samples; together they count several times.",
        ),
        Measure(
            "copied samples",
            f"{m.copied_samples:.1%}, {m.conflicting_labels:.1%} with different labels",
            "The same sample twice counts twice; with different labels, one of them is wrong.",
        ),
    ]
    if m.wrong_labels is not None:
        found.append(
            Measure("wrong labels", f"{m.wrong_labels:.1%}", "Labels that the experiment's noise has changed.")
        )
    if m.domains is not None:
        d = m.domains
        found.append(
            Measure(
                "feature skew",
                f"{d.number} groups; told apart {d.told_apart:.2f}, held apart {d.held_apart:.2f}",
                "Whether a linear probe tells samples of different groups apart (0: no, 1: always), and whether "
                "clients hold different groups (EMD, 0 to 2).",
            )
        )
    return found
