"""Nested tables, as TOML has them: reading, dotted keys, and one table put over another."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from fedstrata.core import registry
from fedstrata.core.errors import RequestError
from fedstrata.core.part import Part
from fedstrata.core.storage.toml import read_toml

LISTS = {  # what is written into a list, by its key
    "method.corrections": '[{ kind = "prox" }]',
    "data.noise": '[{ kind = "label-noise", rate = 0.3 }], or { labels = 0.3 }',
    "track": '["tensorboard"]',
    "train.evaluate.metrics": '["macro-f1"]',
}
METHODS = (
    "a method goes into method.name (--set method.name=fedprox), and several that are to be compared into methods "
    "(--methods fedavg,fedprox)"
)


def read(source: Mapping[str, Any] | str | Path | None) -> dict[str, Any]:
    """Return tables of one's own: from a file, a mapping that may hold part objects, or nothing."""
    if source is None:
        return {}
    if isinstance(source, Mapping):
        table: dict[str, Any] = plain(source)
        return table
    if not isinstance(source, str | Path):
        raise RequestError(f"{source!r} is no experiment: that is a TOML file, tables or an Experiment; {METHODS}")
    if (folder := Path(source)).is_dir():
        raise RequestError(f"{source} cannot be read: it is a folder; name an experiment file{_file_in(folder)}")
    try:
        text = Path(source).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        named = all(name in registry.names("methods") for name in str(source).split(","))
        why = "there is no such file" if isinstance(error, FileNotFoundError) else error
        raise RequestError(f"{source} cannot be read: {why}{f'; {METHODS}' if named else ''}") from None
    return read_toml(text, source)


def _file_in(folder: Path) -> str:
    """Name the experiment of a run folder, or of the first run of a comparison."""
    found = (file for deep in ("*.toml", "*/*/experiment.toml", "*/*/*/experiment.toml") for file in folder.glob(deep))
    first = min((file for file in found if file.name != "pyproject.toml"), default=None)
    return "" if first is None else f", such as {first}"


def plain(value: Any) -> Any:
    """Copy tables and lists; a part object becomes a table that names it by its import path."""
    if isinstance(value, type) and issubclass(value, Part):
        raise RequestError(f"{value.__name__} is a class; give an object of it: {value.__name__}()")
    if isinstance(value, Part) and not dataclasses.is_dataclass(value):
        raise RequestError(f"{type(value).__name__} must be a frozen dataclass")
    if isinstance(value, Part):
        path = f"{type(value).__module__}:{type(value).__qualname__}"
        if "<locals>" in path:
            raise RequestError(
                f"{type(value).__name__} is defined inside a function; define it at the top of a module, so that "
                "resumed runs and other processes find it"
            )
        return {"kind": path, **dataclasses.asdict(value)}  # type: ignore[call-overload]
    if isinstance(value, Mapping):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(v) for v in value]
    return value


def drop_none(value: Any) -> Any:
    """Leave out what is not set: TOML has no word for it."""
    if isinstance(value, dict):
        return {k: drop_none(v) for k, v in value.items() if v is not None}
    return [drop_none(v) for v in value] if isinstance(value, list | tuple) else value


