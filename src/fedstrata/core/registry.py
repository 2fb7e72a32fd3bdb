"""Names of parts: built-in, from other packages, or by import path.

Each stage package lists its parts in a table `PARTS` of name -> "module:Class". Other packages add theirs
through the entry-point group `fedstrata.parts`, with names such as `selectors.newest`. Any importable class
also has a name already: its path, `my_package.my_module:Newest`.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoints, entry_points
from pathlib import PureWindowsPath
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError, with_config

from fedstrata.core import origin
from fedstrata.core.errors import RequestError, unknown_name
from fedstrata.core.part_class import why_unfit

STAGES = {  # stage -> the package that lists its parts, and the class they derive from
    "schedules": ("fedstrata.methods.schedules", "fedstrata.core.server_parts:Schedule"),
    "drivers": ("fedstrata.methods.drivers", "fedstrata.core.server_parts:Driver"),
    "selectors": ("fedstrata.methods.selectors", "fedstrata.core.server_parts:Selector"),
    "samplers": ("fedstrata.methods.samplers", "fedstrata.core.sampler:Sampler"),
    "corrections": ("fedstrata.methods.corrections", "fedstrata.core.client_parts:Correction"),
    "optimizers": ("fedstrata.methods.optimizers", "fedstrata.core.client_parts:Optimizer"),
    "combiners": ("fedstrata.methods.combiners", "fedstrata.core.server_parts:Combiner"),
    "server_steps": ("fedstrata.methods.server_steps", "fedstrata.core.server_parts:ServerStep"),
    "lr_schedules": ("fedstrata.methods.lr_schedules", "fedstrata.core.client_parts:LRSchedule"),
    "metrics": ("fedstrata.methods.metrics", "fedstrata.core.metric:Metric"),
    "partitions": ("fedstrata.data.partitions", "fedstrata.data.partitions.base:Partition"),
    "noises": ("fedstrata.data.noise", "fedstrata.data.noise:Noise"),
    "datasets": ("fedstrata.data.sets", "fedstrata.data.sets.base:DataSet"),
    "models": ("fedstrata.models", "fedstrata.models.architecture:Architecture"),
    "engines": ("fedstrata.engines", "fedstrata.core.part:Part"),
    "trackers": ("fedstrata.runs.trackers", "fedstrata.runs.trackers.base:Tracker"),
    "methods": ("fedstrata.methods.recipes", "fedstrata.methods.recipes:Recipe"),
}


@cache
def names(stage: str) -> dict[str, str]:
    """Return the parts of a stage: name -> "module:attribute"."""
    table: dict[str, str] = dict(import_module(STAGES[stage][0]).PARTS)
    for entry in other_packages():
        kind, _, name = entry.name.partition(".")
        if kind == stage and name in table:
            raise RequestError(f"the package behind {entry.value} calls a part of {stage} {name}: that name is taken")
        if kind == stage:
            table[name] = entry.value
    return table


@cache
def other_packages() -> EntryPoints:
    """Look through what is installed for packages that bring parts; takes as long as the first round of a small run."""
    return entry_points(group="fedstrata.parts")


def forget_parts() -> None:
    """Look again at what is installed: packages that bring parts have come or gone."""
    names.cache_clear()
    other_packages.cache_clear()


def find(stage: str, name: str, key: str) -> Any:
    """Return the class (or recipe) behind a name; `key` is where the user wrote it."""
    table = names(stage)
    if ":" not in name:
        if name not in table:
            raise unknown_name(key, name, table)
        name = table[name]
    else:
        origin.check_import(name, table.values(), key)
        origin.search_own_folder()
    part, base = _import(name, key), _import(STAGES[stage][1], key)
    fits = (
        issubclass(part, base) and dataclasses.is_dataclass(part) if isinstance(part, type) else isinstance(part, base)
    )
    if not fits:
        raise RequestError(f'{key} = "{name}" does not fit: {base.__name__} expected, as a frozen dataclass')
    if isinstance(part, type) and (why := why_unfit(part)) is not None:
        raise RequestError(f'{key} = "{name}" does not fit: {why}')
    return part


def _import(path: str, key: str) -> Any:
    module, _, attribute = path.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise RequestError(f'{key} = "{path}" cannot be imported: {_why_not_found(path, error)}') from error


def _why_not_found(path: str, error: Exception) -> str:
    """Say why there is no such module or class; whoever names a file is told the module's name."""
    file, _, attribute = path.rpartition(":")
    if file.endswith(".py") or "/" in file or "\\" in file:
        module = PureWindowsPath(file).stem  # which takes either slash
        return f'write "{module}:{attribute}", which names the module and not its file; {origin.where_modules_lie()}'
    missing = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
    if missing is not None and f"{file}.".startswith(f"{missing}."):  # and not something that the module imports
        return f"{error}; {origin.where_modules_lie()}"
    return str(error)


