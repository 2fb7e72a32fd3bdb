"""The command line, one file a command. Heavy imports wait until a command needs them."""

from __future__ import annotations

import io
import os
import sys
import traceback
from typing import Annotated, Any

import typer
import typer.core

from fedstrata import __version__
from fedstrata.cli import (
    backup,
    board,
    compare,
    console,
    data,
    deploy,
    doctor,
    evaluate,
    export,
    fetch,
    inspect,
    keys,
    new,
    owner,
    package,
    predict,
    report,
    reproduce,
    run,
)
from fedstrata.cli import list as listing
from fedstrata.cli.completing import answering_bash
from fedstrata.cli.tracebacks import in_short
from fedstrata.core.errors import FedstrataError
from fedstrata.core.origin import find_own_parts_in
from fedstrata.core.storage.files import disk_is_full


class Commands(typer.core.TyperGroup):
    """All commands; Ctrl-C is answered with a line where a command does not say itself what is left of it."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            print("stopped", file=sys.stderr)
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=Commands,
    name="fedstrata",
    help="Federated learning on skewed data: one plan whose stages can be swapped, combined and compared.",
    no_args_is_help=True,
    add_completion=True,
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
app.command("new")(new.new)
app.command("doctor")(doctor.doctor)
app.add_typer(data.app, name="data")
deploy.app.add_typer(keys.app, name="keys")
deploy.app.add_typer(console.app, name="console")
deploy.app.command("approve")(owner.approve)
deploy.app.command("audit")(owner.audit)
deploy.app.command("fetch")(fetch.fetch)
deploy.app.command("package")(package.package)
deploy.app.command("backup")(backup.backup)
deploy.app.command("restore")(backup.restore)
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
    for stream in (sys.stdout, sys.stderr):  # where they are not UTF-8, what they cannot write is written as \\xf6
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    find_own_parts_in(os.getcwd())
    typer.core.HAS_RICH = False  # help is plain; typer 0.20, which Flower wants, would print \[required] for rich
    click = getattr(typer.core, "click", None)  # which newer ones do without; it may say by itself what was meant
    app.suggest_commands = not hasattr(getattr(click, "exceptions", None), "NoSuchCommand")
    try:
        with answering_bash(os.environ):
            app()
    except FedstrataError as error:
        print("\n".join([f"error: {in_short(str(error)) or error}", *getattr(error, "__notes__", ())]), file=sys.stderr)
        sys.exit(error.exit_code)
    except Exception as error:
        if isinstance(error, OSError) and disk_is_full(error):
            where = f"{error.filename} cannot be written: " if error.filename else ""
            print(f"error: {where}{error.strerror}; make room, and give the command again", file=sys.stderr)
        elif (said := in_short(traceback.format_exc())) is not None:
            print(f"error: {said}", file=sys.stderr)
        else:
            raise
        sys.exit(1)