def assignment(text: str, option: str = "--set") -> tuple[str, Any]:
    """Read `a.b=value`; the value is TOML, or plain text where that fails."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise RequestError(f'{option} "{text}" must look like train.rounds=10')
    return key.strip(), read_value(value)


def read_value(text: str) -> Any:
    """Read a value as TOML, or as plain text where that fails."""
    try:
        return read_toml(f"value = {text}", "a value")["value"]
    except RequestError:
        return text.strip()


def split(text: str) -> list[str]:
    """Split at commas, but not inside brackets or quotes; empty parts are left out."""
    parts, depth, quote = [""], 0, ""
    for sign in text:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "\"'":
            quote = sign
        else:
            depth += (sign in "([{") - (sign in ")]}")
            if sign == "," and depth <= 0:
                parts.append("")
                continue
        parts[-1] += sign
    return [part.strip() for part in parts if part.strip()]


def write_value(value: Any) -> str:
    """Write a value in few words: a part by its kind and its options."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        kind, options = str(value.get("kind", "")), {k: write_value(v) for k, v in value.items() if k != "kind"}
        if len(options) == 1:
            return f"{kind} {next(iter(options.values()))}".strip()
        return f"{kind}({', '.join(f'{k}={v}' for k, v in options.items())})" if options else kind
    if isinstance(value, list | tuple):
        return "+".join(map(write_value, value)) or "none"
    return str(value)


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return dotted keys; a table with a kind is one value, for it describes a whole part, and so is an empty one."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        inner = isinstance(value, Mapping) and value and "kind" not in value
        flat |= flatten(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": plain(value)}
    return flat


def look_up(table: Mapping[str, Any], key: str) -> Any:
    """Return what stands under a dotted key, or None."""
    at: Any = table
    for name in key.split("."):
        if isinstance(at, list) and name.isdigit() and int(name) < len(at):
            at = at[int(name)]
        elif isinstance(at, Mapping) and name in at:
            at = at[name]
        else:
            return None
    return at


def put(table: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key inside nested tables; a part that was named plainly becomes a table for its options.

    A table that names no kind changes the keys that it has and no others; one with a kind describes a whole part.
    """
    *path, last = key.split(".")
    at: Any = table
    for name, inside in pairwise([*path, last]):
        place = _place(at, name, key)
        if isinstance(at, dict) and at.get(name) is None:
            at[name] = {}
        if isinstance(at[place], str):  # a place is one of a list
            at[place] = split(at[place]) if inside.isdigit() else {"kind": at[place]}
        at = at[place]
        if not isinstance(at, dict | list):
            raise RequestError(f"{key} cannot be set: {name} is not a table")
    place = _place(at, last, key)
    there = at.get(place) if isinstance(at, dict) else at[place]
    if _is_whole(value, there):
        at[place] = plain(value)
        return
    if there is None:
        at[place] = {}  # an empty table counts too: `privacy.dp = {}` has all defaults
    for name, inner in value.items():
        put(table, f"{key}.{name}", inner)


def _is_whole(value: Any, there: Any) -> bool:
    """Say whether a value takes the place of what stands there, and is not a table of some keys of it."""
    if not isinstance(value, Mapping) or "kind" in value:
        return True
    places = all(str(name).isdigit() for name in value)  # of a list: {0 = {mu = 0.1}}
    return isinstance(there, list) and not places  # the short form of data.noise


def _place(at: dict[str, Any] | list[Any], name: str, key: str) -> Any:
    if isinstance(at, dict):
        return name
    if not name.isdigit() or int(name) >= len(at):
        raise RequestError(f"{key} cannot be set: {name} is no place in that list; {_places(len(at))}")
    return int(name)


def _places(many: int) -> str:
    if not many:
        return "the list is empty: set it as a whole"
    return "it has one place, 0" if many == 1 else f"places are counted from 0, so the last is {many - 1}"


def spec(value: Any, key: str) -> dict[str, Any]:
    """Return a part's table; a plain name is short for `{kind = name}`."""
    if isinstance(value, str):
        return {"kind": value}
    if not isinstance(value, Mapping):
        raise RequestError(
            f"{key} = {json.dumps(value, default=str)} is not valid; allowed: a name, or a table with kind and options"
        )
    return dict(value)


def is_part(value: Any) -> bool:
    """Say whether a stage is set: a part or a list of them, and not only some options of a part yet to be named."""
    return isinstance(value, str | list | tuple) or (isinstance(value, Mapping) and "kind" in value)


def merge(base: Any, override: Any, key: str) -> dict[str, Any]:
    """Put an override on a recipe's part: the same kind keeps its other options, another kind replaces it."""
    ours, theirs = spec(base, key), spec({} if override is None else override, key)
    same = theirs.get("kind", ours.get("kind")) == ours.get("kind")
    return {**ours, **theirs} if same else theirs


def merge_lists(base: Sequence[Any], override: Any, key: str) -> list[dict[str, Any]]:
    """Do the same for a list, or names with commas between them; a table of places changes single elements."""
    if override is None:
        return [spec(part, f"{key}.{i}") for i, part in enumerate(base)]
    if isinstance(override, Mapping) and all(place.isdigit() for place in override):
        changed = [override.get(str(i)) for i in range(len(base))]
        if strange := [place for place in override if int(place) >= len(base)]:
            raise RequestError(f"{key}.{strange[0]}: there is no such place; {_places(len(base))}")
        return [merge(part, change, f"{key}.{i}") for i, (part, change) in enumerate(zip(base, changed, strict=True))]
    parts = split(override) if isinstance(override, str) else override
    if override == "" or not isinstance(parts, Sequence):
        raise RequestError(
            f"{key} = {json.dumps(override, default=str)} is not valid; allowed: a list, such as "
            f"{LISTS.get(key, LISTS['method.corrections'])}"
        )
    return [spec(part, f"{key}.{i}") for i, part in enumerate(parts)]


def kinds_of(spec: Any) -> tuple[str, ...]:
    """Return which parts stand in a stage."""
    if isinstance(spec, list | tuple):
        return tuple(kind for part in spec for kind in kinds_of(part))
    kind = spec.get("kind") if isinstance(spec, Mapping) else spec
    return (str(kind),) if kind else ()
