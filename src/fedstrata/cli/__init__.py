"""The command line, one file a command. Heavy imports wait until a command needs them."""

from __future__ import annotations

import sys

import typer

from fedstrata.cli import compare, listing, run
from fedstrata.errors import FedstrataError

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
app.command("list")(listing.listing)


def main() -> None:
    """Run the command line; errors become a message and an exit code."""
    try:
        app()
    except FedstrataError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
