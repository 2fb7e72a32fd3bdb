"""`fedstrata compare`: several methods, paired, over several seeds."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fedstrata.cli.options import AsJson, ExperimentFile, Quiet, Sets, overrides
from fedstrata.cli.run import stop_cleanly

SHOWN = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced",
    "worst10": "worst 10 %",
    "accuracy_over_first": "over first",
    "client_updates": "updates",
    "bytes_up": "MB up",
    "bytes_down": "MB down",
    "bytes_p2p": "MB p2p",
    "seconds": "seconds",
}


def compare(
    experiment: ExperimentFile = None,
    methods: Annotated[
        str, typer.Option(metavar="A,B,C", help="Methods to compare; `fedstrata list methods` names them.")
    ] = "",
    seeds: Annotated[int, typer.Option(metavar="N", help="Seeds, counted up from the experiment's.")] = 1,
    sets: Sets = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of the runs; a stopped comparison goes on there."),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Compare methods on the same partition, first model and draws."""
    from fedstrata.cli.progress import Reporter, reporter
    from fedstrata.comparing import compare as run_all

    names = [name.strip() for name in methods.split(",") if name.strip()]
    current: list[Reporter] = []
    stop_cleanly()

    def watch(method: str, seed: int) -> Reporter:
        for reported in current:
            reported.close()
        current[:] = [reporter(quiet, f"{method}, seed {seed}")]
        return current[0]

    try:
        done = run_all(experiment, methods=names, seeds=seeds, overrides=overrides(sets), out=out, watch=watch)
    except KeyboardInterrupt:
        began = current and current[0].run_dir
        path = out or (Path(began).parents[1] if began else None)
        print(
            f"stopped; the same command with --out {path} goes on where it was" if path else "stopped", file=sys.stderr
        )
        raise typer.Exit(130) from None
    finally:
        for reported in current:
            reported.close()
    if as_json:
        print(json.dumps({"rows": done.rows}))
    else:
        show(done.rows)
        print(f"runs: {done.path}")


def show(rows: list[dict[str, Any]]) -> None:
    """Print the comparison as a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("method", no_wrap=True)
    for title in SHOWN.values():
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row["method"], *(_cell(key, row[key]) for key in SHOWN))
    Console(width=max(Console().width, 150)).print(table)  # a cut figure is worse than a long line
    if rows[0]["seeds"] > 1:
        print(
            f"mean ± half of a 95 % Student t interval over {rows[0]['seeds']} seeds; "
            "over first: paired difference in accuracy; worst 10 %: mean of the worst tenth of the clients"
        )


def _cell(key: str, figure: dict[str, Any]) -> str:
    mean, interval = figure["mean"], figure["interval"]
    if mean is None:
        return "-"
    if key.startswith("bytes"):
        return f"{mean / 1e6:.1f}"
    if key in ("client_updates", "seconds"):
        return f"{mean:.0f}" if key == "client_updates" else f"{mean:.1f}"
    sign = "+" if key == "accuracy_over_first" else ""
    return f"{mean:{sign}.3f}" + (f" ±{(interval[1] - interval[0]) / 2:.3f}" if interval else "")
