"""One look at a federation, or at a table of label counts: measures and advice."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from fedstrata.config import tables
from fedstrata.config.build import build_federation
from fedstrata.config.completion import make
from fedstrata.config.experiment import Experiment
from fedstrata.core import html
from fedstrata.core.errors import RequestError
from fedstrata.core.index import Split
from fedstrata.core.plan import per_round
from fedstrata.data.federation import Federation
from fedstrata.data.label_table import LabelTable
from fedstrata.data.reading import Samples
from fedstrata.inspection.advice import Advice, Tried, advise
from fedstrata.inspection.contents import contents
from fedstrata.inspection.count_file import read_counts
from fedstrata.inspection.domains import domains
from fedstrata.inspection.measures import Measure, Measures, readings
from fedstrata.inspection.rules import SkewFacts
from fedstrata.methods.recipes import STAGES
from fedstrata.methods.selectors.flips import Flips

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Source = Mapping[str, Any] | str | Path | Experiment | None
WIDE = 784  # features of samples that are not known, so that a model outweighs the numbers beside it
LISTED = 1000  # most clients whose counts are written out


@dataclass(frozen=True)
class Inspection:
    """How skewed a federation is, and which recipes fit.

    Attributes
    ----------
    name
        Of the data.
    table
        Label counts of clients that hold something.
    measures
        As numbers: `emd_mean`, `effective_labels_mean`, `size_gini`, `alpha_class` and so on.
    advice
        Recipes that fit: `recipe`, `because`, `cost` beside FedAvg, what it `reveals`, the `command` that runs it.
    refused
        Recipes that would fit the data, but not this experiment, and why.
    baseline
        FedAvg: what a round costs, and what the server could learn.
    k
        Clients of a round.
    from_samples
        False: only counts are known.
    notes
        What the partition had to do, and whether data move.

    Examples
    --------
    >>> import fedstrata
    >>> found = fedstrata.inspect(counts=[[90, 10], [10, 90], [50, 50]])
    >>> found.measures.clients, round(found.measures.emd_mean, 2)
    (3, 0.53)
    >>> found.readings[0].name
    'EMD to the global mix'
    """

    name: str
    table: LabelTable
    measures: Measures
    advice: list[Advice]
    refused: Mapping[str, str]
    baseline: Tried
    k: int
    from_samples: bool
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        m, fits = self.measures, ", ".join(advice.recipe for advice in self.advice) or "nothing in particular"
        return (
            f"Inspection({self.name}: {m.clients} clients, {m.samples} samples, {m.labels} labels, "
            f"EMD {m.emd_mean:.2f}, alpha {m.alpha_class:.2g}; fits: {fits})"
        )

    def _repr_html_(self) -> str:
        measured = html.table(["measure", "value", "meaning"], [(r.name, r.value, r.meaning) for r in self.readings])
        fits = html.table(["fits", "because", "command"], [(a.recipe, a.because, a.command) for a in self.advice])
        refused = [f"{recipe} would fit, but not this experiment: {why}" for recipe, why in self.refused.items()]
        return f"{html.title(repr(self))}{measured}{fits if self.advice else ''}{html.notes([*self.notes, *refused])}"

    @property
    def readings(self) -> list[Measure]:
        """Every measure in words."""
        return readings(self.measures, self.from_samples)

    def plot_labels(self) -> Figure:
        """Show who holds which labels.

        Returns
        -------
        plotly.graph_objects.Figure
        """
        from fedstrata.inspection.figures import labels  # noqa: PLC0415  slow to import

        return labels(self.table)

    def plot_skew(self) -> Figure:
        """Show how clients differ in size, labels and distance to the global mix.

        Returns
        -------
        plotly.graph_objects.Figure
        """
        from fedstrata.inspection.figures import skew  # noqa: PLC0415

        return skew(self.table)

    def html(self) -> str:
        """Return a page that needs nothing beside itself.

        Returns
        -------
        str
        """
        from fedstrata.inspection.page import page  # noqa: PLC0415

        return page(self)

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain tables.

        Returns
        -------
        dict
        """
        counts = self.table.counts.tolist() if len(self.table) <= LISTED else None
        return {
            "data": self.name,
            "from_samples": self.from_samples,
            "clients_per_round": self.k,
            "measures": asdict(self.measures),
            "meanings": {reading.name: reading.meaning for reading in self.readings},
            "labels": list(self.table.labels),
            "counts": counts,  # None where there are too many clients to write out
            "baseline": asdict(self.baseline),
            "advice": [asdict(advice) for advice in self.advice],
            "refused": dict(self.refused),
            "notes": list(self.notes),
        }


