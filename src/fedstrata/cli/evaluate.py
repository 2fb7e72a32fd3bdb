"""`fedstrata evaluate`: how good a trained model is on other data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedstrata.cli.options import AsJson
from fedstrata.cli.predict import Keys, Model


def evaluate(
    run: Model,
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="As for `predict`, with labels: a column, y, or folders by class.")
    ],
    label: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Column of labels, where DATA has another than the training data had."),
    ] = None,
    keys: Keys = None,
    as_json: AsJson = False,
) -> None:
    """Score the model of a run on samples whose labels are known."""
    from fedstrata.remote.label_names import open_model

    scores = open_model(run, keys).evaluate(data, label=label)
    if as_json:
        print(json.dumps(scores))
        return
    recall = scores.pop("recall")
    print(
        "\n".join(
            f"{key:22} {value:.4f}" if isinstance(value, float) else f"{key:22} {value}"
            for key, value in scores.items()
        )
    )
    for name, share in recall.items():
        print(f"  {f'recall of {name}':20} {'not tested' if share is None else f'{share:.4f}'}")
