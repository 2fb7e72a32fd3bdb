"""Keys that a row or a condition of a comparison sets: read from text, TOML or Python, and named after what they say.

Keys of a stage may leave `method.` out: `combiner.kind` is `method.combiner.kind`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from fedstrata.config import tables
from fedstrata.config.experiment import Experiment, meant_key
from fedstrata.config.tables import write_value
from fedstrata.core.errors import RequestError, unknown_name
from fedstrata.methods.recipes import STAGES

LONGEST = 100  # characters of a folder's name
TAKEN = ("lock", "comparison.json", "tuning", "writing.lock")  # what every comparison has in its folder
SECTIONS = tuple(Experiment.model_fields)
EMPTY = ("kind", "name", "rate")  # words of a key that say nothing without the one before

Given = Mapping[str, Mapping[str, Any]] | Sequence[Mapping[str, Any] | str]  # named, or a list that names itself


@dataclass(frozen=True)
class NamedOverrides:
    """Keys and their values, under a name."""

    name: str
    overrides: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry(NamedOverrides):
    """A row of a comparison: a method or a variant of one, by what it sets on top of the experiment."""

    without: str | None = None  # the stage that was put back to FedAvg's


@dataclass(frozen=True)
class Condition(NamedOverrides):
    """A column of a comparison: what all rows are run under, by what it sets. Without a name it is the only one."""


def full_key(key: str, what: str) -> str:
    """Return a key in full; that of a stage may leave `method.` out."""
    first = key.split(".", maxsplit=1)[0]
    if first in STAGES:
        return f"method.{key}"
    if first not in SECTIONS:
        if meant := meant_key(key, like=1):
            raise RequestError(f'{what} = "{key}" is unknown (did you mean {meant}?)')
        raise unknown_name(what, key, [*SECTIONS, *STAGES])
    return key


def within(key: str, other: str) -> bool:
    """Say whether one of two keys sets a part of what the other sets."""
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")


def read_settings(given: Given, what: str) -> list[NamedOverrides]:
    """Read variants or conditions: a mapping by name, or a list of tables or texts, each with its name or without."""
    if isinstance(given, Mapping):
        given = [{**_table(table, f"{what} {name}"), "name": name} for name, table in given.items()]
    if isinstance(given, str):
        given = [given]
    return [_from_text(one, what) if isinstance(one, str) else _from_table(one, what) for one in given]


def read_method(text: str) -> NamedOverrides:
    """Read `scaffold` or `scaffold(corrections.0.gradients=raw)`."""
    name, bracket, rest = text.partition("(")
    if bracket and not rest.endswith(")"):
        raise RequestError(f'methods: "{text}" has no closing bracket; write method(key=value, key=value)')
    own = _assignments(rest[:-1], f"methods: {text}") if bracket else {}
    if "method.name" in own:
        raise RequestError(f'methods: "{text}" sets method.name, which stands before the bracket')
    return NamedOverrides("", {"method.name": name.strip(), **own})


def read_axis(text: str, what: str = "over") -> tuple[str, list[Any]]:
    """Read `data.partition.alpha=0.1,0.3`."""
    key, equals, values = text.partition("=")
    if not equals or not tables.split(values):
        like = "data.partition.alpha=0.1,0.3" if what == "over" else "train.lr=0.03,0.1"
        raise RequestError(f'{what} "{text}" must look like {like}')
    return full_key(key.strip(), what), [tables.read_value(value) for value in tables.split(values)]


def name_all(settings: Iterable[NamedOverrides], what: str) -> list[NamedOverrides]:
    """Give a name to those that have none, after what they set; refuse two of one name."""
    settings = list(settings)
    short = [s.name or describe(s.overrides) for s in settings]
    named: dict[str, NamedOverrides] = {}
    for setting, brief in zip(settings, short, strict=True):
        vague = short.count(brief) > 1 and not setting.name
        name = describe(setting.overrides, whole=True) if vague else brief
        if name in named:
            again = dict(named[name].overrides) == dict(setting.overrides)
            raise RequestError(
                f"a {what} is named twice: {name}" + ("" if again else "; give them names that tell them apart")
            )
        named[name] = NamedOverrides(name, setting.overrides)
    folders: dict[str, str] = {}
    for name in named:
        if folder_name(name).lower() in TAKEN:
            raise RequestError(
                f'{what} "{name}": a file or folder of every comparison is called so; choose another name'
            )
        if (other := folders.setdefault(folder_name(name).lower(), name)) != name:
            raise RequestError(f"{what}s {other} and {name} would lie in one folder; give one of them another name")
    return list(named.values())


def describe(overrides: Mapping[str, Any], whole: bool = False) -> str:
    """Say what is set in few words: `fedprox(mu=0.1)`, `alpha=0.1, clients_per_round=20`."""
    rest = [key for key in overrides if key != "method.name"]
    short = dict(zip(rest, rest, strict=True)) if whole else shorten(rest)
    said = ", ".join(f"{short[key]}={write_value(overrides[key])}" for key in rest)
    method = overrides.get("method.name")
    if method is None:
        return said
    return f"{method}({said})" if said else str(method)


def shorten(keys: Sequence[str]) -> dict[str, str]:
    """Return the last words of keys, as many as it takes to tell them apart."""
    words = {}
    for key in keys:
        own = [word for word in key.split(".") if not word.isdigit()]
        words[key] = own[:-1] if own[-1] in EMPTY and len(own) > 1 else own
    short = {}
    for key, own in words.items():
        others = [other for name, other in words.items() if name != key]
        ends = (own[-many:] for many in range(1, len(own) + 1))
        short[key] = next((".".join(end) for end in ends if all(o[-len(end) :] != end for o in others)), key)
    return short


def folder_name(name: str) -> str:
    """Return a name for a folder, on any system and in any shell; a long one is cut, and told apart by a hash."""
    safe = re.sub(r"[^\w.=,+-]+", "-", name.replace(", ", ",")).strip("-.") or "unnamed"
    return safe if len(safe) <= LONGEST else f"{safe[:LONGEST]}-{sha256(name.encode()).hexdigest()[:8]}"


def _from_text(text: str, what: str) -> NamedOverrides:
    """Read `NAME: key=value, key=value`; without a name, one is made of what is set."""
    name, colon, rest = text.partition(":")
    if not colon or "=" in name:
        name, rest = "", text
    if " " in rest.partition("=")[0].strip():
        raise RequestError(f'{what} "{text}" must look like NAME: KEY=VALUE, KEY=VALUE')
    return _filled(NamedOverrides(name.strip(), _assignments(rest, f'{what} "{text}"')), what)


def _from_table(given: Mapping[str, Any], what: str) -> NamedOverrides:
    table = _table(given, what)
    name = table.pop("name", "")
    if not isinstance(name, str):
        raise RequestError(f"{what}.name = {name!r} must be a text")
    where = f"{what} {name}".strip()
    own: dict[str, Any] = {}
    for key, value in tables.flatten(table).items():
        _put_once(own, full_key(key, where), value, where)
    return _filled(NamedOverrides(name, own), what)


def _table(given: Any, what: str) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise RequestError(f"{what} = {given!r} must be a table of keys and values")
    return dict(given)


def _assignments(text: str, what: str) -> dict[str, Any]:
    own: dict[str, Any] = {}
    for part in tables.split(text):
        key, value = tables.assignment(part, f"{what}:")
        _put_once(own, full_key(key, what), value, what)
    return own


def _put_once(own: dict[str, Any], key: str, value: Any, what: str) -> None:
    if key in own:
        raise RequestError(f"{what} sets {key} twice")
    own[key] = value


def _filled(setting: NamedOverrides, what: str) -> NamedOverrides:
    """Refuse what neither sets anything nor has a name; with a name it is the experiment as it is."""
    if not setting.overrides and not setting.name:
        raise RequestError(f"a {what} sets nothing; name at least one key, such as train.lr=0.01")
    return setting
