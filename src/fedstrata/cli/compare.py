"""`fedstrata compare`: several methods, paired, over several seeds."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedstrata.cli.options import AsJson, ExperimentFile, Quiet, Sets, overrides
from fedstrata.cli.run import stop_cleanly
from fedstrata.core.errors import RequestError

if TYPE_CHECKING:
    from fedstrata.runs.compare import Comparison


def compare(
    experiment: ExperimentFile = None,
    methods: Annotated[
        str,
        typer.Option(
            metavar="A,B(KEY=VALUE)", help="Methods, with keys of their own; `fedstrata list methods` names them."
        ),
    ] = "",
    variant: Annotated[
        list[str] | None,
        typer.Option(metavar="'NAME: KEY=VALUE, ...'", help="One more row, by what it sets; any number of times."),
    ] = None,
    over: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=V1,V2", help="A condition for every value; for every combination of several."),
    ] = None,
    condition: Annotated[
        list[str] | None,
        typer.Option(metavar="'NAME: KEY=VALUE, ...'", help="A condition that sets several keys at once."),
    ] = None,
    seeds: Annotated[int | None, typer.Option(metavar="N", help="Seeds, counted up from the experiment's.")] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT=N", help="End each run when it has spent rounds=N, bytes=50MB, client_updates=N or time=N."
        ),
    ] = None,
    ablate: Annotated[
        str,
        typer.Option(metavar="STAGES", help="Put stages of one method, such as selector,sampler, back to FedAvg's."),
    ] = "",
    same: Annotated[
        str, typer.Option(metavar="STAGES", help="Give all rows what the first has, such as combiner or train.lr.")
    ] = "",
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="M1,M2",
            help="What is compared: accuracy, balanced_accuracy, worst10, best, mean_last10, rounds_to:0.8, ...; "
            "ranks and tests follow the first.",
        ),
    ] = None,
    sets: Sets = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of the runs; a comparison that lies there goes on."),
    ] = None,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Go on with the comparison in a folder.")] = None,
    jobs: Annotated[
        int | None, typer.Option(metavar="N", help="Runs at a time; one a core without it, where that pays.")
    ] = None,
    table: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Also write the table: .tex (booktabs), .md or .csv.")
    ] = None,
    wide: Annotated[bool, typer.Option("--wide", help="Print every figure, however wide the table gets.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Compare methods on the same partition, first model and draws.

    A file may say all of it in a table [compare]; what is said here goes on top.
    """
    from rich.console import Console

    from fedstrata.cli.live import watcher
    from fedstrata.runs.compare import Comparison, ComparisonRequest, prepare
    from fedstrata.runs.compare.tables import check_format

    stop_cleanly()
    for path in table or ():
        check_format(path)
    try:
        if resume is not None:
            if any((experiment, methods, variant, over, condition, sets, out, budget, ablate, same, seeds is not None)):
                raise RequestError("--resume takes everything from the folder; leave out the file and other options")
            prepared = Comparison.open(resume, metric=metric or ())
        else:
            said = methods, variant or (), over or (), condition or (), seeds, budget, ablate, same, metric or ()
            asked = ComparisonRequest.of(*said)
            console = Console(stderr=True)
            with console.status("checking every cell") if console.is_terminal and not quiet else nullcontext():
                prepared = prepare(experiment, asked, overrides(sets), out=out)
    except KeyboardInterrupt:
        print("stopped before the first run began", file=sys.stderr)
        raise typer.Exit(130) from None
    shown = watcher(quiet, prepared)
    try:
        done = prepared.run(jobs=jobs, watch=shown)
    except KeyboardInterrupt:
        shown.close()
        print(f"stopped; continue with: fedstrata compare --resume {prepared.path}", file=sys.stderr)
        raise typer.Exit(130) from None
    finally:
        shown.close()
    conclude(done, as_json, wide, table or ())


def conclude(done: Comparison, as_json: bool, wide: bool = False, files: Sequence[Path] = ()) -> None:
    """Print the outcome and what can be done next; a cell that failed is an error, whatever the others say."""
    from fedstrata.runs.compare.tables import WIDTH

    for remark in done.remarks:
        print(f"note: {remark}", file=sys.stderr)
    for cell in done.failed:
        print(f"error: {cell.name} failed: {cell.why}", file=sys.stderr)
    if as_json:
        failed = [dict(zip(("condition", "method", "seed", "why"), (*c.key, c.why), strict=True)) for c in done.failed]
        tested = {"friedman": tested.to_json()} if (tested := done.friedman) else {}
        told = {"metrics": [metric.name for metric in done.metrics], "rows": done.rows, **tested}
        print(json.dumps({**told, "remarks": done.remarks, "failed": failed, "path": str(done.path)}))
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH
        path = shlex.quote(str(done.path))
        print(f"{done.table(width=width, wide=wide)}\nfigures and curves: fedstrata report {path}")
        if done.failed:
            print(f"what failed, once more: fedstrata compare --resume {path}")
    for file in files:
        done.write_table(file)
    if done.failed:
        raise typer.Exit(1)
