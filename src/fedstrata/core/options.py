"""Types for the options of parts: what a value may be stands in the annotation, and is checked once."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Gt, Interval
from pydantic import AllowInfNan, BeforeValidator

from fedstrata.core.origin import IS_PATH

Positive = Annotated[float, AllowInfNan(False), Gt(0), "a number > 0"]
NonNegative = Annotated[float, AllowInfNan(False), Ge(0), "a number >= 0"]
Fraction = Annotated[float, AllowInfNan(False), Interval(ge=0, le=1), "a number from 0 to 1"]
AtLeastOne = Annotated[float, AllowInfNan(False), Ge(1), "a number >= 1"]
BelowOne = Annotated[float, AllowInfNan(False), Interval(ge=0, lt=1), "a number from 0 to below 1"]
BelowHalf = Annotated[float, AllowInfNan(False), Interval(gt=0, lt=0.5), "a number between 0 and 0.5"]
Count = Annotated[int, Ge(1), "a whole number >= 1"]
Natural = Annotated[int, Ge(0), "a whole number >= 0"]
Share = Annotated[float, AllowInfNan(False), Interval(gt=0, lt=1), "a number between 0 and 1"]
LocalPath = Annotated[str, IS_PATH]  # of a file or folder on this machine, which no other one may name
ColumnName = Annotated[str, BeforeValidator(lambda name: str(name) if type(name) is int else name), "text"]  # 2, too
Rounds = Natural | Share  # so many rounds, or a share of all of them


def in_rounds(asked: int | float, rounds: int) -> int:
    """Return a number of rounds from a number or a share of all."""
    return asked if isinstance(asked, int) else int(asked * rounds + 1e-9)
