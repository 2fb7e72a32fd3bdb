"""Tables of several owners as one: columns go by name, and categories are those of all.

Each owner encoded its own table. `common_columns` says in which order and with which values all of them do,
`rearrange` brings an owner's features there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedstrata.core.errors import RequestError
from fedstrata.data.formats.tabular import MOST_VALUES, some
from fedstrata.data.preprocessing import Column

KINDS = {True: "numbers", False: "text"}


def common_columns(owners: Mapping[str, Sequence[Column]]) -> tuple[Column, ...]:
    """Return columns in the order of the first owner, with the values of all; refuse, by owner, what does not match."""
    _refuse_names({name: [column.name for column in columns] for name, columns in owners.items()})
    (first, order), *others = owners.items()
    for name, columns in others:
        own = {column.name: column for column in columns}
        for column in order:
            _refuse_kind(name, own[column.name], first, column)
    return tuple(column if column.values is None else _united(column.name, owners) for column in order)


def rearrange(x: np.ndarray, own: Sequence[Column], wanted: Sequence[Column]) -> np.ndarray:
    """Return encoded features in the order of other columns, which may have more values."""
    if tuple(own) == tuple(wanted):
        return x
    starts = np.cumsum([0, *(column.width for column in own)]).tolist()
    places = {column.name: (column, start) for column, start in zip(own, starts, strict=False)}
    new = np.zeros((len(x), sum(column.width for column in wanted)), x.dtype)
    at = 0
    for column in wanted:
        known, start = places[column.name]
        to = [0] if column.values is None else [column.values.index(value) for value in known.values or ()]
        new[:, [at + i for i in to]] = x[:, start : start + known.width]
        at += column.width
    return new


def lacking(own: Sequence[Column], wanted: Sequence[Column]) -> str | None:
    """Say why features cannot be brought into the order of other columns; None: they can."""
    names, needed = {column.name: column for column in own}, {column.name for column in wanted}
    for said, strange in (("lacks", sorted(needed - names.keys())), ("has also", sorted(names.keys() - needed))):
        if strange:
            return f"{said} {some(strange)}"
    for column in wanted:
        held = names[column.name]
        if (held.values is None) != (column.values is None):
            return f"has {KINDS[held.values is None]} in column {column.name}, not {KINDS[column.values is None]}"
        if not set(held.values or ()) <= set(column.values or ()):
            return f"has other values in column {column.name}"
    return None


def _refuse_names(owners: Mapping[str, Sequence[str]]) -> None:
    """Refuse owners whose columns are others than most have; of as many, those of the first count."""
    alike: dict[frozenset[str], list[str]] = {}
    for name, own in owners.items():
        alike.setdefault(frozenset(own), []).append(name)
    most = max(alike.values(), key=len)
    order = owners[most[0]]
    wrong = [f"site {name} {_differs(own, order)}" for name, own in owners.items() if {*own} != {*order}]
    if wrong:
        raise RequestError(
            f"{'; '.join(wrong)}, compared with {some(most, 'site')}; all sites need the same columns by name "
            "(data.drop leaves some out)"
        )


def _differs(own: Sequence[str], order: Sequence[str]) -> str:
    without, more = [n for n in order if n not in own], [n for n in own if n not in order]
    said = [f"lacks {some(without)}"] if without else []
    return " and ".join(said + ([f"has also {some(more)}"] if more else []))


def _refuse_kind(name: str, own: Column, first: str, other: Column) -> None:
    kinds = [KINDS[column.values is None] for column in (own, other)]
    if kinds[0] != kinds[1]:
        raise RequestError(f"column {own.name} holds {kinds[0]} at site {name}, and {kinds[1]} at site {first}")
    if own.fill != other.fill:
        asked = ["nothing" if fill is None else f"{fill}" for fill in (own.fill, other.fill)]
        raise RequestError(
            f"site {name} fills gaps with {asked[0]}, site {first} with {asked[1]}; all sites need the same data.fill"
        )


def _united(name: str, owners: Mapping[str, Sequence[Column]]) -> Column:
    """Return a categorical column with the values of all owners."""
    own = [column for columns in owners.values() for column in columns if column.name == name]
    values = tuple(sorted({value for column in own for value in column.values or ()}))
    if len(values) > MOST_VALUES:
        raise RequestError(
            f"column {name} is text with {len(values)} different values over all sites, more than {MOST_VALUES}; leave "
            f'it out with data.drop = ["{name}"]'
        )
    return replace(own[0], values=values)
