"""`fedstrata deploy backup` and `restore`: a server's state in one file, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedstrata.cli.deploy import HERE, There


def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE.tar.gz", help="New file.")],
    with_keys: Annotated[
        bool, typer.Option("--with-keys", help="The server's private keys too: then guard the file as you guard them.")
    ] = False,
    runs: Annotated[bool, typer.Option("--runs/--no-runs", help="The folders of its runs too.")] = True,
    server: There = HERE,
) -> None:
    """Keep the state of a server in a file. Who may connect, what Flower knows, its runs; it may be up meanwhile."""
    from fedstrata.deploy import state
    from fedstrata.deploy.operators.backup import backup as keep

    told = keep(state.address(server)[1], file, with_keys, runs)
    keys = "with its keys" if told["keys"] else "without its keys"
    print(f"{file}: the state of the server on port {told['port']}, {len(told['runs'])} runs, {keys}")


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE.tar.gz", help="What `deploy backup` wrote.")],
    port: Annotated[
        int | None, typer.Option(metavar="PORT", min=1, max=65535, help="Port of the server; by default as it was.")
    ] = None,
    runs: Annotated[Path, typer.Option(metavar="DIR", help="Where the folders of runs go.")] = Path("runs"),
    keys: Annotated[
        Path | None, typer.Option(metavar="DIR", help="New folder for the server's keys, where the file has them.")
    ] = None,
) -> None:
    """Bring the state of a server back from such a file. There must be none on this port."""
    from fedstrata.deploy.operators.backup import restore as bring

    told = bring(file, port, runs, keys)
    print(f"{told['folder']}: the state of the server")
    for run in told["runs"]:
        print(f"{run}: a run")
    where = keys if told["keys"] else "KEYS/server"
    print(f"next:  fedstrata deploy server --keys {where} --port {told['port']}")
