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

from fedstrata.cli import completing
from fedstrata.cli.options import AsJson, Quiet, Sets, overrides
from fedstrata.cli.run import stop_cleanly
from fedstrata.core.errors import RequestError

if TYPE_CHECKING:
    from fedstrata.runs.compare import Comparison


def compare(
    given: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[EXPERIMENT.toml]",
            help="Experiment file; the embedded default without one. With --merge, the folders of the runs.",
        ),
    ] = None,
    methods: Annotated[
        str,
        typer.Option(
            metavar="A,B(KEY=VALUE)",
            help="Methods, with keys of their own; `fedstrata list methods` names them.",
            autocompletion=completing.methods,
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
    tune: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=V1,V2",
            help="Give each row its best of these values, on samples that clients hold out; any number of times. "
            "'ROW: KEY=V1,V2' is for one row.",
        ),
    ] = None,
    tune_budget: Annotated[
        str | None, typer.Option(metavar="WHAT=N", help="What each trial may spend, as with --budget: rounds=50.")
    ] = None,
    tune_seeds: Annotated[int | None, typer.Option(metavar="N", help="Seeds of each setting that is tried; 1.")] = None,
    tune_validation: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Of their training samples, what clients hold out; 0.2.")
    ] = None,
    tuner: Annotated[
        str | None, typer.Option(metavar="NAME", help="grid tries all, optuna chooses: also from 0.001..0.3:log.")
    ] = None,
    trials: Annotated[
        int | None, typer.Option(metavar="N", help="Settings that optuna tries for each row and condition; 30.")
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
    minutes: Annotated[
        float | None, typer.Option(metavar="N", help="Stop after so long, between rounds; --resume goes on.")
    ] = None,
    shard: Annotated[
        str | None, typer.Option(metavar="I/N", help="Play only one of so many shares: for several machines.")
    ] = None,
    engine: Annotated[
        str,
        typer.Option(metavar="NAME", help="ray plays runs on a Ray cluster, ray=HOST:PORT on that one; else local."),
    ] = "local",
    merge: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Put the runs of several folders into this one.")
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

    from fedstrata.runs.compare import Comparison, ComparisonRequest, prepare
    from fedstrata.runs.compare.live import watcher
    from fedstrata.runs.compare.queue import check_jobs, check_minutes
    from fedstrata.runs.compare.ray_cells import check_engine_name
    from fedstrata.runs.compare.shards import Shard
    from fedstrata.runs.compare.tables import check_format
    from fedstrata.runs.compare.tune import Tune

    stop_cleanly()
    check_jobs(jobs)
    check_minutes(minutes)
    check_engine_name(engine)
    Shard.read(shard)
    for path in table or ():
        check_format(path)
    tuning = tune, tune_budget, tune_seeds is not None, tune_validation is not None, tuner, trials is not None
    design = methods, variant, over, condition, sets, out, budget, ablate, same, seeds is not None, *tuning
    if merge is not None:
        if any((resume, *design, metric, jobs is not None, minutes is not None, shard, engine != "local")):
            raise RequestError("--merge takes everything from the folders; leave out other options")
        return conclude(Comparison.merge(merge, given or []), as_json, wide, table or ())
    if len(given or ()) > 1:
        raise RequestError(f"one experiment file is compared, not {len(given or ())}; folders are for --merge")
    try:
        if resume is not None:
            if any((given, *design)):
                raise RequestError("--resume takes everything from the folder; leave out the file and other options")
            prepared = Comparison.open(resume, metric=metric or ())
        else:
            said = methods, variant or (), over or (), condition or (), seeds, budget, ablate, same, metric or ()
            own = {"budget": tune_budget, "seeds": tune_seeds, "validation": tune_validation, "tuner": tuner}
            asked = ComparisonRequest.of(*said, Tune.of(tune or (), **own, trials=trials))
            console = Console(stderr=True)
            with console.status("checking every cell") if console.is_terminal and not quiet else nullcontext():
                prepared = prepare(given[0] if given else None, asked, overrides(sets), out=out)
    except KeyboardInterrupt:
        print("stopped before the first run began", file=sys.stderr)
        raise typer.Exit(130) from None
    shown = watcher(quiet, prepared)
    try:
        done = prepared.run(jobs=jobs, watch=shown, minutes=minutes, shard=shard, engine=engine, progress=False)
    except KeyboardInterrupt:
        shown.close()
        print(f"stopped; continue with: fedstrata compare --resume {prepared.path}", file=sys.stderr)
        raise typer.Exit(130) from None
    finally:
        shown.close()
    return conclude(done, as_json, wide, table or ())


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
        if left := sum(cell.state in ("waiting", "stopped") for cell in done.cells):
            print(f"the {left} runs that are left: fedstrata compare --resume {path}")
    for file in files:
        done.write_table(file)
    if done.failed:
        raise typer.Exit(1)
