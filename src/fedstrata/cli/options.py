"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedstrata.cli import completing

ExperimentFile = Annotated[
    Path | None,
    typer.Argument(metavar="[EXPERIMENT.toml]", help="Experiment file; the embedded default without one."),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a key, e.g. train.rounds=10.", autocompletion=completing.settings
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on standard output, and nothing else there.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]


def overrides(sets: list[str] | None) -> dict[str, Any]:
    """Read the `--set` options."""
    from fedstrata.config.tables import assignment

    return dict(assignment(text) for text in sets or [])
