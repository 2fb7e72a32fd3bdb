"""All measures of a federation, and what each of them means in one plain sentence."""

from __future__ import annotations

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
    round_balance: RoundBalance | None  # None where everybody trains in every round
    duplicate_clients: tuple[tuple[str, ...], ...] | None = None
    copied_samples: float | None = None
    conflicting_labels: float | None = None
    wrong_labels: float | None = None
    domains: Domains | None = None

    @classmethod
    def of(
        cls, table: LabelTable, k: int, contents: Contents | None = None, domains: Domains | None = None, seed: int = 0
    ) -> Measures:
        """Measure a table of counts in which k clients train a round, and what is known of the samples."""
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
            duplicate_clients=None if contents is None else tuple(tuple(map(str, group)) for group in contents.twins),
            copied_samples=None if contents is None else contents.copied,
            conflicting_labels=None if contents is None else contents.conflicting,
            wrong_labels=None if contents is None else contents.wrong,
            domains=domains,
        )


def round_balance(table: LabelTable, k: int, seed: int = 0) -> RoundBalance | None:
    """Let random choice and FLIPS, with a cluster a label, choose the clients of some rounds."""
    if k >= len(table):
        return None
    record = Record(table.counts, np.zeros((1, len(table))))
    clusters = max(2, min(len(table.labels), k, len(table) - 1))
    random, flips = (
        replay(selector, record, REPLAYED, k, seed=seed) for selector in (Random(), Flips(clusters=clusters))
    )
    return RoundBalance(
        random=float(np.mean(random.divergence)),
        flips=float(np.mean(flips.divergence)),
        random_even=float(np.mean(random.imbalance)),
        flips_even=float(np.mean(flips.imbalance)),
        clusters=clusters,
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
    if (balance := m.round_balance) is not None:
        found.append(
            Measure(
                "labels of a round",
                f"{balance.random:.3f} nats with random clients, {balance.flips:.3f} with FLIPS; from even shares "
                f"{balance.random_even:.3f} and {balance.flips_even:.3f}",
                "How far they are from the labels of all, and from every label as often as any other; FLIPS takes "
                f"clients from {balance.clusters} clusters, and moves from the first to the second.",
            )
        )
    if from_samples:
        assert m.duplicate_clients is not None
        found += _of_samples(m, m.duplicate_clients)
    else:
        needs = "duplicate clients, copied samples, conflicting labels, feature skew"
        found.append(Measure("not measured", needs, "These need the samples, and only label counts are known."))
    return found


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
