"""`fedstrata data`: what is in the data folder, and how more gets there."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from fedstrata.cli import completing
from fedstrata.cli.options import AsJson, Quiet, overrides
from fedstrata.cli.run import stop_cleanly
from fedstrata.core.errors import RequestError

app = typer.Typer(
    help="List, fetch and import data sets. The data folder is FEDSTRATA_DATA, or ~/.cache/fedstrata.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="A data set; `fedstrata data list` names them.",
        autocompletion=completing.parts("datasets"),
    ),
]


@app.command("list")
def listing(as_json: AsJson = False) -> None:
    """List every data set by name, and what of it is in the data folder."""
    from fedstrata.data import catalog

    rows = catalog.rows()
    if as_json:
        print(json.dumps(rows))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("name", "options", "state", "samples", "test", "MB", "licence"):
        table.add_column(title, justify="right" if title in ("samples", "test", "MB") else "left")
    for row in rows:
        table.add_row(*_cells(row))
    Console(width=None if sys.stdout.isatty() else 140, highlight=False).print(table)
    print(f"data folder: {catalog.folder()}")


@app.command()
def fetch(
    name: Name,
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="PATH", help="Take the files from a folder or an archive: no download."),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="OPTION=VALUE", help="Option of the data set, e.g. classes=two; any number of times."
        ),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Download a data set, or take over its files, into the data folder."""
    from fedstrata.cli.downloads import shown
    from fedstrata.core import registry
    from fedstrata.data import catalog
    from fedstrata.data.published import Published
    from fedstrata.data.sets.own import Own

    registry.find("datasets", name, "NAME")  # an unknown name is refused under the word the user knows it by
    given = {key.removeprefix("data."): value for key, value in overrides(sets).items()}
    part = registry.build("datasets", name, given, "data")
    if isinstance(part, Own):
        raise RequestError("own data is not fetched; store it with `fedstrata data import NAME PATH`")
    if isinstance(part, Published):
        with _stopping(), shown(quiet) as (say, bar):
            part.fetch(source, say, bar)
            if not catalog.row(part.key)["complete"]:
                say(f"{name}: this is only a part of the published set")
    elif source is not None:
        raise RequestError(f"{name} comes with fedstrata; there is nothing to take from {source}")
    _tell(catalog.row(part.key) if isinstance(part, Published) else catalog.describe_embedded(name), as_json)


@app.command("import")
def import_(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What to call it.")],
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="An .npz, .csv or .parquet file, or a folder of images, of LEAF or PFLlib.",
            readable=False,
        ),
    ],
    label: Annotated[
        str | None, typer.Option(metavar="COLUMN", help='Column of the labels in a table; "label" without it.')
    ] = None,
    client: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of a table that names the client.")
    ] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Column of a table that is no feature; any number of times."),
    ] = None,
    fill: Annotated[
        str | None, typer.Option(metavar="median|NUMBER", help="What stands in for missing numbers of a table.")
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="federated (tables and images), per-client or none."),
    ] = None,
    size: Annotated[int | None, typer.Option(metavar="PIXELS", help="Scale images to this square.")] = None,
    test: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Share to hold out as the test set; 0.2 without it.")
    ] = None,
    test_path: Annotated[
        Path | None, typer.Option(metavar="PATH", help="The test set, where it is a file or folder of its own.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Store your own data in the data folder. data.name = "own" and data.path = "NAME" load it."""
    from fedstrata.core import registry
    from fedstrata.data import catalog
    from fedstrata.data.preprocessing import is_number
    from fedstrata.data.sets.own import keep, source_of

    options: dict[str, Any] = {
        "path": str(path),
        "label": label,
        "client": client,
        "drop": drop or None,
        "scale": scale,
        "size": size,
    }
    options |= {"test": test, "test_path": None if test_path is None else str(test_path)}
    options |= {"fill": fill if fill is None or not is_number(fill) else float(fill)}
    with _stopping():
        before = source_of(name)
        kept = keep(name, registry.build("datasets", "own", options, "data"))
    if before is not None:
        told = f"{name} was imported before, from {before}, and is replaced: runs on other data under that name cannot"
        print(f"note: {told} be resumed", file=sys.stderr)
    _tell(catalog.row(kept.name), as_json)
    if not as_json:
        print(f'use it with data.name = "own", data.path = "{name}"')


@contextmanager
def _stopping() -> Iterator[None]:
    stop_cleanly()
    try:
        yield
    except KeyboardInterrupt:
        print("stopped; nothing was stored", file=sys.stderr)
        raise typer.Exit(130) from None


def _tell(row: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(row))
        return
    name, options, state, samples, test_samples, size, licence = _cells(row)
    told = {
        "name": name,
        "options": options,
        "state": state,
        "samples": samples,
        "test samples": test_samples,
        "size": "" if size == "-" else f"{size} MB",
        "licence": licence,
        "folder": row["path"],
        "source": row["source"],
    }
    for title, value in told.items():
        if value:
            print(f"{title:14} {value}")


def _cells(row: dict[str, Any]) -> list[str]:
    options = " ".join(f"{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in row["options"].items())
    if not row["fetched"]:
        state = "not fetched"
    elif row["damaged"]:
        state = "damaged"
    elif row["embedded"]:
        state = "embedded"
    else:
        state = ("complete" if row["complete"] else "a part") + (", verified" if row["verified"] else "")
    sizes = [f"{row[key]:,}" if row[key] is not None else "-" for key in ("samples", "test_samples")]
    return [row["name"], options, state, *sizes, f"{row['bytes'] / 1e6:.1f}" if row["bytes"] else "-", row["licence"]]
