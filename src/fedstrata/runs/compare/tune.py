"""What is tuned: keys with the values or ranges that are tried, for all rows or for one, and what the search may spend.

Text, TOML and Python say the same: `train.lr=0.01,0.1`, `train.lr=0.001..0.3:log`, and `fedprox: corrections.0.mu=0,1`
for one row alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import product
from typing import Any

from fedstrata.config import tables
from fedstrata.config.tables import write_value
from fedstrata.core.errors import RequestError, unknown_name
from fedstrata.core.registry import unknown_option
from fedstrata.data.validation import KEY as VALIDATION
from fedstrata.methods.recipes import STAGES
from fedstrata.runs.compare import budget as budgets
from fedstrata.runs.compare.settings import SECTIONS, Condition, Entry, full_key, read_axis, within
from fedstrata.runs.metrics import Criterion

TUNERS = ("grid", "optuna")
FIRST_SEED = 10**6  # above the experiment's own: however many seeds a comparison gets, none was tuned with
HELD_OUT = 0.2
TRIALS = 30
NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
RANGE = re.compile(rf"({NUMBER})\.\.({NUMBER})(:log)?")

Setting = Mapping[str, Any]  # keys and the values that are tried


@dataclass(frozen=True)
class Range:
    """All numbers between two, on a logarithmic scale where that is asked for; whole ones where both ends are."""

    low: float
    high: float
    log: bool = False

    @classmethod
    def of(cls, text: str, key: str) -> Range:
        """Read `0.001..0.3:log`."""
        found = RANGE.fullmatch(text.strip())
        if found is None:
            raise RequestError(f'tune: {key} = "{text}" must be a list of values, or a range such as 0.001..0.3:log')
        low, high = (tables.read_value(end) for end in found.groups()[:2])
        if not low < high or (found[3] and low <= 0):
            raise RequestError(f"tune: {key} = {text} must go from a smaller{' positive' * bool(found[3])} number up")
        return cls(low, high, bool(found[3]))

    @property
    def whole(self) -> bool:
        """Whether only whole numbers are meant."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def __str__(self) -> str:
        return f"{self.low}..{self.high}{':log' if self.log else ''}"


Values = Sequence[Any] | Range


