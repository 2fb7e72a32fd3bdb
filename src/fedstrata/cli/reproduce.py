"""`fedstrata reproduce`: the tables of the five papers, reproduced and judged."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedstrata.cli import completing
from fedstrata.cli.options import AsJson, Quiet
from fedstrata.cli.run import stop_cleanly
from fedstrata.core.errors import RequestError, unknown_name

if TYPE_CHECKING:
    from fedstrata.reproduce.execute import Only
    from fedstrata.reproduce.results import Results
    from fedstrata.reproduce.table import PaperTable, Wanted

app = typer.Typer(
    help="Reproduce the tables of the five papers. Ours stand beside what they printed, with a verdict by rule.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

Name = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="A table; `fedstrata reproduce list` names them.", autocompletion=completing.tables
    ),
]
Names = Annotated[
    list[str],
    typer.Argument(
        metavar="ID...",
        help='Tables; `fedstrata reproduce list` names them. "all": those whose data are here; with --quick, all.',
        autocompletion=completing.tables,
    ),
]
ResultsFolder = Annotated[
    Path, typer.Option("--results", metavar="DIR", help="Where figures of finished runs are kept.")
]
KEPT = Path("reproduce/results")
README = Path("README.md")
EVERY = 30.0  # seconds between lines about a run


@app.command("list")
def listing(results: ResultsFolder = KEPT, as_json: AsJson = False) -> None:
    """List every table, how long it takes, and the verdict so far."""
    from fedstrata.reproduce.overview import judge_all

    judged = judge_all(results)
    _note_missing(results)
    if as_json:
        print(json.dumps([own.to_json() for own in judged.values()]))
        return
    from fedstrata.cli.paper_list import print_list

    print_list(judged)


@app.command()
def run(
    names: Names,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Make every run once, tiny, on embedded data, and keep none: to see that it works."
        ),
    ] = False,
    minutes: Annotated[
        float | None, typer.Option(metavar="N", help="Stop after N minutes; the same command goes on.")
    ] = None,
    shard: Annotated[
        str | None, typer.Option(metavar="I/N", help="Make every N-th run, from the I-th: one share a machine.")
    ] = None,
    primary: Annotated[
        bool, typer.Option("--primary", help="Only what the verdict needs: the paper's method, its best baseline.")
    ] = False,
    rows: Annotated[
        list[str] | None, typer.Option("--row", metavar="NAME", help="Only this row of the table; any number of times.")
    ] = None,
    reading: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Follow another reading of the paper; `fedstrata reproduce show ID` names them.",
        ),
    ] = None,
    beside: Annotated[
        str | None,
        typer.Option(
            "--with", metavar="METHOD", help="Run this method beside the table, in a row and a file of its own."
        ),
    ] = None,
    jobs: Annotated[int | None, typer.Option(metavar="N", help="Runs at a time.")] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the runs.")] = Path("runs/reproduce"),
    results: ResultsFolder = KEPT,
    quiet: Quiet = False,
) -> None:
    """Make the missing runs of tables. What decides comes first, and every run that ends is kept at once."""
    from fedstrata.reproduce.execute import describe_tiny, missing_runs, run_quickly, run_tables
    from fedstrata.reproduce.results import Results
    from fedstrata.runs.compare.shards import Shard

    stop_cleanly()
    share = Shard.read(shard)
    tables = [_read_as(table, reading, beside) for table in _find(names, quick)]
    line = _line(quiet, named=len(tables) > 1, tiny=quick)
    if quick:
        for table in tables if not quiet else ():
            print(f"{table.id}: {describe_tiny(table)}", file=sys.stderr)
        with tempfile.TemporaryDirectory() as folder:
            tried = [run_quickly(table, Path(folder), line) for table in tables]
        _conclude(sum(one.finished for one in tried), {k: v for one in tried for k, v in one.failed.items()})
        return
    own = [Results(table, results) for table in tables]
    only = _only(tables, primary, rows)
    if not quiet:
        _announce(own, [missing_runs(one, share, only) for one in own])
    try:
        done = run_tables(own, out, line, minutes, share, jobs, only)
    except KeyboardInterrupt:
        where = ", ".join(f"{len(one.runs)} runs are in {one.path}" for one in own)
        print(f"stopped; {where}; the same command goes on", file=sys.stderr)
        raise typer.Exit(130) from None
    look = f"show {tables[0].file_id}" if len(tables) == 1 else "list"
    if minutes is not None and done.left and not done.finished:
        print(f"no run ended within {minutes:g} minutes; of those begun, whole rounds are kept", file=sys.stderr)
    _conclude(done.finished, done.failed, done.left, f"look at it: fedstrata reproduce {look}")


@app.command()
def show(name: Name, results: ResultsFolder = KEPT, as_json: AsJson = False) -> None:
    """Show a table: the paper's figures, ours, and the verdict. Then settings, what is open, how to reproduce it."""
    from fedstrata.reproduce.figures import costs_of, figures_of
    from fedstrata.reproduce.overview import judge_all
    from fedstrata.reproduce.show import describe, text_of
    from fedstrata.reproduce.table import find_table

    table = find_table(name)
    judged = judge_all(results, [table.paper])
    _note_missing(results)
    shown = [
        judged[key] for key in judged if key == table.id or key.startswith((f"{table.id} as ", f"{table.id} with "))
    ]
    if as_json:
        told = [
            {
                **own.to_json(),
                "claim": own.results.table.claim,
                "said": describe(own.results, own.verdict),
                "rows": [f.to_json() for metric in own.results.table.metrics for f in figures_of(own.results, metric)],
                "costs": [cost for name in own.results.table.costs for cost in costs_of(own.results, name)],
                "not_stated": list(own.results.table.not_stated),
                "oddities": list(own.results.table.oddities),
                "notes": list(own.results.table.notes),
            }
            for own in shown
        ]
        print(json.dumps({**told[0], "readings": told[1:]}))
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 100
    print("\n\n".join(text_of(own.results, own.verdict, width, brief=own is not shown[0]) for own in shown))


