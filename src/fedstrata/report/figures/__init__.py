"""Figures of runs, one small function each; `overlays` and `of_one` say which there are, and how to read them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from fedstrata.report.figures import clients, curves, faults, federation, labels, methods, ranks
from fedstrata.report.run_data import RunData
from fedstrata.runs.compare.friedman import Friedman
from fedstrata.runs.compare.grid import title_of

PARTITIONS = 4  # most that are drawn
CONDITIONS = 12  # most conditions whose curves are drawn large
SECTIONS = {
    "curves": "Curves",
    "federation": "The federation",
    "labels": "Labels",
    "clients": "Clients",
    "method": "The method",
    "faults": "Faults",
}


class Shown(NamedTuple):
    """A figure, and what a page says of it."""

    section: str  # a key of SECTIONS
    name: str  # for files and addresses
    title: str
    said: str  # how to read it
    figure: go.Figure
    methods: tuple[str, ...] = ()  # whose it is; empty: of all
    family: str = ""  # what it has in common with the same figure of other runs; its own name is then `of`
    of: str = ""


OWN: Sequence[tuple[str, str, str, str, Callable[[RunData], go.Figure | None]]] = (
    (
        "labels",
        "recall",
        "Recall of each label by round",
        "The share of a label's test samples that the model recognises. Faint rows are labels that it lost. "
        "Where some are rare, with less than half of an even share of the training samples, they come last.",
        labels.recall,
    ),
    (
        "labels",
        "balance",
        "Label balance of each round",
        "How much larger (purple) or smaller (orange) a label's share is among the clients of a round than among all, "
        "in percentage points.",
        labels.balance,
    ),
    (
        "clients",
        "participation",
        "Who took part",
        "How often a client's report counted in each round; filled cells, where that is once "
        "or not at all. Clients that took part most often come first.",
        clients.participation,
    ),
    (
        "clients",
        "client-accuracy",
        "Accuracy of each client by round",
        "On the client's own test data. The clients that the last model serves worst are at the bottom.",
        clients.accuracy_by_client,
    ),
    (
        "clients",
        "spread",
        "Spread over clients by round",
        "The distance between the median client and the worst tenth is what one accuracy hides.",
        clients.spread,
    ),
    (
        "clients",
        "update_norm",
        "Length of updates",
        "How far a client moves the model that it received, as the length of its update.",
        clients.update_norm,
    ),
    (
        "method",
        "clusters",
        "FLIPS: the labels of each cluster",
        "The labels that each cluster holds, as first found, and how often its clients took part.",
        methods.clusters,
    ),
    (
        "method",
        "cluster-search",
        "FLIPS: number of clusters",
        "The index says how much clusters overlap; the number was taken where it stops falling.",
        methods.cluster_search,
    ),
    (
        "method",
        "cluster-participation",
        "FLIPS: turns of the clusters",
        "How many clients of each cluster took part in a round.",
        methods.cluster_participation,
    ),
    (
        "method",
        "hard-clients",
        "Terraform: hard clients",
        "In how many steps of a round a client trained: one, and it was easy; more, and it was among those whose last "
        "layer moved most. Clients that were hard most often come first.",
        methods.hard_clients,
    ),
    (
        "method",
        "splits",
        "Terraform: steps of each round",
        "All selected clients train in step 1; in each later step, only those whose last layer moved most.",
        methods.splits,
    ),
    (
        "method",
        "cuts",
        "FedBSS: cuts",
        "The loss beyond which a client's samples count as biased, and the share of its samples that does; the median "
        "client, and eight in ten. Rounds before the first point are the warm-up.",
        methods.cuts,
    ),
    (
        "method",
        "biased",
        "FedBSS: samples beyond the cut",
        "Which share of its samples a client found biased in a round in which it trained.",
        methods.biased,
    ),
    (
        "method",
        "schedule",
        "Stratify: the schedule",
        "The order in which the model sees labels at the beginning, whoever holds them: a column a sample.",
        labels.schedule,
    ),
    (
        "method",
        "exposure",
        "Stratify: exposure",
        "How often the model trained on each label in a round; 1 is an even share.",
        labels.exposure,
    ),
    (
        "faults",
        "faults",
        "Stragglers and faults by round",
        "Reports that were lost, with the reason, and whatever else did not go as asked.",
        faults.faults,
    ),
)


MEASURED = "As `train.evaluate.metrics` measures it on the test set; more is better."
READ = {
    "accuracy": "The share of all test samples that the model gets right.",
    "balanced_accuracy": "The mean of the labels' recalls: a lost rare label costs as much as a lost common one.",
    "worst10": "Mean accuracy of the tenth of clients that the model serves worst, on their own test data.",
    "loss_test": "Mean cross-entropy over all test samples.",
}


def overlays(runs_data: Sequence[RunData]) -> Iterator[Shown]:
    """Return the figures that show all runs together."""
    several = len({run_data.group for run_data in runs_data}) > 1 or len(runs_data) > 1
    band = "Lines are means over seeds, bands reach from the least to the most. " if _banded(runs_data) else ""
    wanted = [*(("accuracy",) if several else ()), *(("balanced_accuracy", "worst10") if several else ()), "loss_test"]
    if not several and (drawn := curves.accuracy(runs_data[0])):
        said = "Over all test samples, as the mean over labels, and for the tenth of clients that are served worst."
        yield Shown("curves", "accuracy", "Accuracy", said, drawn)
    own = (metric for run_data in runs_data for metric in run_data.metrics)
    for metric in dict.fromkeys((*wanted, *own)):
        if drawn := curves.curves(runs_data, metric):
            title, said = _capital(curves.title_of(metric)), READ.get(metric, MEASURED)
            yield Shown("curves", metric.replace("_", "-"), title, band + said, drawn)
    if several and (drawn := labels.final_recall(runs_data)):
        said = "What each run recognises of each label in its last scored round."
        yield Shown("labels", "final-recall", "Recall of each label at the end", said, drawn)
    if drawn := curves.curves(runs_data, "label_divergence"):
        said = (
            "Kullback-Leibler divergence of the labels that the clients of a round hold from those of all; 0 is even."
        )
        yield Shown("labels", "divergence", "Label divergence of each round", band + said, drawn)
    rare = any(run_data.rare.any() for run_data in runs_data)  # else it is nearly the same
    if rare and (drawn := curves.curves(runs_data, "label_imbalance")):
        said = "The same divergence from even shares of all labels, which FLIPS aims at where some labels are rare."
        yield Shown("labels", "imbalance", "Label imbalance of each round", band + said, drawn)
    if drawn := clients.rank_clients(runs_data):
        said = "Each client's accuracy on its own test data at the end. The worst tenth is shaded."
        yield Shown("clients", "ranked", "Clients, worst first", said, drawn)
    if several and (drawn := curves.curves(runs_data, "update_norm")):
        said = f"{band}The length of the clients' updates.{curves.say_absent(runs_data, 'update_norm')}"
        yield Shown("clients", "update-norm", "Mean length of updates", said, drawn)


def of_federation(runs_data: Sequence[RunData]) -> Iterator[Shown]:
    """Return who holds what, once for every partition, of as many as a page can hold."""
    shown = [(run_data, federation.holds(run_data)) for run_data in federation.partitions(runs_data)][:PARTITIONS]
    taken: list[str] = []
    for run_data, drawn in shown:
        if drawn is None:
            continue
        found = federation.by_cluster(run_data).found
        how = "as the method found them" if found else "by the label they hold most of"
        said = f"Each label's share of a client's samples, and how many it has. Lines part clusters, {how}."
        whose = run_data.condition or run_data.name if len(shown) > 1 else ""  # else all share it
        taken.append(f"holds{f'-{_slug(whose)}' if whose else ''}")
        again = f"-{taken.count(taken[-1])}" if taken.count(taken[-1]) > 1 else ""
        title = f"Who holds what{f': {whose}' if whose else ''}"
        yield Shown("federation", f"{taken[-1]}{again}", title, said, drawn)


def over_conditions(tested: Friedman | None) -> Iterator[Shown]:
    """Return the figure of methods over all conditions."""
    if tested is not None:
        said = (
            f"Mean places of the methods over {tested.conditions} conditions, by {title_of(tested.metric)}; 1 is the "
            f"best. Friedman's p is {tested.p:.3g}. A bar joins methods whose ranks are closer than Nemenyi's critical "
            "difference at 0.05: they cannot be told apart."
        )
        drawn = ranks.critical_difference(tested)
        yield Shown("curves", "critical-difference", "Mean ranks over conditions", said, drawn)


def under_conditions(runs_data: Sequence[RunData]) -> Iterator[Shown]:
    """Return a figure a condition, of as many as a page can hold: the accuracy of its rows."""
    for condition in list(dict.fromkeys(run_data.condition for run_data in runs_data))[:CONDITIONS]:
        own = [copy.copy(run_data) for run_data in runs_data if run_data.condition == condition]
        for run_data in own:
            run_data.group = run_data.row  # the heading names the condition
        if drawn := curves.curves(own, "accuracy"):
            band = "Lines are means over seeds, bands reach from the least to the most." if _banded(own) else ""
            yield Shown(
                "curves",
                f"accuracy-{_slug(condition)}",
                f"Accuracy under {condition}" if condition else "Accuracy",
                band,
                drawn,
            )


def of_one(run_data: RunData) -> Iterator[Shown]:
    """Return the figures that show one run; those for which it holds nothing are left out."""
    for section, name, title, said, draw in OWN:
        if drawn := draw(run_data):
            yield Shown(section, name, title, said, drawn)


def _slug(name: str) -> str:
    """Return a name as a part of that of a file."""
    return "".join(c if c.isalnum() else "-" for c in name)


def _banded(runs_data: Sequence[RunData]) -> bool:
    return len({run_data.group for run_data in runs_data}) < len(runs_data)


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
