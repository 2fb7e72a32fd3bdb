"""The table of selectors in docs/experiment.md: every selector, every option, its default and its values."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from fedstrata.core import registry

PAGE = Path(__file__).parents[1] / "docs" / "experiment.md"
TITLE = "| `method.selector` | option | default | meaning |"


def documented(text: str) -> dict[str, dict[str, tuple[str, str]]]:
    """Return default and meaning by selector and option; what a selector does has no option."""
    rows = text[text.index(TITLE) :].split("\n\n", maxsplit=1)[0].splitlines()[2:]
    table: dict[str, dict[str, tuple[str, str]]] = {}
    for row in rows:
        name, option, default, meaning = (cell.strip() for cell in row.strip("|").split("|"))
        of_selector = table.setdefault(name.strip("`"), {})
        assert option.strip("`") not in of_selector, f"{row}: twice"
        of_selector[option.strip("`")] = default, meaning
    return table


def written(default: object) -> str:
    """Write a default as the table does: as in an experiment file, text between backticks, nothing as a dash."""
    if default is None:
        return "-"
    if isinstance(default, bool):
        return str(default).lower()
    return f"{default:g}" if isinstance(default, int | float) else f"`{default}`"


def check(text: str) -> None:
    """Compare the table with the registered selectors."""
    table = documented(text)
    assert set(table) == set(registry.names("selectors"))
    for name, rows in table.items():
        fields = dataclasses.fields(registry.find("selectors", name, "method.selector"))
        assert set(rows) == {"", *registry.options("selectors", name, "method.selector")}, name
        assert {option: default for option, (default, _) in rows.items() if option} == {
            field.name: written(field.default) for field in fields
        }, name
        for option, told in registry.describe("selectors", name)["options"].items():
            default, meaning = rows[option]
            for value in re.findall(r'"([^"]+)"', told["type"]):
                assert f"`{value}`" in default + meaning, f"{name}.{option}: what is {value}?"
        assert all(meaning for _, meaning in rows.values()), name


def test_every_selector_has_all_its_options_in_the_table_with_their_defaults():
    check(PAGE.read_text())


@pytest.mark.parametrize(
    ("row", "instead"),
    [
        ("| `oort` | `epsilon` | 0.9 |", "| `oort` | `epsilon` | 0.8 |"),
        ("| `flips` | `over_provision` | true |", "| `flips` | `over_provision` | false |"),
        ("| `hics` | `switch_var` | - |", "| `hics` | `switch_var` | 0 |"),
        ("| `tifl` | `tiers` |", "| `tifl` | `layers` |"),
        ("| `sur` | `layers` | `all` |", "| `sur` | `layers` | all |"),
        ("| `random` |", "| `at-random` |"),
        ("or of the `last` one", "or of one"),
    ],
)
def test_the_table_is_checked(row, instead):
    text = PAGE.read_text()
    assert row in text
    with pytest.raises(AssertionError):
        check(text.replace(row, instead))


@pytest.mark.parametrize("start", ["| `divfl` | `start` |", "| `divfl` | `", "| `divfl` |", "| `random` |"])
def test_a_row_that_is_missing_is_found(start):
    text = PAGE.read_text()
    assert re.search(rf"^{re.escape(start)}.*\n", text, re.M)
    with pytest.raises(AssertionError):
        check(re.sub(rf"^{re.escape(start)}.*\n", "", text, flags=re.M))
