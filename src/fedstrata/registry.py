"""Names of parts: built-in, from other packages, or by import path.

Each stage package lists its parts in a table `PARTS` of name -> "module:Class". Other packages add theirs
through the entry-point group `fedstrata.parts`, with names such as `selectors.newest`. Any importable class
also has a name already: its path, `my_package.my_module:Newest`.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

from fedstrata.errors import RequestError, unknown_name

STAGES = {  # stage -> the package that lists its parts
    "drivers": "fedstrata.drive",
    "selectors": "fedstrata.select",
    "samplers": "fedstrata.sample",
    "corrections": "fedstrata.correct",
    "optimizers": "fedstrata.optimize",
    "combiners": "fedstrata.combine",
    "servers": "fedstrata.combine.server",
    "rates": "fedstrata.rates",
    "partitions": "fedstrata.data.partitions",
    "datasets": "fedstrata.data",
    "models": "fedstrata.models",
    "engines": "fedstrata.engines",
    "methods": "fedstrata.methods",
}


@cache
def names(stage: str) -> dict[str, str]:
    """Give the parts of a stage: name -> "module:attribute"."""
    table: dict[str, str] = dict(import_module(STAGES[stage]).PARTS)
    for entry in entry_points(group="fedstrata.parts"):
        kind, _, name = entry.name.partition(".")
        if kind == stage:
            table[name] = entry.value
    return table


def find(stage: str, name: str, key: str) -> Any:
    """Give the class (or recipe) behind a name; `key` is where the user wrote it."""
    if ":" not in name:
        table = names(stage)
        if name not in table:
            raise unknown_name(key, name, table)
        name = table[name]
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise RequestError(f'{key} = "{name}" cannot be imported: {error}') from error


def build(stage: str, name: str, options: Mapping[str, Any], key: str) -> Any:
    """Make a part from its name and options, checked against the types of its fields."""
    part = find(stage, name, key)
    known = {f.name for f in dataclasses.fields(part) if f.init}
    for option in options:
        if option not in known:
            raise unknown_option(f"{key}.{option}", option, known)
    return validated(part, options, key)


def name_of(stage: str, part: type) -> str:
    """Give the name a class is known by, or its import path."""
    path = f"{part.__module__}:{part.__qualname__}"
    return next((name for name, target in names(stage).items() if target == path), path)


def describe(stage: str, name: str) -> dict[str, Any]:
    """Say what `fedstrata list` shows of a part."""
    part = find(stage, name, stage)
    doc = inspect.getdoc(part) or ""
    options = {} if not isinstance(part, type) else {f.name: _option(part, f) for f in dataclasses.fields(part)}
    return {
        "name": name,
        "summary": getattr(part, "summary", "") or doc.split("\n")[0],
        "paper": getattr(part, "paper", ""),
        "options": getattr(part, "stages", None) or options,
    }


def _option(part: type, field: dataclasses.Field[Any]) -> dict[str, Any]:
    hint = get_type_hints(part, include_extras=True)[field.name]
    named = [m for m in getattr(hint, "__metadata__", ()) if isinstance(m, str)]
    kind = named[0] if named else re.sub(r"\b(typing|collections\.abc)\.", "", str(getattr(hint, "__name__", hint)))
    has_default = field.default is not dataclasses.MISSING
    return {"type": kind} | ({"default": field.default} if has_default else {})


# ---- validation ------------------------------------------------------------------------------------------------


def validated(kind: Any, value: Mapping[str, Any], key: str) -> Any:
    """Check a table against a dataclass or pydantic model.

    Values go through JSON so that a list fits a tuple while text never passes for a number.
    """
    text = json.dumps(value, default=str)
    try:
        return _adapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        raise explained(error, key) from None


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    if dataclasses.is_dataclass(kind) and not hasattr(kind, "__pydantic_config__"):
        with_config(ConfigDict(extra="forbid", arbitrary_types_allowed=True))(kind)
    return TypeAdapter(kind)


def explained(error: ValidationError, key: str) -> RequestError:
    """Turn the first validation error into the key, the value and what is allowed."""
    first = error.errors(include_url=False)[0]
    path = ".".join([key, *map(str, first["loc"])] if key else map(str, first["loc"]))
    context = first.get("ctx", {})
    value = json.dumps(first["input"], default=str)
    rules = {
        "missing": "is required",
        "greater_than": f"= {value} must be > {context.get('gt')}",
        "greater_than_equal": f"= {value} must be >= {context.get('ge')}",
        "less_than": f"= {value} must be < {context.get('lt')}",
        "less_than_equal": f"= {value} must be <= {context.get('le')}",
        "literal_error": f"= {value} is unknown; allowed: {context.get('expected')}",
    }
    said = rules.get(first["type"], f"= {value} is not valid: {first['msg'].removeprefix('Input should be ')} expected")
    return RequestError(f"{path} {said}")


def unknown_option(key: str, option: str, known: set[str]) -> RequestError:
    """Refuse a key that does not exist, and say which one was probably meant."""
    hint = str(unknown_name(key, option, known)).split(" is unknown", 1)[1]
    return RequestError(f"{key} is not an option{hint}")
