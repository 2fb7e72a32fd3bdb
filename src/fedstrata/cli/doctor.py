"""`fedstrata doctor`: what this machine has, what is missing, and what to do about it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from fedstrata.cli.options import AsJson
from fedstrata.cli.wrapping import beside

if TYPE_CHECKING:
    from fedstrata.deploy.health import Finding

SIGNS = {"good": "ok", "note": "--", "bad": "!!"}


def doctor(
    extra: Annotated[
        list[str] | None,
        typer.Option("--need", metavar="EXTRA", help="An extra that must be there, e.g. flower; any number of times."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check what is missing on this machine, and say how to fix it. Exit code 1 if something is bad."""
    from fedstrata.deploy.health import examine

    found = examine(tuple(extra or ()))
    bad = [finding for finding in found if finding.state == "bad"]
    if as_json:
        print(json.dumps({"healthy": not bad, "findings": [finding._asdict() for finding in found]}))
    else:
        for finding in found:
            print(beside(f"{SIGNS[finding.state]} {finding.what:14} ", finding.said))
            if finding.advice:
                print(beside(f"   {'':14} -> ", finding.advice))
        print(
            f"to mend: {', '.join(finding.what for finding in bad)}"
            if bad
            else f"all that is required is there{_without(found)}"
        )
    if bad:
        raise typer.Exit(1)


def _without(found: Sequence[Finding]) -> str:
    """Name the extras that are not there, or cannot be used."""
    lacking = [
        finding.what.strip("[]") for finding in found if finding.what.startswith("[") and finding.state == "note"
    ]
    return f"; optional, and not there or not usable: {', '.join(lacking)}" if lacking else ""
