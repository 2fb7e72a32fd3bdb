"""`fedstrata reproduce`: the tables of the five papers, played again and judged."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedstrata.cli.options import AsJson, Quiet
from fedstrata.cli.run import stop_cleanly
from fedstrata.core.errors import RequestError

if TYPE_CHECKING:
    from fedstrata.reproduce.play import Played
    from fedstrata.reproduce.table import Wanted

app = typer.Typer(
    help="Play the tables of the five papers again: what they printed, ours beside it, and a verdict by rule.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

Name = Annotated[str, typer.Argument(metavar="ID", help="A table; `fedstrata reproduce list` names them.")]
ResultsFolder = Annotated[
    Path, typer.Option("--results", metavar="DIR", help="Where figures of finished runs are kept.")
]
KEPT = Path("reproduce/results")


@app.command("list")
def listing(results: ResultsFolder = KEPT, as_json: AsJson = False) -> None:
    """List every table: what it needs, how far it is, and the verdict so far."""
    from fedstrata.data import catalog
    from fedstrata.reproduce.pages import judge_all
    from fedstrata.reproduce.show import state_of

    fetched = {row["name"] for row in catalog.rows() if row["fetched"] or row["embedded"]}
    rows: list[dict[str, Any]] = []
    for name, (own, verdict) in judge_all(results).items():
        table = own.table
        missing = [data for data in table.data if data not in fetched]
        rows.append(
            {
                "id": name,
                "paper": table.paper,
                "what": table.what,
                "data": table.data,
                "missing": missing,
                "runs": state_of(own),
                "minutes": {kind: round(len(own.missing()) * s / 60, 1) for kind, s in own.seconds().items()},
                "verdict": verdict.word,
            }
        )
    if as_json:
        print(json.dumps(rows))
        return
    from rich.console import Console
    from rich.table import Table

    shown = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("id", "paper", "what", "data", "runs", "minutes left", "verdict"):
        shown.add_column(title, overflow="fold")
    for row in rows:
        data = ", ".join(f"{d} (fetch it)" if d in row["missing"] else d for d in row["data"])
        left = ", ".join(f"{minutes:g} {kind}" for kind, minutes in row["minutes"].items()) or "-"
        shown.add_row(row["id"], row["paper"], row["what"], data, row["runs"], left, row["verdict"])
    Console(width=None if sys.stdout.isatty() else 140, highlight=False).print(shown)
    print("play one: fedstrata reproduce run ID; look at it: fedstrata reproduce show ID")


@app.command()
def run(
    name: Name,
    quick: Annotated[bool, typer.Option("--quick", help="Every run tiny, once: to see that it works.")] = False,
    minutes: Annotated[
        float | None, typer.Option(metavar="N", help="Stop after so long; the same command goes on.")
    ] = None,
    shard: Annotated[
        str | None, typer.Option(metavar="I/N", help="Play every N-th run, from the I-th: one share a machine.")
    ] = None,
    reading: Annotated[
        str | None, typer.Option(metavar="NAME", help="Read the paper in another way that the file names.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(metavar="N", help="Runs at a time.")] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the runs.")] = Path("runs/reproduce"),
    results: ResultsFolder = KEPT,
    quiet: Quiet = False,
) -> None:
    """Play what is missing of a table, the primary contrast first; every run that ends is kept at once."""
    from fedstrata.reproduce.play import estimate, minutes_left, play, play_quickly, runs_to_play
    from fedstrata.reproduce.results import Results
    from fedstrata.reproduce.table import find_table
    from fedstrata.runs.compare.shards import Shard

    stop_cleanly()
    table, share = find_table(name), Shard.read(shard)
    table = table if reading is None else table.read_as(reading)
    if quick:
        with tempfile.TemporaryDirectory() as folder:
            _conclude(play_quickly(table, Path(folder), _line(quiet)), "")
        return
    own = Results(table, results)
    todo = runs_to_play(own, share)
    if todo and not quiet:
        about = minutes_left(own, todo, estimate(table, todo))
        print(f"{len(todo)} of {len(table.wanted())} runs to play, about {about:.0f} minutes here", file=sys.stderr)
    try:
        played = play(own, out, _line(quiet), minutes, share, jobs)
    except KeyboardInterrupt:
        print(f"stopped; what ended is in {own.path}; the same command goes on", file=sys.stderr)
        raise typer.Exit(130) from None
    _conclude(played, f"look at it: fedstrata reproduce show {table.id}")


@app.command()
def show(name: Name, results: ResultsFolder = KEPT, as_json: AsJson = False) -> None:
    """Show a table: the paper's figures, ours with intervals, and the verdict."""
    from fedstrata.reproduce.pages import judge_all
    from fedstrata.reproduce.show import describe, text_of
    from fedstrata.reproduce.table import find_table

    table = find_table(name)
    judged = judge_all(results, [table.paper])
    shown = [judged[key] for key in judged if key == table.id or key.startswith(f"{table.id} as ")]
    if as_json:
        told = [{"id": own.table.id, "verdict": v.word, "said": describe(own, v)} for own, v in shown]
        print(json.dumps(told))
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 100
    print("\n\n".join(text_of(own, verdict, width) for own, verdict in shown))


@app.command()
def page(
    results: ResultsFolder = KEPT,
    markdown: Annotated[Path, typer.Option(metavar="DIR", help="Where the Markdown goes.")] = Path("docs/papers"),
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="The HTML page.")] = Path("papers.html"),
) -> None:
    """Write the whole as Markdown, a file a paper, and as one HTML page."""
    from fedstrata.core.files import write_atomically
    from fedstrata.reproduce.pages import html_page, judge_all, write_markdown

    judged = judge_all(results)
    try:
        written = write_markdown(judged, markdown)
        write_atomically(out, html_page(judged).encode())
    except OSError as error:
        raise RequestError(f"a page cannot be written: {error}") from None
    print(f"{len(written)} files in {markdown}, and {out}")


def _line(quiet: bool) -> Any:
    def tell(one: Wanted, event: Mapping[str, Any]) -> None:
        from fedstrata.runs.progress import Reporter

        if Reporter.asked_to_stop:
            raise KeyboardInterrupt
        if event["event"] == "finished" and not quiet:
            summary = event["summary"]
            print(f"{one.name}: accuracy {summary['accuracy']:.4f}, {summary['seconds']:.1f} s", file=sys.stderr)

    return tell


def _conclude(played: Played, then: str) -> None:
    for name, why in played.failed.items():
        print(f"error: {name} failed: {why}", file=sys.stderr)
    left = f"; {played.left} are left: the same command goes on" if played.left else ""
    print(f"{played.finished} runs played{left}{f'; {then}' if then else ''}")
    if played.failed:
        raise typer.Exit(1)
