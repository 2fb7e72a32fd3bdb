"""Whether a class can be a part: what its hooks must be like is checked where it is named, before any of them runs."""

from __future__ import annotations

import dataclasses
from difflib import get_close_matches
from functools import cache
from inspect import Parameter, getattr_static, signature
from types import FunctionType
from typing import Any

from fedstrata.core.part import Part


@cache
def why_unfit(kind: type) -> str | None:
    """Say why a class that derives from the base of its stage would fail in a run, or None."""
    if not getattr_static(kind, "__dataclass_params__").frozen:
        return f"{kind.__name__} must be frozen; write @dataclass(frozen=True) above it"
    bases = _bases(kind)
    for hook in sorted(_public(bases)):
        own, declared = getattr_static(kind, hook), [vars(base)[hook] for base in bases if hook in vars(base)]
        if getattr(own, "__isabstractmethod__", False):
            instead = [name for name, meant in misspelt(kind).items() if meant == hook]
            said = f", which is not spelt `{instead[0]}`" if instead else ""
            return f"{kind.__name__} has no `{hook}`{said}; write: def {hook}{_parameters(own)}"
        as_called = [base for base in declared if isinstance(base, FunctionType)]
        if isinstance(own, FunctionType) and as_called and not any(_takes(own, base) for base in as_called):
            said = f"takes {_parameters(own)}, and is called with {_parameters(as_called[0])}"
            return f"{kind.__name__}: `{hook}` {said}; write: def {hook}{_parameters(as_called[0])}"
    return None


def misspelt(kind: type) -> dict[str, str]:
    """Return public names of a class that no base has, with the hook that each is so near to that it was meant."""
    bases = _bases(kind)
    hooks = _public(bases)
    options = {field.name for field in dataclasses.fields(kind)}
    own = _public([each for each in kind.__mro__ if each not in bases and each is not object])
    left_alone = sorted(hooks - own - options)  # beside a hook that is written there may be helpers with such names
    found = {name: get_close_matches(name, left_alone, n=1, cutoff=0.8) for name in sorted(own - hooks - options)}
    return {name: near[0] for name, near in found.items() if near}


def leaves_alone(kind: type, base: type) -> bool:
    """Say whether a class has every hook that a base has from that base; what it declares is used by its hooks."""
    hooks = [name for name in _public([base]) if not name.startswith("declare_")]
    return all(getattr_static(kind, hook) is getattr_static(base, hook) for hook in hooks)


def _bases(kind: type) -> list[type]:
    """Return the classes of ours from which it derives: what they define is what runs call."""
    ours = [base for base in kind.__mro__[1:] if base.__module__.partition(".")[0] == "fedstrata"]
    return [base for base in ours if issubclass(base, Part)]


def _public(kinds: list[type]) -> set[str]:
    return {name for kind in kinds for name in vars(kind) if not name.startswith("_")}


def _takes(own: FunctionType, base: FunctionType) -> bool:
    """Say whether a method can be called as that of the base is."""
    asked = signature(base).parameters.values()
    by_name: dict[str, Any] = {p.name: None for p in asked if p.kind is Parameter.KEYWORD_ONLY}
    by_place = [p for p in asked if p.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)]
    try:
        signature(own).bind(*by_place, **by_name)
    except TypeError:
        return False
    return True


def _parameters(method: FunctionType) -> str:
    return f"({', '.join(signature(method).parameters)})"
