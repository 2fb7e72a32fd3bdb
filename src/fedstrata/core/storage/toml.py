"""TOML that somebody else may have written: what no table of ours can hold is refused, before it is looked at."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

from fedstrata.core.errors import RequestError

LONGEST = 16 << 20  # characters of a file
DEEPEST = 32  # tables and lists inside each other; ours have five
WHOLE = 1 << 63  # TOML's whole numbers have 64 bits


def read_toml(text: str, source: object) -> dict[str, Any]:
    """Read tables; an error names the source and says what is wrong, with the line where there is one."""
    if len(text) > LONGEST:
        raise RequestError(f"{source} is not valid TOML: it has more than {LONGEST:,} characters")
    try:
        table = tomllib.loads(text)
        _check(table)
    except tomllib.TOMLDecodeError as error:
        where = str(error).replace("at end of document", f"at line {len(text.splitlines())}, the end of the document")
        raise RequestError(f"{source} is not valid TOML: {where}") from None
    except RecursionError:
        raise RequestError(f"{source} is not valid TOML: {_TOO_DEEP}") from None
    except ValueError as error:  # a number with thousands of digits, and what we refuse here
        raise RequestError(f"{source} is not valid TOML: {str(error)[:200]}") from None
    return table


_TOO_DEEP = f"tables and lists lie more than {DEEPEST} deep inside each other"


def _check(table: dict[str, Any]) -> None:
    """Go through all values, level by level: a deep one must not be a deep call."""
    level: list[Any] = [table]
    for _ in range(DEEPEST):
        inside = [v for one in level for v in (one.values() if isinstance(one, Mapping) else one)]
        if any(isinstance(value, int) and not -WHOLE <= value < WHOLE for value in inside):
            raise ValueError("a whole number has more than 64 bits")
        level = [value for value in inside if isinstance(value, dict | list)]
        if not level:
            return
    raise ValueError(_TOO_DEEP)
