"""Which recipe fits which data: the rules, in the order in which their advice is given.

A rule looks at measures and at how a round is set up, and either says why its recipe fits or says nothing. The first
ones are fitted to runs (`measured.py`). The thresholds of the others stand here and in docs/inspect.md, and follow the
settings in which the papers report gains; none of them is a promise, which is why every advice comes with the command
that compares it with FedAvg.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedstrata.inspection.measured import Leaf, ask, leaves, read_tree
from fedstrata.inspection.measures import Measures

EVEN = 5.0  # equivalent alpha of dirichlet-class from which on labels are spread evenly
FEW = 0.35  # share of all labels: clients with fewer effective ones hold few labels
UNEQUAL = 0.4  # Gini of the sizes
MIXED = 0.5  # spread of the effective labels, as a share of all
WRONG = 0.01  # share of wrong or conflicting labels
BALANCED = 0.25  # share of a round's distance to the global mix, or to even shares, that FLIPS must take away
UNBALANCED = 0.01  # nats: rounds that are nearer than this need no help
DIFFERENT = 0.5  # groups that a probe tells apart, and that clients hold apart
ENOUGH = 10  # clients a round, of which Terraform can leave at least five to train again
SMALL = 0.25  # share of the clients with less than a batch


@dataclass(frozen=True)
class SkewFacts:
    """What rules look at."""

    measures: Measures
    k: int  # clients of a round
    epochs: int
    short: float  # share of the clients whose samples do not fill a batch
    stragglers: float = 0.0  # share of the reports that the experiment loses

    @property
    def figures(self) -> dict[str, float]:
        """What the fitted rules ask about."""
        m = self.measures
        return {
            "effective_labels": m.effective_labels_mean,
            "effective_share": m.effective_labels_mean / m.labels,
            "alpha": m.alpha_class,
            "size_gini": m.size_gini,
            "participation": self.k / m.clients,
            "wrong_labels": m.wrong_labels or 0.0,
            "stragglers": self.stragglers,
        }

    @property
    def even(self) -> bool:
        """Whether labels are spread as evenly as in an IID partition, or nearly so."""
        return self.measures.alpha_class >= EVEN

    @property
    def apart(self) -> bool:
        """Whether samples of the groups look different, and clients hold different groups."""
        domains = self.measures.domains
        return domains is not None and min(domains.told_apart, domains.held_apart) >= DIFFERENT

    @property
    def few(self) -> bool:
        """Whether clients hold few labels each."""
        m = self.measures
        return m.effective_labels_mean <= max(1.5, FEW * m.labels)


Why = Callable[[SkewFacts], str | None]
Settings = Callable[[SkewFacts], Mapping[str, Any]]


@dataclass(frozen=True)
class Rule:
    """When a recipe fits; of several recipes, the first that goes with the model and the privacy that are asked for."""

    recipes: tuple[str, ...]
    when: str  # in words, as in docs/inspect.md
    why: Why
    mind: str  # what else to know
    settings: Settings = field(default=lambda _: {})


def _noisy(facts: SkewFacts) -> str | None:
    m = facts.measures
    if (m.wrong_labels or 0.0) >= WRONG:
        return f"{m.wrong_labels:.0%} of the labels are wrong"
    if (m.conflicting_labels or 0.0) >= WRONG:
        return f"{m.conflicting_labels:.0%} of the samples occur with different labels, so some labels are wrong"
    return None


def _few(facts: SkewFacts) -> str | None:
    m = facts.measures
    return f"clients hold {m.effective_labels_mean:.1f} of {m.labels} labels in effect" if facts.few else None


def _clusters(facts: SkewFacts) -> str | None:
    balance = facts.measures.round_balance
    if balance is None or facts.even:
        return None
    how = (
        f"{facts.k} of {facts.measures.clients} clients train in a round, and taking them from {balance.clusters} "
        "clusters of label mixes brings a round's labels"
    )
    if balance.random >= UNBALANCED and balance.gain >= BALANCED:
        return f"{how} {balance.gain:.0%} nearer to those of all"
    if balance.random_even >= UNBALANCED and balance.even_gain >= BALANCED:
        return f"{how} {balance.even_gain:.0%} nearer to even shares: rare labels are seen more often"
    return None


def _hard(facts: SkewFacts) -> str | None:
    m = facts.measures
    if facts.k < ENOUGH:
        return None
    if facts.apart and m.domains is not None:
        return f"samples of the {m.domains.number} groups look different, and clients hold different groups"
    if not facts.even and m.effective_labels_spread >= MIXED * m.labels:
        return "some clients hold nearly all labels and others nearly one: the latter are harder"
    return None


def _moderate(facts: SkewFacts) -> str | None:
    if not (facts.even or facts.few):
        return f"the skew is moderate, like dirichlet-class with alpha = {facts.measures.alpha_class:.2g}"
    if not facts.even and facts.short >= SMALL:
        return f"{facts.short:.0%} of the clients hold less than a batch, and their steps are unstable"
    return None


def _unequal(facts: SkewFacts) -> str | None:
    m = facts.measures
    if facts.even or m.size_gini < UNEQUAL:
        return None
    return f"clients hold {m.smallest} to {m.largest} samples, so that they take very different numbers of steps"


def _even(facts: SkewFacts) -> str | None:
    return "labels are spread evenly: there is no skew to repair" if facts.even and not facts.apart else None


def _even_labels(facts: SkewFacts) -> str | None:
    return "labels are spread evenly: there is no label skew to repair" if facts.even and facts.apart else None


def _measured(leaf: Leaf) -> Rule:
    """Return the rule of a leaf of the tree that was fitted to runs."""

    def why(facts: SkewFacts) -> str | None:
        if ask(read_tree(), facts.figures) != leaf:
            return None
        like = f"{leaf.federations} federations" + (
            f" in which {' and '.join(leaf.questions)}" if leaf.questions else ""
        )
        return (
            f"on {like}, at equal bytes, it was {100 * leaf.loss:.1f} points below the best method of each, "
            f"FedAvg {100 * leaf.fedavg:.1f}"
        )

    return Rule(
        (leaf.recipe,),
        " and ".join(leaf.questions) or "everywhere",
        why,
        "These were small models and short runs; docs/which-method.md has them.",
    )


MEASURED = tuple(map(_measured, leaves(read_tree())))
RULES = (
    *MEASURED,
    Rule(
        ("fedbss",),
        "1 % of the labels are wrong, or of the samples occur with different labels",
        _noisy,
        "It ranks samples by loss after a quarter of the rounds, a forward pass a round; with one local epoch it is "
        "FedAvg, so it needs several.",
        lambda facts: {"train.epochs": 5} if facts.epochs < 3 else {},
    ),
    Rule(
        ("stratify-batch", "stratify-single"),
        "clients hold at most 35 % of the labels in effect",
        _few,
        "Every label comes in its turn, whoever holds it, so accuracy hardly depends on the partition. A round is a "
        "pass over all data, and models travel with every batch: compare at equal bytes, not at equal rounds.",
    ),
    Rule(
        ("flips",),
        "FLIPS, replayed on the counts with a cluster a label, brings a round's labels a quarter nearer to those of "
        "all, or to even shares",
        _clusters,
        "Balanced rounds are what it gives, and rare labels more often; compare by balanced accuracy where labels are "
        "not equally common. A round should be a multiple of the number of clusters, which is set here.",
        lambda facts: (
            {}
            if facts.measures.round_balance is None
            else {"method.selector.clusters": facts.measures.round_balance.clusters}
        ),
    ),
    Rule(
        ("terraform",),
        "10 clients train in a round, and some hold nearly all labels and others few (a spread of half of the labels "
        "between the tenths), or clients hold different groups that look different",
        _hard,
        "Hard clients train several times in a round: give the others as many client updates when you compare.",
    ),
    Rule(
        ("fedpbs",),
        "the skew is between few labels and even, or a quarter of the clients hold less than a batch",
        _moderate,
        "Only clients whose losses vary much are held back. The differences its paper reports are small.",
    ),
    Rule(
        ("fednova",),
        "the Gini coefficient of the sizes is at least 0.4, and labels are not spread evenly",
        _unequal,
        "It takes out that clients with more samples pull harder, not the skew itself.",
    ),
    Rule(
        ("fedavg",),
        "labels are spread evenly, but clients hold different groups that look different",
        _even_labels,
        "Clients' samples differ in their features, which most methods here do not address: compare some.",
    ),
    Rule(
        ("fedavg",),
        "labels are spread evenly (the equivalent alpha of dirichlet-class is at least 5), and so are groups, if any "
        "look different",
        _even,
        "Everything else costs more, or solves a problem that is not there.",
    ),
)


def applying(facts: SkewFacts) -> list[tuple[Rule, str]]:
    """Return the rules that apply, with their reasons, the best fit first.

    That is their own order, but for data of which nothing is to be said than that they are even: FedAvg, which has
    nothing to repair there, comes before what did well in general.
    """
    found = [(rule, because) for rule in RULES if (because := rule.why(facts)) is not None]
    special = [one for one in found if one[0] not in MEASURED]
    general = [one for one in found if one[0] in MEASURED]
    return [*special, *general] if [rule for rule, _ in special] == [RULES[-1]] else found
