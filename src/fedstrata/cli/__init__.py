"""The command line, one file a command. Heavy imports wait until a command needs them."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from fedstrata import __version__
from fedstrata.cli import board, compare, data, deploy, evaluate, export, inspect, predict, report, reproduce, run
from fedstrata.cli import list as listing
from fedstrata.core.errors import FedstrataError

app = typer.Typer(
    name="fedstrata",
    help="Federated learning on skewed data: one plan whose stages can be swapped, combined and compared.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("run")(run.run)
app.command("compare")(compare.compare)
app.command("inspect")(inspect.inspect)
app.command("list")(listing.listing)
app.command("predict")(predict.predict)
app.command("evaluate")(evaluate.evaluate)
app.command("export")(export.export)
app.command("report")(report.report)
app.command("board")(board.board)
app.add_typer(data.app, name="data")
app.add_typer(deploy.app, name="deploy")
app.add_typer(reproduce.app, name="reproduce")


@app.callback(invoke_without_command=True)
def version(
    show: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    """Federated learning on skewed data: one plan whose stages can be swapped, combined and compared."""
    if show:
        print(f"fedstrata {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; errors become a message and an exit code."""
    sys.path.insert(0, "")  # parts of one's own may lie in the folder one works in
    try:
        app()
    except FedstrataError as error:
        print("\n".join([f"error: {error}", *getattr(error, "__notes__", ())]), file=sys.stderr)
        sys.exit(error.exit_code)