@app.command()
def merge(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Results of another machine.")],
    results: ResultsFolder = KEPT,
) -> None:
    """Take over runs that were made on another machine. What is here already stays as it is."""
    from fedstrata.reproduce.results import merge_results

    taken = merge_results(folder, results)
    said = ", ".join(f"{number} of {name}" for name, number in taken.items() if number)
    print(f"{sum(taken.values())} runs taken over{f': {said}' if said else ''}")


@app.command()
def page(
    results: ResultsFolder = KEPT,
    markdown: Annotated[Path, typer.Option(metavar="DIR", help="Where the Markdown goes.")] = Path("docs/papers"),
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="The HTML page.")] = Path("papers.html"),
    readme: Annotated[
        Path, typer.Option(metavar="FILE", help="A document with marks between which the headlines go.")
    ] = README,
) -> None:
    """Write all tables as pages. A Markdown file a paper, one HTML page, and the headlines in the README."""
    from fedstrata.core.storage.files import write_atomically
    from fedstrata.reproduce.overview import judge_all
    from fedstrata.reproduce.pages import BEGIN, html_page, with_headlines, write_markdown

    _note_missing(results)
    if readme != README and not readme.is_file():
        raise RequestError(f"--readme {readme} is not there")
    judged = judge_all(results)
    try:
        written = write_markdown(judged, markdown)
        write_atomically(out, html_page(judged).encode())
        marked = readme.is_file() and BEGIN in (text := readme.read_text(encoding="utf-8"))
        if marked:
            write_atomically(readme, with_headlines(text, judged).encode())
    except OSError as error:
        raise RequestError(f"a page cannot be written: {error}") from None
    print(f"{len(written)} files in {markdown}, and {out}{f'; headlines in {readme}' if marked else ''}")


