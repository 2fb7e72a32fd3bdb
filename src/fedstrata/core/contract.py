"""What a part gives back, held against what is allowed: errors name the part, what it gave and what it may give."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sized
from types import FrameType
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from fedstrata.core.errors import PartError, UnsummableError
from fedstrata.core.flat_model import FlatModel, ParameterSpace
from fedstrata.core.messages import Slot, Sums
from fedstrata.core.part import Part
from fedstrata.core.storage import tree

Kind = TypeVar("Kind")


def broken(part: object, hook: str, said: str) -> PartError:
    """Make the error of a part whose hook did what is not allowed."""
    name = part if isinstance(part, str) else type(part).__name__
    return PartError(f"{name}: `{hook}` {said}")


def expect(part: object, hook: str, value: Any, kind: type[Kind], allowed: str) -> Kind:
    """Return the value if it is of a kind; raise otherwise."""
    if isinstance(value, kind):
        return value
    raise broken(part, hook, f"gave {describe(value)}; allowed: {allowed}")


def expect_tensors(part: object, hook: str, value: Any, allowed: str) -> None:
    """Raise unless a value maps names to tensors."""
    if not isinstance(value, Mapping):
        raise broken(part, hook, f"gave {describe(value)}; allowed: {allowed}")
    for name, tensor in value.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise broken(part, hook, f"gave {describe(tensor)} as {name!r}; allowed: {allowed}")


def expect_nothing(part: object, hook: str, given: Any, instead: str) -> None:
    """Raise where a hook that changes something in place gives something back, which nobody would use."""
    if given is not None:
        raise broken(part, hook, f"gave {describe(given)}, which nobody uses; allowed: nothing. {instead}")


def expect_slots(part: object, hook: str, value: Any) -> Mapping[str, Slot]:
    """Return declared slots if they are that."""
    allowed = 'names and slots, such as {"v": Slot((space.P,))}'
    if not isinstance(value, Mapping):
        raise broken(part, hook, f"gave {describe(value)}; allowed: {allowed}")
    for name, slot in value.items():
        if not isinstance(name, str) or "/" in name or not isinstance(slot, Slot):
            raise broken(part, hook, f"declares {describe(slot)} as {name!r}; allowed: {allowed}, without a slash")
    return value


def expect_enough(fewest: int, reports: Sized) -> None:
    """Raise where fewer reports came than a combiner must have; the step then makes no model, which is an event."""
    if len(reports) < fewest:
        raise UnsummableError(f"{len(reports)} came, and the combiner compares at least {fewest}")


def expect_sums(part: object, sums: Any, space: ParameterSpace) -> Sums:
    """Return what a combiner gave if it can be added to the model."""
    allowed = f'Sums, as `arrived.sum(weights)` gives them, with {space.P} numbers in total["update"]'
    known = expect(part, "combine", sums, Sums, allowed)
    update = known.total.get("update")
    if not isinstance(update, Tensor) or tuple(update.shape) != (space.P,):
        said = "no update" if update is None else f"{describe(update)} as update"
        raise broken(part, "combine", f"gave Sums with {said}; allowed: {allowed}")
    return known


def expect_model(part: object, hook: str, model: Any, like: FlatModel) -> FlatModel:
    """Return the model that a server part gave if it has the shape of another one."""
    P, Q = len(like.params), len(like.buffers)
    allowed = f"FlatModel(params, buffers) with {P} and {Q} numbers"
    known = expect(part, hook, model, FlatModel, allowed)
    for name, size in (("params", P), ("buffers", Q)):
        flat = getattr(known, name)
        if not isinstance(flat, Tensor) or tuple(flat.shape) != (size,):
            raise broken(part, hook, f"gave a model with {describe(flat)} as {name}; allowed: {allowed}")
    return known


def expect_state(part: object, state: Any) -> Any:
    """Return the state that a part's `init` made if it can be changed in place and saved."""
    if isinstance(state, bool | int | float | str | tuple | frozenset):
        allowed = "None, or a dataclass of arrays, numbers and containers: a state is changed in place"
        raise broken(part, "init", f"gave {describe(state)}; allowed: {allowed}")
    try:
        tree.flatten(state, {})
    except tree.StateError as error:
        raise broken(part, "init", f"gave a state that {error.said}") from None
    return state


def describe(value: Any) -> str:
    """Say in a few words what a value is."""
    if value is None:
        return "None (is a `return` missing?)"
    kind = type(value).__name__
    if isinstance(value, Tensor | np.ndarray):
        what = "tensor" if isinstance(value, Tensor) else "array"
        return f"{'an' if what[0] == 'a' else 'a'} {what} of shape {tuple(value.shape)} and type {value.dtype}"
    text = repr(value)
    return f"{text} (of type {kind})" if len(text) <= 60 else f"something of type {kind}"


def calling_part() -> str:
    """Name the part whose method is running, for errors that are found inside what it called."""
    found = find_caller(Part)
    return "a part" if found is None else f"{type(found[0]).__name__} (in `{found[1]}`)"


def find_caller(kind: type[Kind]) -> tuple[Kind, str] | None:
    """Return the innermost object of a kind that has a method running, with the name of that method."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_name
        if isinstance(owner := frame.f_locals.get("self"), kind) and not name.startswith("<"):  # a list inside a method
            return owner, name
        frame = frame.f_back
    return None
