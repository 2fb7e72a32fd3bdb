"""`fedstrata inspect`: how skewed is it, and what fits."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedstrata.cli.options import AsJson, ExperimentFile, Sets, overrides
from fedstrata.core.errors import RequestError


def inspect(
    experiment: ExperimentFile = None,
    sets: Sets = None,
    counts: Annotated[
        Path | None,
        typer.Option(metavar="FILE.csv", help="Look at label counts only: a row a client, a column a label."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Also write a page that needs nothing beside itself.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure how skewed the data is, and suggest methods that fit."""
    from fedstrata.inspection import inspect as look

    if counts is not None and experiment is not None:
        raise RequestError(f"--counts {counts} and {experiment}: both say what the data are; give one of them")
    found = look(experiment, overrides=overrides(sets), counts=counts)
    if html is not None:
        try:
            html.write_text(found.html(), encoding="utf-8")
        except OSError as error:
            raise RequestError(f"--html {html} cannot be written: {error}") from None
    if as_json:
        print(json.dumps(found.as_json()))
        return
    from rich.console import Console

    from fedstrata.inspection.terminal import show

    show(found, Console(width=None if sys.stdout.isatty() else 120))
    if html is not None:
        print(f"page: {html}")