def _note_missing(results: Path) -> None:
    from fedstrata.reproduce.results import FOLDER, PUBLISHED

    if results == FOLDER and not results.is_dir() and PUBLISHED.is_dir():
        print(
            "note: these are the runs that come with fedstrata; what you run is kept in reproduce/results here",
            file=sys.stderr,
        )
    elif not results.is_dir():
        said = f"note: there is no folder {results} here, so no run counts as done; --results names another"
        print(said, file=sys.stderr)


def _find(names: list[str], quick: bool) -> list[PaperTable]:
    """Return tables by their ids, each once; of "all" of them those whose data are here, or none are needed."""
    from fedstrata.reproduce.show import fetch_commands
    from fedstrata.reproduce.table import all_tables, find_table

    if "all" not in names:
        return list({table.id: table for table in map(find_table, names)}.values())
    there = [table for table in all_tables().values() if quick or not fetch_commands(table)]
    if not there:
        raise RequestError('"all": the data of no table are here; `fedstrata reproduce list` says what to fetch')
    return there


def _read_as(table: PaperTable, reading: str | None, beside: str | None) -> PaperTable:
    table = table if reading is None else table.read_as(reading)
    return table if beside is None else table.beside(beside)


def _only(tables: list[PaperTable], primary: bool, rows: list[str] | None) -> Only:
    """Return which runs were asked for: all, those of the primary contrast, or those of some rows."""
    known = [row for table in tables for row in table.rows]
    for row in rows or ():
        if row not in known:
            raise unknown_name("--row", row, known)
    return lambda table, one: (not primary or table.primary(one)) and (not rows or one.method in rows)


def _announce(tables: list[Results], todo: list[list[Wanted]]) -> None:
    """Say how much there is to do, before it begins."""
    import torch

    from fedstrata.reproduce.minutes import Timing, in_words

    device = "gpu" if torch.cuda.is_available() else "cpu"
    total = 0.0
    for own, runs in zip(tables, todo, strict=True):
        if runs:
            total += (minutes := Timing(own, device).minutes(runs))
            named = f"{own.table.id}: " if len(tables) > 1 else ""
            every = len(own.table.wanted())
            print(f"{named}{len(runs)} of {every} runs left, about {in_words(minutes)} in all", file=sys.stderr)
    if len(tables) > 1 and total:
        print(f"{sum(map(len, todo))} runs, about {in_words(total)}", file=sys.stderr)


def _line(quiet: bool, named: bool, tiny: bool) -> Any:
    told: dict[str, float] = {}  # when a line was last written about a run

    def tell(table: PaperTable, one: Wanted, event: Mapping[str, Any]) -> None:
        from fedstrata.runs.amounts import write_share
        from fedstrata.runs.progress import Reporter

        if Reporter.asked_to_stop:
            raise KeyboardInterrupt
        kind, now = event["event"], monotonic()
        if quiet or (kind == "round" and now < told.setdefault(one.name, now) + EVERY):
            return
        name = f"{table.id}, {one.name}" if named else one.name
        if kind == "round":
            told[one.name] = now
            of = "" if tiny else f" of {table.rounds(one)}"
            print(f"{name}: round {event['round']}{of}", file=sys.stderr)
        elif kind == "finished":
            summary = event["summary"]
            print(f"{name}: accuracy {write_share(summary['accuracy'])} %, {summary['seconds']:.1f} s", file=sys.stderr)

    return tell


def _conclude(finished: int, failed: Mapping[str, str], left: int = 0, then: str = "") -> None:
    for name, why in failed.items():
        print(f"error: {name} failed: {why}", file=sys.stderr)
    more = f"; {left} are left: the same command goes on" if left else ""
    print(f"{finished} runs done{more}{f'; {then}' if then else ''}")
    if failed:
        raise typer.Exit(1)
