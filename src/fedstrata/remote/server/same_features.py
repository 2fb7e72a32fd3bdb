"""Whether sites' features are of one kind: columns by name, scaled in the same way; what is not, is refused by site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedstrata.core.errors import RequestError
from fedstrata.core.inputs import Inputs
from fedstrata.data.columns import common_columns
from fedstrata.data.preprocessing import Preprocessing
from fedstrata.remote.introduction import Introduction

WHATS = ("shape", "scale", "mean", "std", "per_client")
SAME = '; give all sites the same data.mean and data.std, with data.scale = "given"'


def common_preprocessing(sites: Mapping[str, Introduction]) -> Preprocessing:
    """Return what is done to raw inputs at all sites, as far as that is known before their features are scaled."""
    (first, model), *others = sites.items()
    for name, facts in others:
        _refuse_other_kind(name, facts, first, model)
    asked = {name: _asked(facts) for name, facts in sites.items()}
    if not asked[first].columns:
        return asked[first]
    columns = common_columns({name: one.columns for name, one in asked.items()})
    known = replace(asked[first], columns=columns, shape=(sum(column.width for column in columns),))
    return replace(known, **_given(asked, known.features))


def _refuse_other_kind(name: str, facts: Introduction, first: str, model: Introduction) -> None:
    """Refuse samples of another kind than the first site's."""
    tables = [bool(one.preprocessing and one.preprocessing.columns) for one in (facts, model)]
    whats = ["dtype", "scale", "mean", "std"] if all(tables) else ["shape", "dtype", "scale", "mean", "std"]
    for what in whats:
        own, expected = getattr(facts, what), getattr(model, what)
        if own != expected:
            said = f"site {name} has samples with {what} {own}, site {first} has {expected}"
            raise RequestError(said + (SAME if what in ("mean", "std") else ""))
    if tables[0] != tables[1]:
        raise RequestError(f"site {[first, name][tables[0]]} has a table with columns, and the other one arrays")
    scales = [_scale(one) for one in (facts, model)]
    if scales[0] != scales[1]:
        raise RequestError(
            f"site {name} asks for data.scale = {scales[0]}, site {first} for {scales[1]}; all sites need the same"
        )
    own, expected = _asked(facts), _asked(model)
    if not tables[0] and own != expected:
        differing = next(what for what in WHATS if getattr(own, what) != getattr(expected, what))
        raise RequestError(
            f"site {name} has raw inputs with {differing} {getattr(own, differing)}, site {first} has "
            f"{getattr(expected, differing)}" + (SAME if differing in ("mean", "std") else "")
        )


def _scale(facts: Introduction) -> str:
    if facts.unscaled is None:
        return "nothing"
    given = facts.preprocessing is not None and facts.preprocessing.mean is not None
    return f'"{"given" if given else facts.unscaled}"'


def _asked(facts: Introduction) -> Preprocessing:
    if facts.preprocessing is not None:
        return facts.preprocessing
    return Preprocessing.of(Inputs(scale=facts.scale, mean=facts.mean, std=facts.std), facts.shape)


def _given(asked: Mapping[str, Preprocessing], features: tuple[str, ...]) -> dict[str, Any]:
    """Put together the means and deviations that sites' owners gave, by the names of features."""
    known: dict[str, tuple[float, float, str]] = {}
    for name, one in asked.items():
        if one.mean is None or one.std is None:
            return {}
        for feature, mean, std in zip(one.features, one.mean, one.std, strict=True):
            *other, where = known.setdefault(feature, (mean, std, name))
            if other != [mean, std]:
                said = f"site {name} gives {feature} mean {mean:g} and std {std:g}, site {where} {other[0]:g} and"
                raise RequestError(f"{said} {other[1]:g}; all sites need the same data.mean and data.std")
    return {"mean": tuple(known[f][0] for f in features), "std": tuple(known[f][1] for f in features)}