def inspect(
    experiment: Source = None,
    *,
    overrides: Mapping[str, Any] | None = None,
    federation: Federation | None = None,
    model: nn.Module | None = None,
    counts: Any = None,
) -> Inspection:
    """Look at data before training.

    Parameters
    ----------
    experiment, overrides, federation, model
        As for `train`: what would be trained on, and how a round would be set up.
    counts
        Instead of data, a table [clients, labels] of label counts, or a CSV file of them. Labels may be placeholders.
        What needs the samples is then not measured.

    Returns
    -------
    Inspection

    Raises
    ------
    RequestError
        If the experiment or the counts are wrong, or the data are told twice.

    Examples
    --------
    >>> import fedstrata
    >>> found = fedstrata.inspect(overrides={"data.partition.alpha": 0.1})
    >>> found.measures.clients, found.measures.samples
    (20, 1438)
    >>> found.advice[0].command
    'fedstrata run --set data.partition.alpha=0.1 --set method.name=strata'
    """
    given = dict(overrides or {})
    _check(given, federation, counts)
    first = Experiment.of(experiment, **given)

    def described(method: str, settings: Mapping[str, Any]) -> Experiment:
        return Experiment.of(experiment, **{**_given_to(method, given), "method.name": method, **settings})

    known: dict[str, Any] = {}
    notes: tuple[str, ...] = ()
    if counts is not None:
        command = _command("EXPERIMENT.toml", given)
        from_file = isinstance(counts, str | Path)
        table, name = (read_counts(counts), str(counts)) if from_file else (LabelTable.of(_array(counts)), "counts")
        federation = _standing_for(table)
    else:
        command = _command(experiment, given) if federation is None else _call(given, model is not None)
        whole = build_federation(first) if federation is None else federation
        notes = whole.notes if whole.moves is None else (*whole.notes, "data move; this is the first round")
        federation = whole.at(0)
        table, name = LabelTable.of(federation.counts, federation.classes, federation.names), federation.name
        known = {"contents": contents(federation), "domains": domains(federation, first.train.seed)}
    k = min(per_round(first.train.clients_per_round, len(federation)), len(table))
    selector = first.method.selector
    own = make("selectors", selector, "method.selector") if tables.is_part(selector) else None
    flips = own if isinstance(own, Flips) else None
    measures = Measures.of(table, k, **known, seed=first.train.seed, own=flips)
    short = float((table.sizes < first.train.batch_size).mean())
    facts = SkewFacts(measures, k, first.train.epochs, short, first.system.stragglers.rate)
    baseline, advice, refused = advise(facts, described, federation, model, command)
    return Inspection(name, table, measures, advice, refused, baseline, k, bool(known), notes)


def _check(overrides: Mapping[str, Any], federation: Any, counts: Any) -> None:
    """Refuse to be told twice what the data are."""
    if federation is not None and counts is not None:
        raise RequestError("give a federation or counts, not both")
    if federation is not None and not isinstance(federation, Federation):
        raise RequestError("federation must be a fedstrata.Federation; make one with Federation.from_clients")
    what = "federation was" if federation is not None else "counts were"
    if (federation is not None or counts is not None) and (
        told := [key for key in overrides if key.startswith("data.")]
    ):
        raise RequestError(f"{told[0]} cannot be set: the {what} given")


def _array(counts: Any) -> np.ndarray:
    try:
        return np.asarray(counts)
    except ValueError as error:
        raise RequestError(f"counts must be a table [clients, labels]: {error}") from None


def _standing_for(table: LabelTable) -> Federation:
    """Return a federation with these label counts and samples that are all the same, to rehearse plans on."""
    labels = np.repeat(np.tile(np.arange(len(table.labels)), len(table)), table.counts.reshape(-1))
    x = torch.zeros(1, WIDE).expand(len(labels), WIDE)  # takes no memory
    split = Split.sized(np.arange(len(labels)), table.sizes)
    train = Samples(x, torch.from_numpy(labels))
    return Federation(train, replace(train, x=x[:0], y=train.y[:0]), split, Split.nothing(len(table)), table.labels)


def _given_to(method: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out options of the parts of a method that is named beside them, where another method is meant."""
    if overrides.get("method.name", method) == method:
        return dict(overrides)
    parts = [f"method.{stage}" for stage in STAGES]
    named = {part for part in parts if {part, f"{part}.kind"} & overrides.keys()}
    left = tuple(f"{part}." for part in parts if part not in named)
    return {key: value for key, value in overrides.items() if not key.startswith(left)}


def _command(source: Source, overrides: Mapping[str, Any]) -> Callable[[str, Mapping[str, Any]], str]:
    """Return a function that writes the shell command which runs a recipe."""
    if isinstance(source, Mapping | Experiment):
        return _call(overrides, False, "experiment, ")

    def command(method: str, settings: Mapping[str, Any]) -> str:
        sets = {**_given_to(method, overrides), "method.name": method, **settings}
        words = ["fedstrata", "run", *([] if source is None else [str(source)])]
        return shlex.join([*words, *(w for key, value in sets.items() for w in ("--set", f"{key}={_toml(value)}"))])

    return command


def _call(overrides: Mapping[str, Any], model: bool, before: str = "") -> Callable[[str, Mapping[str, Any]], str]:
    """Return a function that writes the same as a call from Python."""

    def call(method: str, settings: Mapping[str, Any]) -> str:
        sets = {**_given_to(method, overrides), **settings}
        sets.pop("method.name", None)
        more = [f"overrides={sets!r}"] if sets else []
        more += [] if before else ["federation=federation", *(["model=model"] if model else [])]
        return f"fedstrata.train({before}{', '.join([f'method={method!r}', *more])})"

    return call


def _toml(value: Any) -> str:
    """Write a value as `--set` reads it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(_quoted(v) for v in value)}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_quoted(v)}" for key, v in value.items()) + "}"
    return str(value)


def _quoted(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else _toml(value)
