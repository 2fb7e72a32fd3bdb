"""What is asked of a comparison: the `[compare]` table of a file, and options that go on top of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import product
from typing import Any

from fedstrata.config import tables
from fedstrata.config.tables import write_value
from fedstrata.core.errors import RequestError
from fedstrata.core.registry import unknown_option
from fedstrata.runs.compare.settings import (
    Condition,
    Entry,
    Given,
    NamedOverrides,
    full_key,
    name_all,
    read_axis,
    read_method,
    read_settings,
    shorten,
)
from fedstrata.runs.compare.tune import Tune
from fedstrata.runs.metrics import metrics_of

TABLES = {"variant": "variants", "condition": "conditions"}  # `[[compare.variant]]` is one of `variants`


@dataclass(frozen=True)
class ComparisonRequest:
    """What a comparison shall hold. What is None or empty was not said."""

    methods: Sequence[str] = ()
    variants: Sequence[NamedOverrides] = ()
    over: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    conditions: Sequence[NamedOverrides] = ()
    seeds: int | None = None
    budget: str | None = None
    ablate: Sequence[str] = ()
    same: Sequence[str] = ()
    metric: Sequence[str] = ()
    tune: Tune = field(default_factory=Tune)

    @classmethod
    def of(
        cls,
        methods: Sequence[str] | str = (),
        variants: Given = (),
        over: Mapping[str, Sequence[Any]] | Sequence[str] = (),
        conditions: Given = (),
        seeds: int | None = None,
        budget: str | None = None,
        ablate: Sequence[str] | str = (),
        same: Sequence[str] | str = (),
        metric: Sequence[str] | str = (),
        tune: Mapping[str, Any] | Sequence[str] | Tune = (),
    ) -> ComparisonRequest:
        """Read what the command line, a file or Python says."""
        if seeds is not None and (isinstance(seeds, bool) or not isinstance(seeds, int) or seeds < 1):
            raise RequestError(
                f"seeds = {seeds} must be at least 1: it says how many seeds, such as 5, and train.seed says the first"
            )
        if budget is not None and not isinstance(budget, str):
            raise RequestError(f'budget = {budget!r} must be a text, such as "bytes=50MB"')
        return cls(
            methods=_names(methods, "methods"),
            variants=read_settings(variants, "variant"),
            over=_axes(over),
            conditions=read_settings(conditions, "condition"),
            seeds=seeds,
            budget=budget,
            ablate=_names(ablate, "ablate"),
            same=_names(same, "same"),
            metric=_metrics(_names(metric, "metric")),
            tune=tune if isinstance(tune, Tune) else Tune.of(tune),
        )

    @classmethod
    def from_table(cls, table: Any) -> ComparisonRequest:
        """Read the `[compare]` table of a file."""
        if not isinstance(table, Mapping):
            raise RequestError(f"compare = {table!r} must be a table")
        known = {name: name for name in cls.__dataclass_fields__ if name not in TABLES.values()} | TABLES
        for key in table:
            if key not in known:
                raise unknown_option(f"compare.{key}", key, set(known))
        try:
            return cls.of(**{known[key]: value for key, value in table.items()})
        except RequestError as error:
            raise RequestError(f"compare: {error}") from error

    def on_top_of(self, other: ComparisonRequest) -> ComparisonRequest:
        """Return both: what is said here wins; variants, conditions and axes of other names are added."""
        said = {own.name: value for own in fields(self) if (value := getattr(self, own.name))}
        for name in ("variants", "conditions"):
            said[name] = _replaced(getattr(other, name), getattr(self, name))
        return replace(
            other, **said | {"over": {**other.over, **self.over}} | {"tune": self.tune.on_top_of(other.tune)}
        )

    def entries(self) -> list[Entry]:
        """Return the rows: methods, then variants."""
        named = name_all([*map(read_method, self.methods), *self.variants], "method")
        return [Entry(one.name, one.overrides) for one in named]

    def list_conditions(self) -> list[Condition]:
        """Return the columns: every named condition with every value of every key; where none is asked for, one."""
        short = shorten(list(self.over))
        axes = [
            [NamedOverrides(f"{short[key]}={write_value(value)}", {key: value}) for value in values]
            for key, values in self.over.items()
        ]
        if self.conditions:
            axes.insert(0, name_all(self.conditions, "condition"))
        for named in self.conditions:
            if twice := [key for key in self.over if key in named.overrides]:
                raise RequestError(f"condition {named.name} sets {twice[0]}, and over gives it several values")
        found = [
            NamedOverrides(
                ", ".join(one.name for one in own), {key: v for one in own for key, v in one.overrides.items()}
            )
            for own in product(*axes)
        ]
        return [Condition(one.name, one.overrides) for one in (name_all(found, "condition") if axes else found)]


def _replaced(old: Sequence[NamedOverrides], new: Sequence[NamedOverrides]) -> list[NamedOverrides]:
    """Put settings in the place of those of the same name, and the others behind."""
    named = {setting.name: setting for setting in new if setting.name}
    known = {setting.name for setting in old}
    return [*(named.get(s.name, s) for s in old), *(s for s in new if not s.name or s.name not in known)]


def _names(given: Sequence[str] | str, what: str) -> list[str]:
    names = tables.split(given) if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not all(isinstance(name, str) and name.strip() for name in names):
        raise RequestError(f"{what} = {given!r} must be a list of names")
    return [name.strip() for name in names]


def _metrics(given: Sequence[str]) -> list[str]:
    """Read metrics; whether a name that is none of ours is measured, only the experiments say."""
    asked = [part.strip() for name in given for part in name.split(",")]
    return [one.name for one in metrics_of(asked, [name for name in asked if name.isidentifier()])] if asked else []


def _axes(given: Mapping[str, Sequence[Any]] | Sequence[str]) -> dict[str, list[Any]]:
    """Read axes of conditions: keys with their values, dotted or as nested tables, or texts."""
    axes: dict[str, list[Any]] = {}
    listed = (
        [(full_key(key, "over"), values) for key, values in tables.flatten(given).items()]
        if isinstance(given, Mapping)
        else [read_axis(text) for text in ([given] if isinstance(given, str) else given)]
    )
    for key, values in listed:
        if not isinstance(values, list) or not values:
            raise RequestError(f"over: {key} = {values!r} must be a list of values")
        if key in axes:
            raise RequestError(f"over: {key} is named twice")
        axes[key] = values
    return axes