def build(stage: str, name: str, given: Mapping[str, Any], key: str) -> Any:
    """Make a part from its name and options, checked against the types of its fields."""
    part, known = find(stage, name, f"{key}.kind"), options(stage, name, f"{key}.kind")
    for option in given:
        if option not in known:
            raise unknown_option(f"{key}.{option}", option, known)
    origin.check_options(part, given, key)
    return validate(part, given, key)


def check_object(part: Any, key: str) -> None:
    """Check the options of a part that came as an object, as those of a table are: `key` is where it was given.

    What no table could hold, such as an array or a function, is the part's own business.
    """
    if not dataclasses.is_dataclass(part):
        return
    try:
        hints = get_type_hints(type(part), include_extras=True)
    except (NameError, TypeError):  # annotations that nobody can read: nor could a table be checked against them
        return
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if field.init and _is_plain(value):
            with suppress(PydanticUserError):  # a type of the part's own
                validate(hints[field.name], value, f"{key}: {type(part).__name__}.{field.name}")


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value, default=_number)
    except (TypeError, ValueError):
        return False
    return True


def _number(value: Any) -> Any:
    """Return a number of numpy or torch as Python's own."""
    if getattr(value, "shape", None) != ():
        raise TypeError
    return value.item()


def make_part(kind: str, name: str, /, **options: Any) -> Any:
    """Make a part by its name, for calls that take an object.

    An experiment does this itself: `{"method.selector": {"kind": "oort", "alpha": 1.0}}`.

    Parameters
    ----------
    kind
        As in `fedstrata list`: "selectors", "partitions", "drivers", "noises" and so on.
    name
        A name of `fedstrata list KIND`, or the import path of a class, "my_package.my_module:Newest".
    **options
        The part's options; those left out have their defaults.

    Returns
    -------
    Part
        A frozen dataclass that derives from the base class of its kind.

    Raises
    ------
    RequestError
        If there is no such kind, name or option, or a value is out of range.

    Examples
    --------
    >>> import fedstrata
    >>> fedstrata.make_part("partitions", "dirichlet-class", alpha=0.3)
    DirichletClass(alpha=0.3, balance=True, min_size=10, max_tries=1000)
    >>> fedstrata.make_part("selectors", "ort")
    Traceback (most recent call last):
    ...
    fedstrata.core.errors.RequestError: selectors.kind = "ort" is unknown (did you mean "oort"?); allowed: ...
    """
    parts = [stage for stage in STAGES if stage != "methods"]
    if kind not in parts:
        raise unknown_name("kind", kind, parts)
    return build(kind, name, options, kind)


def options(stage: str, name: str, key: str) -> set[str]:
    """Return the names of a part's options."""
    return {f.name for f in dataclasses.fields(find(stage, name, key)) if f.init}


def name_of(stage: str, part: type) -> str:
    """Return the name a class is known by in a stage, or its import path."""
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
    kind = _said(get_type_hints(part, include_extras=True)[field.name])
    return {"type": kind} | ({"default": field.default} if field.default is not dataclasses.MISSING else {})


def _said(hint: Any) -> str:
    """Put a type into words; the types of `options.py` bring their own."""
    if named := [m for m in getattr(hint, "__metadata__", ()) if isinstance(m, str)]:
        return str(named[0])
    inner = [a for a in get_args(hint) if a is not Ellipsis]
    if get_origin(hint) is Literal:
        return " or ".join(json.dumps(a) for a in inner)
    if get_origin(hint) is tuple:
        return f"a list, each {_said(inner[0])}"
    if inner:
        return " or ".join(map(_said, inner))
    return {float: "a number", int: "a whole number", bool: "true or false", str: "text", type(None): "nothing"}.get(
        hint, getattr(hint, "__name__", str(hint))
    )


