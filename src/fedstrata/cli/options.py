"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedstrata.cli import completing

ExperimentFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="[EXPERIMENT.toml]",
        help="Experiment file; without one, the defaults: FedAvg on digits.",
        readable=False,  # whoever opens a file says in one line why it cannot be read
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a key of the experiment, e.g. train.rounds=10; any number of times. docs/experiment.md has all.",
        autocompletion=completing.settings,
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on standard output, and nothing else there.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]


def overrides(sets: list[str] | None) -> dict[str, Any]:
    """Read the `--set` options; of a key that is set twice the later value counts, and two tables count together."""
    from fedstrata.config.tables import assignment, put

    found: dict[str, Any] = {}
    for text in sets or []:
        key, value = assignment(text)
        earlier = found.pop(key, None)
        together = {"value": earlier} if isinstance(earlier, dict | list | str) else {}
        put(together, "value", value)
        found[key] = together["value"]
    return found
