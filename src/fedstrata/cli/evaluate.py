"""`fedstrata evaluate`: how good a trained model is on other data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedstrata.cli.options import AsJson
from fedstrata.cli.predict import Keys, Model, tell


def evaluate(
    run: Model,
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA", help="As for `predict`, with labels: a column, y, or folders by class.", readable=False
        ),
    ],
    label: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Column of labels, where DATA has another than the training data had."),
    ] = None,
    keys: Keys = None,
    as_json: AsJson = False,
) -> None:
    """Score the model of a run on samples whose labels are known."""
    from fedstrata.remote.site.label_names import open_model
    from fedstrata.runs.amounts import write_share
    from fedstrata.runs.metrics import HIGHER

    saved = open_model(run, keys)
    scores = saved.evaluate(data, label=label, say=tell)
    called = dict(zip(map(str, saved.classes), saved.class_names, strict=True)) if saved.has_names else {}
    if as_json:
        print(json.dumps(scores | ({"class_names": called} if called else {})))
        return
    recall = scores.pop("recall")
    for key, value in scores.items():
        said = f"{write_share(value)} %" if key in HIGHER else f"{value:.4f}" if isinstance(value, float) else value
        print(f"{key:22} {said}")
    named = {name: f"recall of {name}" + (f", {called[name]}" if name in called else "") for name in recall}
    width = max(20, *map(len, named.values()))
    for name, share in recall.items():
        print(f"  {named[name]:{width}} {'not tested' if share is None else f'{write_share(share)} %'}")