# ---- validation ------------------------------------------------------------------------------------------------


def validate(kind: Any, value: Any, key: str) -> Any:
    """Check a table against a dataclass or pydantic model, or a value against a type.

    Values go through JSON so that a list fits a tuple while text never passes for a number.
    """
    text = json.dumps(value, default=_as_json)
    try:
        return _adapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        raise explain_error(error, json.loads(text), key) from None


def _as_json(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else str(value)  # numbers of numpy and torch


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    if dataclasses.is_dataclass(kind) and not hasattr(kind, "__pydantic_config__"):
        with_config(ConfigDict(extra="forbid"))(cast(type, kind))
    return TypeAdapter(kind)


def explain_error(error: ValidationError, value: Any, key: str) -> RequestError:
    """Turn the first validation error into the key, the value and what is allowed.

    A field that takes several types has an error for each; together they say what is allowed.
    """
    errors = error.errors(include_url=False)
    path, found = _locate(errors[0]["loc"], value)
    allowed = [_allowed(e) for e in errors if _locate(e["loc"], value)[0] == path]
    if isinstance(found, int | float) and not isinstance(found, bool):
        allowed = [f"a list, such as [{shorten(found)}]" if said == "a list" else said for said in allowed]
    where = ".".join(filter(None, [key, *path]))
    if errors[0]["type"] == "missing" and isinstance(found, list):
        places = [int(e["loc"][-1]) for e in errors if e["type"] == "missing"]
        allowed = [f"a list of {1 + max(places)}"]
    elif errors[0]["type"] == "missing":
        return RequestError(f"{where} is required")
    return RequestError(f"{where} = {shorten(found)} is not valid; allowed: {' or '.join(dict.fromkeys(allowed))}")


def shorten(value: Any, most: int = 200) -> str:
    """Write a value out as JSON, as far as one line of an error takes it."""
    try:
        said = json.dumps(value, default=str)
    except (ValueError, RecursionError):
        said = f"a {type(value).__name__} that cannot be written out"
    return said if len(said) <= most else f"{said[:most]} ..."


def _locate(loc: tuple[int | str, ...], value: Any) -> tuple[list[str], Any]:
    """Follow a location as far as it names keys of the value; the rest names types that were tried."""
    path: list[str] = []
    for step in loc:
        inside = isinstance(value, Mapping) and step in value
        place = isinstance(value, list | tuple) and isinstance(step, int) and step < len(value)  # or it is missing
        if not inside and not place:
            if isinstance(value, Mapping) and not path:
                path.append(str(step))
            break
        path.append(str(step))
        value = value[step]
    return path, value


def _allowed(error: Any) -> str:
    context = error.get("ctx", {})
    bounds = {
        "greater_than": ("gt", ">"),
        "greater_than_equal": ("ge", ">="),
        "less_than": ("lt", "<"),
        "less_than_equal": ("le", "<="),
    }
    if error["type"] in bounds:
        name, sign = bounds[error["type"]]
        return f"a number {sign} {context[name]}"
    if error["type"] == "too_long":
        return f"a list of at most {context['max_length']}"
    if error["type"] == "literal_error":
        return str(context["expected"]).replace("'", '"')
    words = {
        "int_type": "a whole number",
        "int_from_float": "a whole number",
        "float_type": "a number",
        "finite_number": "a finite number",
        "bool_type": "true or false",
        "string_type": "text",
        "tuple_type": "a list",
        "list_type": "a list",
        "dict_type": "a table",
    }
    return words.get(error["type"]) or str(error["msg"].removeprefix("Input should be ").removeprefix("Value error, "))


def unknown_option(key: str, option: str, known: set[str]) -> RequestError:
    """Refuse a key that does not exist, and say which one was probably meant."""
    if not known:
        return RequestError(f"{key} is not an option; there are none here")
    hint = str(unknown_name(key, option, known)).split(" is unknown", 1)[1]
    return RequestError(f"{key} is not an option{hint}")
