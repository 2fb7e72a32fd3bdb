"""A table of a paper: an ordinary comparison file whose table `[paper]` holds what was printed.

The files lie under `papers/`, a folder a paper. What is compared, the seeds and the primary contrast (the paper's own
method against the strongest printed baseline of each condition) are fixed there, before any run is made.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from hashlib import sha256
from importlib.resources import files
from typing import Any

from fedstrata.config.tables import flatten
from fedstrata.core import registry
from fedstrata.core.errors import RequestError, unknown_name
from fedstrata.core.registry import unknown_option
from fedstrata.data.sets.base import DataSet
from fedstrata.reproduce.overlay import lay_over
from fedstrata.reproduce.work import Work, data_set, work_of
from fedstrata.runs.compare.design import Design
from fedstrata.runs.compare.prepare import make_design
from fedstrata.runs.compare.request import ComparisonRequest
from fedstrata.runs.metrics import Criterion

PAPERS = {
    "stratify": "Stratify",
    "flips": "FLIPS",
    "fedpbs": "FedPBS",
    "fedbss": "FedBSS",
    "terraform": "Terraform",
}
STATUS = {"A": "digits are comparable", "B": "settings were filled in", "C": "only the trend is comparable"}

OWNERS = 3  # rows or conditions that are named where they have a setting in common
MADE = ("experiment", "reading", "not_stated", "lost", "only", "base")  # not said by a file

Printed = Mapping[str, Sequence[float]]  # by row; a figure a condition


@dataclass(frozen=True)
class Wanted:
    """A run that a table needs."""

    condition: str
    method: str
    seed: int

    @property
    def name(self) -> str:
        """What to call it."""
        return f"{f'{self.condition}: ' if self.condition else ''}{self.method}, seed {self.seed}"


@dataclass(frozen=True)
class PaperTable:
    """What a paper printed, and how it is reproduced."""

    id: str
    paper: str
    what: str  # table or figure, data, partition
    claim: str
    status: str
    method: str  # the row of the paper's own method
    experiment: Mapping[str, Any] = field(repr=False)  # the tables of the file, without `[paper]`
    figures: Mapping[str, Printed] = field(default_factory=dict)  # by metric; verdicts are about the first
    deviations: Mapping[str, Printed] = field(default_factory=dict)
    costs: Mapping[str, Printed] = field(default_factory=dict)  # what runs took, in any unit; no verdict is given
    baselines: Sequence[str] | None = None  # rows of the contrast; if not said, all others; if empty, there is none
    seeds: int = 6  # of the primary contrast; the other rows have those of `[compare]`
    order: int = 99  # which tables are reproduced first
    notes: Sequence[str] = ()
    not_comparable: str = ""  # why no verdict is given
    readings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # other ways to read the paper, by name
    quick: Mapping[str, Any] = field(default_factory=dict)  # keys that make it tiny, on data that is always there
    reading: str = ""  # the one that this table follows
    oddities: Sequence[str] = ()  # what is strange in the paper's own figures
    not_stated: Sequence[str] = ()  # lines of the file that the paper does not give
    lost: Sequence[str] = ()  # and those that it gives, but that our copy of it has lost
    only: Sequence[str] = ()  # the conditions that it looks at; if empty, all of the file
    base: PaperTable | None = field(default=None, repr=False)  # the table or reading beside which a method is run

    @cached_property
    def metrics(self) -> dict[str, Criterion]:
        """What was printed or, where no figure is, what is compared; by the name that the file gives it."""
        asked = self.experiment.get("compare", {}).get("metric", "accuracy")
        names = self.figures or ([asked] if isinstance(asked, str) else asked)
        return {name: Criterion.of(name) for name in names}

    @property
    def metric(self) -> str:
        """What verdicts are about."""
        return next(iter(self.metrics))

    @cached_property
    def asked(self) -> tuple[dict[str, Any], ComparisonRequest]:
        """The experiment as the file gives it, and what is compared; nothing is checked yet."""
        source, request = lay_over(self.experiment, _settings_of(self._read))
        named = self.only or [one.name for one in request.conditions]
        return source, replace(request, conditions=[one for one in request.conditions if one.name in named])

    @property
    def _read(self) -> Mapping[str, Any]:
        return self.readings.get(self.reading, {})

    @property
    def rows(self) -> list[str]:
        """The methods and variants."""
        return [row.name for row in self.asked[1].variants]

    @property
    def conditions(self) -> list[str]:
        """The columns."""
        return [condition.name for condition in self.asked[1].conditions]

    def settings(self, condition: str, row: str = "") -> dict[str, Any]:
        """Return what the file sets for a row under a condition, by dotted keys; nothing is checked."""
        source, request = self.asked
        laid = [one for one in request.conditions if one.name == condition]
        laid += [one for one in request.variants if one.name == row]
        return {"data.name": "digits", **flatten(source)} | {k: v for one in laid for k, v in one.overrides.items()}

    def work(self, condition: str, row: str) -> Work:
        """Return how much a run computes."""
        if (condition, row) not in self._works:
            self._works[condition, row] = work_of(self.settings(condition, row))
        return self._works[condition, row]

    @cached_property
    def _works(self) -> dict[tuple[str, str], Work]:
        return {}

    @cached_property
    def data_sets(self) -> list[DataSet]:
        """What is trained on, each once."""
        return list(dict.fromkeys(data_set(self.settings(condition)) for condition in self.conditions))

    @property
    def data(self) -> list[str]:
        """Their names."""
        return sorted({self.settings(condition)["data.name"] for condition in self.conditions})

    @cached_property
    def design(self) -> Design:
        """Rows and conditions as experiments, checked."""
        return self._design(*self.asked)

    @cached_property
    def tiny(self) -> Design:
        """The same in two rounds on small data: to see that it runs."""
        source, request = lay_over(self.experiment, _both(_settings_of(self._read), self.quick))
        named = self.only or [one.name for one in request.conditions]
        return self._design(source, replace(request, conditions=[c for c in request.conditions if c.name in named]))

    def _design(self, source: dict[str, Any], request: ComparisonRequest) -> Design:
        if request.tune:
            raise RequestError(f"{self.id}: compare.tune has no place here: a paper's table is run as it was tuned")
        try:
            return make_design(dict(source), request)[0]
        except RequestError as error:
            raise RequestError(f"{self.id}: {error}") from error

    def rounds(self, wanted: Wanted) -> int:
        """Return how many rounds a run has."""
        return self.design.experiments[wanted.condition, wanted.method].train.rounds

    def check(self) -> None:
        """Refuse a file in which what was printed does not fit what is compared."""
        rows = {entry.name for entry in self.design.entries}  # which checks all experiments
        for figures in (*self.figures.values(), *self.deviations.values(), *self.costs.values()):
            for row, values in figures.items():
                if row not in rows or len(values) != len(self.conditions):
                    raise RequestError(f"{self.id}: {row} must be a row with {len(self.conditions)} figures")
        if not {self.method, *(self.baselines or ())} <= rows or self.paper not in PAPERS or self.status not in STATUS:
            raise RequestError(f"{self.id}: its method, baselines, paper or status is unknown")

    def read_as(self, reading: str) -> PaperTable:
        """Return the table as another reading of the paper has it; only its primary contrast is run."""
        if reading not in self.readings:
            raise unknown_name("reading", reading, self.readings)
        compare = self.readings[reading].get("compare", {})
        found = self._under(compare.get("conditions", self.conditions))._with_own(compare.get("method", self.method))
        found = replace(found, id=f"{self.id} as {reading}", reading=reading)
        if (other := compare.get("metric", self.metric)) == self.metric:
            return found
        figures, deviations = (
            {other: by[self.metric]} if self.metric in by else {} for by in (found.figures, found.deviations)
        )
        return replace(found, figures=figures, deviations=deviations)

    def _under(self, conditions: Sequence[str]) -> PaperTable:
        """Return the table under some of its conditions alone."""
        at = [self.conditions.index(name) for name in conditions]
        figures, deviations, costs = (
            {metric: {row: [values[i] for i in at] for row, values in rows.items()} for metric, rows in by.items()}
            for by in (self.figures, self.deviations, self.costs)
        )
        return replace(self, only=tuple(conditions), figures=figures, deviations=deviations, costs=costs)

    def _with_own(self, method: str) -> PaperTable:
        """Return the table with another row as the paper's own method, to which then belongs what was printed of it."""
        if method not in self.rows:
            raise unknown_name("compare.method", method, self.rows)
        name = {self.method: method}
        figures, deviations, costs = (
            {metric: {name.get(row, row): own for row, own in rows.items()} for metric, rows in by.items()}
            for by in (self.figures, self.deviations, self.costs)
        )
        return replace(self, method=method, figures=figures, deviations=deviations, costs=costs)

    @property
    def file_id(self) -> str:
        """The id of its file: of a reading, and of a method beside a table, that of the table itself."""
        return self.id.removesuffix(f" as {self.reading}") if self.base is None else self.base.file_id

    @property
    def same_runs(self) -> bool:
        """Whether this reading only looks otherwise at runs of the table as its file has it, or of a reading before."""
        return bool(self.reading) and self.kept_as != self.id

    @property
    def kept_as(self) -> str:
        """The id under which its runs are kept: that of the first reading with the same settings."""
        if self.base is not None:
            return f"{self.base.kept_as} with {self.method}"
        settings = _runs_of(self._read)
        first = next((name for name, read in self.readings.items() if _runs_of(read) == settings), "")
        return f"{self.file_id} as {first}" if settings else self.file_id

    def beside(self, method: str) -> PaperTable:
        """Return a table with one row, a method that the paper does not have, against the paper's own method."""
        if method in self.rows:
            raise RequestError(f'with = "{method}" is a row of {self.id} already')
        if not self.contrasted:
            raise RequestError(f"{self.id} holds no method against others, so {method} has no place beside it")
        compare = {key: value for key, value in self.experiment["compare"].items() if key not in ("methods", "variant")}
        own = {**compare, "variant": [{"name": method, "method": {"name": method}}]}
        read = {key: value for key, value in self._read.items() if key != "variant"}  # which are rows of the paper
        found = replace(
            self._under(self.contrasted),  # elsewhere the paper's own method has fewer seeds
            id=f"{self.id} with {method}",
            method=method,
            baselines=[self.method],
            experiment={**self.experiment, "compare": own},
            readings={self.reading: read} if self.reading else {},
            base=self,
        )
        _ = found.design  # which checks that there is such a method, and that it fits
        return found

    def figure(self, metric: str, method: str, condition: str) -> float:
        """Return a figure as it was printed, a share as a share; nan where there is none."""
        return self._looked_up(self.figures, metric, method, condition)

    def deviation(self, metric: str, method: str, condition: str) -> float:
        """Return the standard deviation that was printed with it."""
        return self._looked_up(self.deviations, metric, method, condition)

    def _looked_up(self, figures: Mapping[str, Printed], metric: str, method: str, condition: str) -> float:
        row = figures.get(metric, {}).get(method)
        value = math.nan if row is None else float(row[self.conditions.index(condition)])
        return value if Criterion.of(metric).lower else value / 100

    def baseline(self, condition: str) -> str | None:
        """Return the strongest printed baseline of a condition; where no figure is printed, the first that is named."""
        return self._baselines[condition]

    @cached_property
    def _baselines(self) -> dict[str, str | None]:
        return {condition: self._strongest(condition) for condition in self.conditions}

    def _strongest(self, condition: str) -> str | None:
        rows = self.baselines
        if rows is None:
            rows = [row for row in self.figures.get(self.metric, ()) if row != self.method]
        known = {row: value for row in rows if not math.isnan(value := self.figure(self.metric, row, condition))}
        if not known:
            return next(iter(self.baselines or ()), None)
        return (min if self.metrics[self.metric].lower else max)(known, key=lambda row: known[row])

    @property
    def contrasted(self) -> list[str]:
        """The conditions under which the paper's own method is held against another."""
        return [condition for condition, baseline in self._baselines.items() if baseline is not None]

    def primary(self, wanted: Wanted) -> bool:
        """Say whether a run belongs to the primary contrast: where nothing is printed, there is nothing to contrast."""
        baseline = self.baseline(wanted.condition)
        if baseline is None and self.contrasted:
            return False
        return wanted.method in (self.method, baseline)

    def wanted(self) -> list[Wanted]:
        """Return all runs in the order of their weight: the primary contrast seed by seed, then the other rows."""
        return list(self._wanted)

    @cached_property
    def _wanted(self) -> list[Wanted]:
        source, request = self.asked
        first, few = source.get("train", {}).get("seed", 0), request.seeds or 1
        every = [
            Wanted(condition, row, first + number)
            for number in range(max(few, self.seeds))
            for condition in self.conditions
            for row in self.rows
        ]
        kept = [one for one in every if self.primary(one) or (one.seed - first < few and not self.reading)]
        return sorted(kept, key=lambda one: not self.primary(one))

    def digest(self, wanted: Wanted) -> str:
        """Hash what the file asks of a run: figures of other settings are not its figures.

        Keys that the file leaves alone do not count, or every new key of a later version would void earlier runs.
        """
        source, request = self.asked
        condition = next(one.overrides for one in request.conditions if one.name == wanted.condition)
        row = next(one.overrides for one in request.variants if one.name == wanted.method)
        settings: tuple[Any, ...] = (source, dict(condition), dict(row), wanted.seed)
        method = self.settings(wanted.condition, wanted.method).get("method.name", "fedavg")
        recipe = registry.find("methods", method, "method.name")
        if recipe.choose is not None:  # what it chooses is no setting of the file
            settings = (*settings, recipe.version)
        return sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def _settings_of(reading: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a reading changes in experiments; `compare` says how to look at them."""
    return {section: own for section, own in reading.items() if section != "compare"}


def _both(reading: Mapping[str, Any], quick: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings to lay over a file: a reading's, and over them those that make it tiny, on data of their own."""
    merged = {**reading, **quick}
    for section in reading.keys() & quick.keys():
        if "name" not in quick[section]:
            merged[section] = {**reading[section], **quick[section]}
    return merged


def _runs_of(reading: Mapping[str, Any]) -> dict[str, Any]:
    """Return what decides which runs a reading needs: another method of the paper's needs more seeds of its row."""
    method = reading.get("compare", {}).get("method")
    return _settings_of(reading) | ({} if method is None else {"compare.method": method})


@cache
def all_tables() -> dict[str, PaperTable]:
    """Return every table by its id, in the order in which they are reproduced."""
    found = sorted(map(read_table, _texts()), key=lambda table: (table.order, table.id))
    return {table.id: table for table in found}


def find_table(name: str) -> PaperTable:
    """Return a table by its id, checked."""
    tables = {known.lower(): table for known, table in all_tables().items()}
    if name.lower() not in tables:
        raise unknown_name("ID", name, all_tables())
    tables[name.lower()].check()
    return tables[name.lower()]


def read_table(text: str) -> PaperTable:
    """Read a file."""
    experiment = tomllib.loads(text)
    said = experiment.pop("paper")
    allowed = PaperTable.__dataclass_fields__.keys() - set(MADE)
    for key in said:
        if key not in allowed:
            raise unknown_option(f"paper.{key}", key, allowed)
    return PaperTable(**said, experiment=experiment, not_stated=_marked(text), lost=_marked(text, " in our copy"))


def _marked(text: str, where: str = "") -> list[str]:
    """Return the settings of a file of which a comment says that the paper does not state them, each once.

    With `where`, those that only our copy of the paper does not have. Settings of a row or a condition have its name.
    """
    section, owner, found = "", "", list[str]()
    for line in text.splitlines():
        setting, mark, comment = (part.strip() for part in line.partition("#"))
        if setting.startswith("["):
            section, owner = setting.strip("[]"), ""
        elif setting.startswith("name = ") and section in ("compare.variant", "compare.condition"):
            owner = f"{setting.removeprefix('name = ').strip(chr(34))}: "
        told = re.fullmatch(r"(.*?)not stated( in our copy)?[:;]? ?(.*)", comment) if mark else None
        if told is None or setting.startswith("[") or (told[2] or "") != where:
            continue
        why = comment if told[1] else told[3]
        key = setting if section.startswith("compare.") else f"{section}.{setting}".lstrip(".")
        found.append(f"{owner}{key}{f' ({why})' if why else ''}" if setting else why)
    return _each_once(found)


def _each_once(settings: Sequence[str]) -> list[str]:
    """Leave out owners of what all that it is set for have in common."""
    owners: dict[str, list[str]] = {}
    for one in settings:
        owner, colon, rest = one.partition(": ")
        named = bool(colon) and " = " not in owner
        owners.setdefault(" ".join((rest if named else one).split()), []).append(owner if named else "")
    few = {said: " / ".join(own) for said, own in owners.items() if all(own) and len(own) <= OWNERS}
    return [f"{few[said]}: {said}" if said in few else said for said in owners]


def _texts() -> Iterator[str]:
    for paper in files("fedstrata.reproduce").joinpath("papers").iterdir():
        for file in paper.iterdir() if paper.is_dir() else ():
            if file.name.endswith(".toml"):
                yield file.read_text(encoding="utf-8")