@dataclass(frozen=True)
class Tune:
    """What a search tries. What is None or empty was not said."""

    keys: Mapping[str, Values] = field(default_factory=dict)
    rows: Mapping[str, Mapping[str, Values]] = field(default_factory=dict)  # keys of one row, by its name
    budget: str | None = None  # of each trial
    seeds: int | None = None
    validation: float | None = None
    tuner: str | None = None
    trials: int | None = None
    metric: str | None = None  # by which is chosen; that of the comparison, unless it is said

    @classmethod
    def of(cls, given: Any, **more: Any) -> Tune:
        """Read texts, or a table of keys with their values beside `budget`, `seeds` and so on."""
        if isinstance(given, Mapping):
            own = {name.name for name in fields(cls)} - {"keys"}
            table = {key: value for key, value in given.items() if key not in own}
            for key in table:
                if key.split(".")[0] not in (*SECTIONS, *STAGES):
                    raise unknown_option(f"tune.{key}", key, own | {"train.lr", *SECTIONS, *STAGES})
            rows = given.get("rows", {})
            if not isinstance(rows, Mapping) or not all(isinstance(one, Mapping) for one in rows.values()):
                raise RequestError(f"tune: rows = {rows!r} must be a table of rows, each with keys and their values")
            found = cls(_space(table), {name: _space(one) for name, one in rows.items()})
            more = {key: value for key, value in given.items() if key in own - {"rows"}} | more
        else:
            found = cls._from_texts([given] if isinstance(given, str) else given)
        found = replace(found, **{key: value for key, value in more.items() if value is not None})
        found._check_values()
        return found

    @classmethod
    def _from_texts(cls, texts: Sequence[str]) -> Tune:
        shared: list[str] = []
        rows: dict[str, list[str]] = {}
        for text in texts:
            name, colon, rest = text.partition(":")
            own = rows.setdefault(name.strip(), []) if colon and "=" not in name else shared
            own.append(rest if own is not shared else text)
        read = {name: _space(dict(_pairs(one))) for name, one in {"": shared, **rows}.items()}
        return cls(read.pop(""), read)

    def __bool__(self) -> bool:
        return self != Tune()

    def on_top_of(self, other: Tune) -> Tune:
        """Return both: what is said here wins, key by key."""
        said = {one.name: value for one in fields(self) if (value := getattr(self, one.name)) is not None}
        rows = {name: {**other.rows.get(name, {}), **self.rows.get(name, {})} for name in {**other.rows, **self.rows}}
        return replace(other, **said | {"keys": {**other.keys, **self.keys}, "rows": rows})

    def to_json(self) -> dict[str, Any]:
        """Return a plain table, which `of` reads back."""
        said = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("keys", "rows")}
        rows = {name: _plain(own) for name, own in self.rows.items()}
        return {**_plain(self.keys), "rows": rows} | {key: value for key, value in said.items() if value is not None}

    @property
    def overrides(self) -> dict[str, Any]:
        """What every trial sets, whatever its row and its condition say."""
        share = HELD_OUT if self.validation is None else self.validation
        return {**budgets.overrides(self.budget), VALIDATION: share}

    @property
    def uses_optuna(self) -> bool:
        """Whether Optuna suggests what to try."""
        return self.tuner == "optuna"

    def list_seeds(self, first: int) -> list[int]:
        """Return the seeds of trials, which no comparison has."""
        return [first + FIRST_SEED + at for at in range(self.seeds or 1)]

    def space(self, entry: Entry) -> dict[str, Values]:
        """Return what is tried for a row; what it sets itself is left as it is."""
        space = {**self.keys, **self.rows.get(entry.name, {})}
        return {key: values for key, values in space.items() if not any(within(key, own) for own in entry.overrides)}

    def grid(self, entry: Entry) -> list[dict[str, Any]]:
        """Return every setting that is tried for a row; of ranges, the corners."""
        space = {k: [v.low, v.high] if isinstance(v, Range) else v for k, v in self.space(entry).items()}
        return [dict(zip(space, values, strict=True)) for values in product(*space.values())] if space else []

    def check_rows(self, entries: Sequence[Entry], conditions: Sequence[Condition], same: Sequence[str]) -> list[str]:
        """Refuse what contradicts the rows and conditions; say which rows keep what they set themselves."""
        self._check_together()
        for name in self.rows:
            if name not in {entry.name for entry in entries}:
                raise unknown_name("tune", name, [entry.name for entry in entries])
        every = [*self.keys, *(key for own in self.rows.values() for key in own)]
        for key in every:
            if condition := next((c.name for c in conditions if any(within(key, own) for own in c.overrides)), None):
                raise RequestError(f"tune: {key} is what the condition {condition} sets; leave one of them out")
            if other := next((other for other in same if within(key, other)), None):
                raise RequestError(f"tune: {key}, and same = {other} gives all rows what the first has; leave one out")
        if not any(self.space(entry) for entry in entries):
            raise RequestError(f"tune: every row sets {', '.join(every)} itself, so that nothing is left to tune")
        kept = {
            entry.name: [key for key in {**self.keys, **self.rows.get(entry.name, {})} if key not in self.space(entry)]
            for entry in entries
        }
        return [f"{name} sets {', '.join(own)} itself, which is not tuned there" for name, own in kept.items() if own]

    def _check_values(self) -> None:
        for name in ("seeds", "trials"):
            count = getattr(self, name)
            if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
                raise RequestError(f"tune: {name} = {count} must be at least 1")
        share = self.validation
        if share is not None and (isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1):
            raise RequestError(f"tune: validation = {share} must be a number between 0 and 1")
        if self.tuner is not None and self.tuner not in TUNERS:
            raise unknown_name("tuner", str(self.tuner), TUNERS)
        if self.budget is not None and not isinstance(self.budget, str):
            raise RequestError(f'tune: budget = {self.budget!r} must be a text, such as "rounds=50"')
        budgets.overrides(self.budget)
        if self.metric is not None:
            Criterion.of(self.metric, (self.metric.strip(),))

    def _check_together(self) -> None:
        """Refuse what does not fit together, once all is said: a file may name the keys, and an option the tuner."""
        spends, spaces = budgets.overrides(self.budget), [self.keys, *self.rows.values()]
        if not any(spaces):
            raise RequestError("tune names no key; say what is tried, such as train.lr=0.01,0.1")
        for key, values in [pair for space in spaces for pair in space.items()]:
            if key in spends:
                raise RequestError(f'tune: {key} is what budget = "{self.budget}" sets; leave one of them out')
            if isinstance(values, Range) and not self.uses_optuna:
                raise RequestError(f"tune: {key} = {values} is a range: name values, or use --tuner optuna")
        if self.trials is not None and not self.uses_optuna:
            raise RequestError(f"trials = {self.trials} is for --tuner optuna; a grid is tried as a whole")


def _pairs(texts: Sequence[str]) -> list[tuple[str, Any]]:
    pairs = [read_axis(text.strip(), "tune") for text in texts]
    for key, _ in pairs:
        if [other for other, _ in pairs].count(key) > 1:
            raise RequestError(f"tune: {key} is named twice")
    return [(key, own[0] if len(own) == 1 and isinstance(own[0], str) else own) for key, own in pairs]


def _space(table: Mapping[str, Any]) -> dict[str, Values]:
    """Read keys with their values, dotted or as nested tables."""
    space: dict[str, Values] = {}
    for short, values in tables.flatten(table).items():
        key = full_key(short, "tune")
        if (
            key.split(".")[0] == "data"
            or key in ("method", "method.name", "train.seed")
            or within(key, "train.evaluate")
        ):
            raise RequestError(f"tune: {key} is no setting of a row: it says what is learned or how that is measured")
        if isinstance(values, str):
            space[key] = Range.of(values, key)
            continue
        if not isinstance(values, list) or len(values) < 2:
            raise RequestError(f"tune: {key} = {values!r} must be a list of at least two values")
        texts = [write_value(value) for value in values]
        if twice := [text for at, text in enumerate(texts) if text in texts[:at]]:
            raise RequestError(f"tune: {key} has {twice[0]} twice")
        space[key] = values
    return space


def _plain(space: Mapping[str, Values]) -> dict[str, Any]:
    return {key: str(values) if isinstance(values, Range) else list(values) for key, values in space.items()}
