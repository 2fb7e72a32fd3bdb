"""`fedstrata list`: what there is to choose from."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from fedstrata.cli import completing
from fedstrata.cli.options import AsJson
from fedstrata.cli.wrapping import beside

KINDS = (
    "methods, selectors, samplers, corrections, combiners, partitions, datasets, models, engines, "
    "schedules, drivers, server_steps, optimizers, lr_schedules, metrics, noises, trackers"
)


def listing(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help=f"One of: {KINDS}.", autocompletion=completing.kinds)
    ] = "",
    as_json: AsJson = False,
) -> None:
    """List the parts of a kind, with their options."""
    from fedstrata.core import registry
    from fedstrata.core.errors import unknown_name

    if not kind:
        print(json.dumps(list(registry.STAGES)) if as_json else "\n".join(registry.STAGES))
        return
    if kind not in registry.STAGES:
        raise unknown_name("KIND", kind, registry.STAGES)
    kinds = [kind, "noises"] if kind == "partitions" else [kind]  # noise wraps whatever partition there is
    parts = [registry.describe(k, name) for k in kinds for name in registry.names(k)]
    if as_json:
        print(json.dumps(parts))
        return
    for part in parts:
        paper = f" ({part['paper']})" if part["paper"] else ""
        print(beside(f"{part['name']:18} ", f"{part['summary']}{paper}"))
        for option, about in part["options"].items():
            print(beside(f"{'':18}   {option} = ", _said(about)))


def _said(about: Any) -> str:
    if isinstance(about, dict) and "type" in about:
        return f"{json.dumps(about['default'])}: {about['type']}" if "default" in about else about["type"]
    return json.dumps(about)
