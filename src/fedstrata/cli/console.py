"""`fedstrata deploy console`: sites, runs and queue in the terminal; operators stop, pause and approve runs there."""

from __future__ import annotations

import json
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedstrata.cli.deploy import HERE, There
from fedstrata.cli.options import AsJson
from fedstrata.core.errors import FedstrataError

if TYPE_CHECKING:
    from rich.console import Group

    from fedstrata.deploy.operators.overview import Overview
    from fedstrata.deploy.server.federation_server import FederationServer
    from fedstrata.remote.server.orders import Action

app = typer.Typer(
    help="Watch sites, runs and queue, and steer runs. An operator stops and approves them, here or by subcommand.",
    add_completion=False,
    rich_markup_mode=None,
)

Operator = Annotated[
    Path | None,
    typer.Option("--operator", metavar="DIR", help="The operator's folder that `deploy keys operator` made."),
]
Number = Annotated[str, typer.Argument(metavar="RUN", help="The run's number in the queue, as the console shows it.")]
KEYS: dict[str, Action] = {"s": "stop", "p": "pause", "c": "continue", "a": "approve", "r": "refuse"}
EVERY = 1.0  # seconds between two looks


@app.callback(invoke_without_command=True)
def console(
    context: typer.Context,
    server: There = HERE,
    operator: Operator = None,
    board: Annotated[
        bool, typer.Option("--board", help="Show it in a browser, beside the runs; on this machine only.")
    ] = False,
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="Port of --board; 0 takes any that is free.")
    ] = 8765,
    runs: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Runs that --board lists; without it, where the last run lies.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Show it once, and end.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show sites, runs and queue until q: up and down choose a run, s stops it, p pauses, c continues, a approves."""
    if context.invoked_subcommand is not None:
        return
    from rich.console import Console

    from fedstrata.deploy.operators.overview import look
    from fedstrata.deploy.server.federation_server import find_server

    there = find_server(server)
    if board:
        on_board(there, operator, port, runs)
    elif as_json:
        print(json.dumps(asdict(look(there)), default=str))
    elif once or not sys.stdin.isatty() or not sys.stdout.isatty():
        Console(width=None if sys.stdout.isatty() else 140, highlight=False).print(draw(look(there)))
    else:
        watch(there, operator)


@app.command()
def stop(run: Number, server: There = HERE, operator: Operator = None) -> None:
    """Stop a run before its next round; it can be resumed."""
    _ordered("stop", run, server, operator)


@app.command()
def pause(run: Number, server: There = HERE, operator: Operator = None) -> None:
    """Let a run rest before its next round."""
    _ordered("pause", run, server, operator)


@app.command("continue")
def go_on(run: Number, server: There = HERE, operator: Operator = None) -> None:
    """Let a run that was paused go on."""
    _ordered("continue", run, server, operator)


@app.command()
def approve(run: Number, server: There = HERE, operator: Operator = None) -> None:
    """Let a run begin. The server was started with --approve-runs."""
    _ordered("approve", run, server, operator)


@app.command()
def refuse(run: Number, server: There = HERE, operator: Operator = None) -> None:
    """Let a run not begin."""
    _ordered("refuse", run, server, operator)


def _ordered(action: Action, run: str, server: str, operator: Path | None) -> None:
    from fedstrata.deploy.operators.run_orders import order
    from fedstrata.deploy.server.federation_server import find_server

    print(order(find_server(server), action, run, operator))


def on_board(there: FederationServer, operator: Path | None, port: int, runs: Path | None) -> None:
    """Serve the board with the federation on it, until Ctrl-C."""
    from fedstrata.cli.board import import_serve, say
    from fedstrata.deploy.operators.board_console import BoardConsole

    latest = there.latest()
    root = runs or (latest.parent if latest is not None else Path("runs"))
    import_serve()(root, "127.0.0.1", port, None, say, BoardConsole(there, operator))


# ---- the view


def watch(there: FederationServer, operator: Path | None) -> None:
    """Show everything again and again, and do what keys say."""
    from rich.live import Live

    from fedstrata.deploy.operators.overview import look

    chosen, said = 0, ""
    with key_presses() as pressed, Live(screen=True, auto_refresh=False) as live:
        while True:
            seen = look(there)
            chosen = max(min(chosen, len(seen.runs) - 1), 0)
            live.update(draw(seen, chosen, said), refresh=True)
            key = pressed(EVERY)
            if key in ("q", "\x03"):
                return
            chosen, said = react(there, seen, key, chosen, operator) or (chosen, said)


def react(
    there: FederationServer, seen: Overview, key: str, chosen: int, operator: Path | None
) -> tuple[int, str] | None:
    """Do what a key says; give the chosen run and what to say, or None where the key means nothing."""
    from fedstrata.deploy.operators.run_orders import order

    if key in ("j", "k"):
        return max(min(chosen + (1 if key == "j" else -1), len(seen.runs) - 1), 0), ""
    if key not in KEYS or not seen.runs:
        return None
    try:
        return chosen, order(there, KEYS[key], seen.runs[chosen].ticket.id, operator)
    except FedstrataError as error:
        return chosen, f"error: {error}"


def draw(seen: Overview, chosen: int | None = None, said: str = "") -> Group:
    """Put it into tables."""
    from rich.console import Group
    from rich.text import Text

    from fedstrata.deploy.site_reports import clock

    sites = _table("site", "state", "since", "last heard", "rounds", "last round", "refused", "about")
    for row in seen.sites:
        given = row.given or {}
        counted = [str(given.get(key, "-")) for key in ("rounds", "last_round", "refused")]
        sites.add_row(row.site, *row.told, *counted, row.about)
    runs = _table("", "run", "method", "asked for by", "at", "state", "folder")
    for i, run in enumerate(seen.runs):
        t = run.ticket
        runs.add_row(">" if i == chosen else "", t.id, t.method, t.who, clock(t.at), run.state, t.path)
    nothing = Text("no run goes on or waits") if not seen.runs else Text("")
    lines = [Text(f"WARNING: {line}", style="bold red") for line in seen.warnings]
    lines += [Text(line) for line in seen.faults]
    keys = "j/k choose a run   s stop   p pause   c continue   a approve   r refuse   q quit"
    foot = [Text(said, style="bold"), Text(keys, style="dim")] if chosen is not None else []
    return Group(sites, Text(""), runs, nothing, *lines, *foot)


def _table(*titles: str) -> Any:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in titles:
        table.add_column(title)
    return table


@contextmanager
def key_presses() -> Iterator[Callable[[float], str]]:
    """Read single keys, without waiting for a line; arrows count as j and k."""
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)

    def pressed(seconds: float) -> str:
        if not select.select([sys.stdin], [], [], seconds)[0]:
            return ""
        key = sys.stdin.read(1)
        return {"A": "k", "B": "j"}.get(sys.stdin.read(2)[-1:], "") if key == "\x1b" else key

    try:
        yield pressed
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
