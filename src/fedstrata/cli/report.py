"""`fedstrata report`: one HTML file about runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedstrata.cli import completing
from fedstrata.cli.options import AsJson
from fedstrata.core.errors import RequestError


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN_DIR...",
            help="Run folders, or folders of comparisons.",
            autocompletion=completing.run_folders,
        ),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="The page.")] = Path("report.html"),
    csv: Annotated[Path | None, typer.Option(metavar="DIR", help="Also write the tables, as CSV.")] = None,
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also save the figures, ready for a paper.")
    ] = None,
    kind: Annotated[str, typer.Option("--format", metavar="pdf|svg|png", help="Of the saved figures.")] = "pdf",
    width: Annotated[float, typer.Option(metavar="INCHES", help="Of the saved figures.")] = 3.5,
    as_json: AsJson = False,
) -> None:
    """Write a report on runs: one HTML page that works offline."""
    from fedstrata.core.storage.files import write_atomically
    from fedstrata.report.gather import gather
    from fedstrata.report.page import draw, page
    from fedstrata.report.paper import check_figures, check_format, write_figures
    from fedstrata.report.tables import write_csv

    check_format(kind)
    if figures is not None:
        check_figures(kind, width)
    if out.is_dir():
        raise RequestError(f"-o {out} is a folder; name a file, such as {out / 'report.html'}")
    gathered = gather(runs)
    for said in gathered.warnings:
        print(f"warning: {said}", file=sys.stderr)
    content = page(gathered).encode()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, content)
    except OSError as error:
        raise RequestError(f"-o {out} cannot be written: {error}") from None
    tables = write_csv(csv, gathered) if csv is not None else []
    images = write_figures(figures, draw(gathered), kind, width) if figures is not None else []
    if as_json:
        beside = {"csv": [str(path) for path in tables], "figures": [str(path) for path in images]}
        told = {
            "report": str(out),
            "bytes": len(content),
            "runs": len(gathered.runs_data),
            "warnings": gathered.warnings,
        }
        print(json.dumps(told | beside))
        return
    print(f"report: {out} ({len(content) / 1e6:.1f} MB)")
    for name, written in (("tables", tables), ("figures", images)):
        if written:
            print(f"{name}: {', '.join(path.name for path in written)} in {written[0].parent}")
