"""`fedstrata compare`: several methods, paired, over several seeds."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fedstrata.cli import compare_options as options
from fedstrata.cli.options import AsJson, Quiet, Sets, overrides
from fedstrata.cli.run import stop_cleanly
from fedstrata.cli.tracebacks import in_short
from fedstrata.core.errors import RequestError
from fedstrata.core.machine.quick_imports import quick_imports

NAMED = 3  # cells that failed alike

if TYPE_CHECKING:
    from fedstrata.runs.compare import Comparison, ComparisonRequest


def compare(
    given: options.Given = None,
    methods: options.Methods = "",
    variant: options.Variants = None,
    over: options.Over = None,
    condition: options.Conditions = None,
    seeds: options.Seeds = None,
    budget: options.Budget = None,
    ablate: options.Ablate = "",
    same: options.Same = "",
    metric: options.Metrics = None,
    tune: options.TuneOver = None,
    tune_budget: options.TuneBudget = None,
    tune_seeds: options.TuneSeeds = None,
    tune_validation: options.TuneValidation = None,
    tuner: options.Tuner = None,
    trials: options.Trials = None,
    sets: Sets = None,
    out: options.Out = None,
    resume: options.Resume = None,
    jobs: options.Jobs = None,
    minutes: options.Minutes = None,
    shard: options.ShardOf = None,
    engine: options.EngineName = "local",
    merge: options.Merge = None,
    table: options.Tables = None,
    wide: options.Wide = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Compare methods on the same partition, initial model and draws.

    A file may say all of it in a table [compare]; what is said here goes on top.
    """
    with quick_imports():
        from fedstrata.runs.compare import Comparison, ComparisonRequest
        from fedstrata.runs.compare.tune import Tune

    stop_cleanly()
    check_running(jobs, minutes, engine, shard, table or ())
    tuning = tune, tune_budget, tune_seeds is not None, tune_validation is not None, tuner, trials is not None
    design = methods, variant, over, condition, sets, out, budget, ablate, same, seeds is not None, *tuning
    if merge is not None:
        if any((resume, *design, metric, jobs is not None, minutes is not None, shard, engine != "local")):
            raise RequestError("--merge takes everything from the folders; leave out other options")
        return conclude(Comparison.merge(merge, given or []), as_json, wide, table or ())
    if len(given or ()) > 1:
        raise RequestError(f"one experiment file is compared, not {len(given or ())}; folders are for --merge")
    how = {"jobs": jobs, "minutes": minutes, "shard": shard, "engine": engine}
    if resume is not None:
        if any((given, *design)):
            raise RequestError(
                "--resume takes everything from the folder; leave out the file and other options. To add methods or "
                "seeds, give the whole command again, with --out and this folder"
            )
        done = run_comparison(lambda: Comparison.open(resume, metric=metric or ()), quiet, how)
    else:
        said = methods, variant or (), over or (), condition or (), seeds, budget, ablate, same, metric or ()
        own = {"budget": tune_budget, "seeds": tune_seeds, "validation": tune_validation, "tuner": tuner}
        asked = ComparisonRequest.of(*said, Tune.of(tune or (), **own, trials=trials))
        done = run_comparison(
            lambda: check_cells(given[0] if given else None, asked, overrides(sets), out, quiet), quiet, how
        )
    return conclude(done, as_json, wide, table or ())


def check_running(
    jobs: int | None, minutes: float | None, engine: str, shard: str | None, tables: Sequence[Path]
) -> None:
    """Refuse what is wrong whatever is compared, before anything is read."""
    from fedstrata.runs.compare.queue import check_jobs, check_minutes
    from fedstrata.runs.compare.ray_cells import check_engine_name
    from fedstrata.runs.compare.shards import Shard
    from fedstrata.runs.compare.tables import check_format

    check_jobs(jobs)
    check_minutes(minutes)
    check_engine_name(engine)
    Shard.read(shard)
    for path in tables:
        check_format(path)


def check_cells(
    file: Path | None, asked: ComparisonRequest, sets: dict[str, Any], out: Path | None, quiet: bool
) -> Comparison:
    """Check every cell of a new comparison, or of one that goes on where it lies."""
    from rich.console import Console

    from fedstrata.runs.compare import prepare

    console = Console(stderr=True)
    with console.status("checking every cell") if console.is_terminal and not quiet else nullcontext():
        return prepare(file, asked, sets, out=out)


def run_comparison(begin: Callable[[], Comparison], quiet: bool, how: dict[str, Any]) -> Comparison:
    """Run a comparison and show its progress; Ctrl-C says how it goes on."""
    from fedstrata.runs.compare.live import watcher

    try:
        prepared = begin()
    except KeyboardInterrupt:
        print("stopped before the first run began", file=sys.stderr)
        raise typer.Exit(130) from None
    shown = watcher(quiet, prepared)
    try:
        return prepared.run(watch=shown, progress=False, **how)
    except KeyboardInterrupt:
        shown.close()
        print(f"stopped; continue with: fedstrata compare --resume {shlex.quote(str(prepared.path))}", file=sys.stderr)
        raise typer.Exit(130) from None
    finally:
        shown.close()


def _tell_failed(done: Comparison) -> None:
    """Say why cells failed, once for all that failed alike."""
    alike: dict[str, list[str]] = {}
    shortened = False
    for cell in done.failed:
        short = in_short(cell.why or "")
        shortened |= short is not None
        alike.setdefault(short or str(cell.why), []).append(cell.name)
    for why, names in alike.items():
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        print(f"error: {'; '.join(names[:NAMED])}{more} failed: {why}", file=sys.stderr)
    if shortened:
        print(f"whole tracebacks: {done.path / 'comparison.json'}", file=sys.stderr)


def conclude(done: Comparison, as_json: bool, wide: bool = False, files: Sequence[Path] = ()) -> None:
    """Print the outcome and what can be done next; a cell that failed is an error, whatever the others say."""
    from fedstrata.runs.compare.tables import WIDTH

    for remark in done.remarks:
        print(f"note: {remark}", file=sys.stderr)
    _tell_failed(done)
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
