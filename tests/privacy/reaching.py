"""What can be got at from an object, by whoever has it."""

from __future__ import annotations

from types import GeneratorType


def reachable(thing, seen=None):
    """Return everything that can be reached from an object."""
    seen = {} if seen is None else seen
    if id(thing) in seen or isinstance(thing, type):
        return seen
    seen[id(thing)] = thing
    parts = list(getattr(thing, "__dict__", {}).values())
    if isinstance(thing, dict):
        parts += [*thing, *thing.values()]
    elif isinstance(thing, list | tuple | set | frozenset):
        parts += list(thing)
    elif isinstance(thing, GeneratorType) and thing.gi_frame is not None:
        parts += [*thing.gi_frame.f_locals.values(), thing.gi_yieldfrom]
    for part in parts:
        reachable(part, seen)
    return seen
