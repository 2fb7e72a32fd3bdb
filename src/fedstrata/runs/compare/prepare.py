"""From what is asked to a comparison: everything is read and checked before the first cell is run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from fedstrata.config import tables
from fedstrata.config.build import build_federation
from fedstrata.config.experiment import Experiment
from fedstrata.config.open_stages import open_stages
from fedstrata.core.errors import RequestError
from fedstrata.data.federation import Federation
from fedstrata.runs.compare import budget as budgets
from fedstrata.runs.compare.ablation import ablate_method
from fedstrata.runs.compare.comparison import Comparison, lay_out
from fedstrata.runs.compare.control import replaced_stages, side_differences
from fedstrata.runs.compare.design import Design, read_same
from fedstrata.runs.compare.pool import Tell
from fedstrata.runs.compare.queue import check_jobs, check_minutes
from fedstrata.runs.compare.request import ComparisonRequest
from fedstrata.runs.compare.rows import ACCURACY
from fedstrata.runs.compare.settings import Condition, Entry, Given
from fedstrata.runs.compare.shards import Shard
from fedstrata.runs.metrics import metrics_of
from fedstrata.runs.session import as_asked
from fedstrata.runs.stage_choices import choose_stages
from fedstrata.runs.training import with_given


def compare(
    experiment: Mapping[str, Any] | str | Path | Experiment | None = None,
    *,
    methods: Sequence[str] | str = (),
    variants: Given = (),
    over: Mapping[str, Sequence[Any]] | None = None,
    conditions: Given = (),
    seeds: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    federation: Federation | None = None,
    model: nn.Module | None = None,
    out: str | Path | None = None,
    budget: str | None = None,
    ablate: Sequence[str] | str = (),
    same: Sequence[str] | str = (),
    metric: Sequence[str] | str = (),
    tune: Mapping[str, Any] | Sequence[str] = (),
    jobs: int | None = None,
    watch: Tell | None = None,
    minutes: float | None = None,
    shard: str | None = None,
    engine: str = "local",
    progress: bool = True,
) -> Comparison:
    """Run every method under every condition with every seed, and sum the runs up.

    Parameters
    ----------
    experiment, overrides, federation, model
        As in `train`. What the table `[compare]` of a file asks for is done, unless it is asked for differently here.
    methods
        Names of recipes, with keys of their own where wanted: "scaffold(corrections.0.gradients=raw)". The first is
        what the others are compared with.
    variants
        Further rows by name, with the keys that they set: `{"slow": {"method.name": "fedyogi", "train.lr": 0.01}}`, or
        a list of such tables, whose names are made of what they set.
    over
        Keys with their values: one condition for every value, and where there are several keys, for every combination.
    conditions
        Conditions by name, with all the keys that they set, as with `variants`; with `over`, each with every value.
    seeds
        How many, counted up from the experiment's own; 1 if nothing says otherwise.
    out
        The folder of the runs, by default the next free one under `runs/`. A comparison that lies there goes on.
    budget
        What each run may spend: "rounds=100", "bytes=50MB", "client_updates=2000" or "time=3600" (virtual seconds).
    ablate
        Stages of the one method, or of the experiment's own, to put back to FedAvg's, one at a time.
    same
        Stages or keys in which all rows get what the first one has, such as "combiner" or "train.lr".
    metric
        What is compared, by default "accuracy"; of several, ranks and the headline follow the first. Figures of the
        summary, "best", "mean_last10" and "personal" for short, or what an accuracy took: "rounds_to:0.8",
        "bytes_to:0.8", "client_updates_to:0.8", "time_to:0.8"; "balanced_rounds_to:0.8" by the balanced accuracy.
    tune
        Keys with the values that are tried, `{"train.lr": [0.01, 0.1]}`: each row gets, under each condition, what is
        best by the metric on samples that clients hold out of their training data, with other seeds than those of the
        comparison. Beside them "budget" ("rounds=50") and "seeds" of a trial, "validation", the share that is held out
        (0.2), "metric", where it is another one, and "rows" with further keys of single rows. "tuner": "optuna" tries
        so many "trials", of lists and of ranges such as "0.001..0.3:log".
    jobs, watch, minutes, shard, engine, progress
        As in `Comparison.run`.

    Returns
    -------
    Comparison

    Raises
    ------
    RequestError
        If an experiment is wrong, two rows are the same, a method does not fit the data, or the folder holds
        something else; nothing was trained then.

    Examples
    --------
    >>> import fedstrata
    >>> comparison = fedstrata.compare(methods=["fedavg", "scaffold"], seeds=2, overrides={"train.rounds": 1})
    >>> [row["method"] for row in comparison.rows]
    ['fedavg', 'scaffold']
    >>> [run.summary["seed"] for run in comparison.runs["scaffold"]]
    [0, 1]
    >>> print(comparison.table())
    method    accuracy ...
    """
    check_jobs(jobs)
    check_minutes(minutes)
    Shard.read(shard)
    request = ComparisonRequest.of(methods, variants, over or {}, conditions, seeds, budget, ablate, same, metric, tune)
    prepared = prepare(experiment, request, overrides, federation, model, out)
    return prepared.run(jobs=jobs, watch=watch, minutes=minutes, shard=shard, engine=engine, progress=progress)


def prepare(
    experiment: Mapping[str, Any] | str | Path | Experiment | None,
    request: ComparisonRequest,
    overrides: Mapping[str, Any] | None = None,
    federation: Federation | None = None,
    model: nn.Module | None = None,
    out: str | Path | None = None,
) -> Comparison:
    """Check a whole comparison, so that what does not fit is refused before the first cell is run."""
    if out == "":
        raise RequestError("out is empty; name a folder, or leave it out")
    if "method.name" in (overrides or {}):
        raise RequestError("method.name cannot be set in a comparison; name the methods with --methods")
    design, asked, notes = make_design(experiment, request, overrides, federation, model)
    notes += [*replaced_stages(design), *side_differences(design)]
    if design.tune:
        first = metrics_of(asked.metric, asked.metric)[0] if asked.metric else ACCURACY
        design = replace(design, tune=replace(design.tune, metric=design.tune.metric or first.name))
        notes += design.tune.check_rows(design.entries, design.conditions, design.same)
    return lay_out(None if out is None else Path(out), design, notes, federation, model, asked.metric, asked=True)


def make_design(
    experiment: Mapping[str, Any] | str | Path | Experiment | None,
    request: ComparisonRequest,
    overrides: Mapping[str, Any] | None = None,
    federation: Federation | None = None,
    model: nn.Module | None = None,
) -> tuple[Design, ComparisonRequest, list[str]]:
    """Return what is compared, all that was asked for, and notes; data are needed only where a choice is ablated."""
    source = experiment.dump() if isinstance(experiment, Experiment) else tables.read(experiment)
    asked = request.on_top_of(ComparisonRequest.from_table(source.pop("compare", {})))
    source.pop("paper", None)  # what is printed there decides nothing
    shared = tables.plain(with_given({**(overrides or {}), **budgets.overrides(asked.budget)}, federation, model))
    own = Experiment.of(source, **shared)
    entries, conditions = asked.entries(), asked.list_conditions()
    if not entries and not asked.ablate and conditions == [Condition("")]:
        raise RequestError(
            'compare needs at least one method: --methods fedavg,scaffold, or methods = ["fedavg", "scaffold"] in a '
            "table [compare] of the experiment"
        )
    if asked.ablate and len(entries) > 1:
        raise RequestError(f"--ablate takes one method apart, not {len(entries)}: {', '.join(e.name for e in entries)}")
    for setting in (*entries, *conditions):
        with_given(setting.overrides, federation, model)
    seeds = list(range(own.train.seed, own.train.seed + (asked.seeds or 1)))
    same = read_same(asked.same)
    design = Design(source, shared, entries or [Entry(own.method.name)], conditions, seeds, same, asked.tune)
    notes: list[str] = []
    if asked.ablate:
        whole = design.entries[0]
        known = design.experiments[conditions[0].name, whole.name]
        if open_stages(known):  # what there is to take away follows from the data
            known, _ = choose_stages(known, as_asked(known, federation or build_federation(known)), model)
        without, notes = ablate_method(whole, known, asked.ablate)
        design = replace(design, entries=[whole, *without])
    design.check()
    return design, asked, notes
