"""`fedstrata deploy keys`: the keys of a federation, made and changed where its authority's key lies."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

NEW = "new"


class NewByDefault(TyperGroup):
    """`deploy keys DIR --sites ...` is `deploy keys new DIR --sites ...`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put in the word that was left out."""
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = [NEW, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=NewByDefault,
    help="Make the keys of a federation, and change who is in it. `keys DIR` is `keys new DIR`.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

Made = Annotated[Path, typer.Argument(metavar="DIR", help="The folder that `deploy keys` made, with ca/ in it.")]
Hosts = Annotated[
    list[str] | None,
    typer.Option("--host", metavar="NAME_OR_IP", help="What sites call the server; any number of times."),
]


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New folder for the keys.")],
    sites: Annotated[str, typer.Option(metavar="A,B,C", help="Names of the sites.")],
    host: Hosts = None,
) -> None:
    """Make the keys of a federation. Certificates for the server, a key for every site."""
    from fedstrata.deploy.keys import ends, make

    names = [name.strip() for name in sites.split(",") if name.strip()]
    make(folder, names, host or [])
    until = ends(folder / "server")
    print(f"{folder}/server    belongs on the server's machine")
    for name in sorted(names):
        print(f"{folder}/sites/{name}    belongs to site {name}, and to nobody else")
    print(f"{folder}/ca    stays here: with it sites are added, renewed and revoked; nobody needs it to run anything")
    print(f"the server's certificate ends on {until['server.crt']:%Y-%m-%d}, the authority {until['ca.crt']:%Y-%m-%d}")


@app.command()
def add(
    folder: Made, names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of new sites.")]
) -> None:
    """Make keys for new sites, and put them on the roll."""
    from fedstrata.deploy.authority import Authority

    roll = Authority.open(folder).add(names)
    for name in names:
        print(f"{folder}/sites/{name}    belongs to site {name}, and to nobody else")
    _tell(folder, roll.serial)


@app.command()
def renew(
    folder: Made,
    name: Annotated[str, typer.Argument(metavar="NAME", help='A site, or "server" for its certificate.')],
    host: Hosts = None,
) -> None:
    """Give a site new keys, or the server a new certificate. It is for the same names, or for those of --host."""
    from fedstrata.deploy.authority import Authority
    from fedstrata.deploy.keys import SERVER, ends

    before = Authority.open(folder)
    roll = before.renew(name, host or [])
    if name == SERVER:
        print(f"{folder}/server has a certificate until {ends(folder / SERVER)['server.crt']:%Y-%m-%d}")
        print("copy server.key and server.crt to the server and start it again; sites come back by themselves")
        return
    print(f"{folder}/sites/{name}    belongs to site {name}: bring it there, and start its client again")
    print(f"{folder}/old/{name}-{before.roll.serial}    are its keys of before; they open labels of earlier runs only")
    _tell(folder, roll.serial)


@app.command()
def revoke(folder: Made, name: Annotated[str, typer.Argument(metavar="NAME", help="A site or an operator.")]) -> None:
    """Shut a site or an operator out, for good."""
    from fedstrata.deploy.authority import Authority

    roll = Authority.open(folder).revoke(name)
    print(f"{name} is off the roll")
    _tell(folder, roll.serial)


@app.command()
def operator(folder: Made, name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the operator.")]) -> None:
    """Make a key for somebody who may stop and approve runs. `fedstrata deploy console` takes it."""
    from fedstrata.deploy.authority import Authority

    roll = Authority.open(folder).add_operator(name)
    print(f"{folder}/operators/{name}    belongs to {name}, and to nobody else")
    _tell(folder, roll.serial)


@app.command()
def show(folder: Made) -> None:
    """Say who is on the roll, and when certificates end."""
    from fedstrata.deploy.authority import Authority
    from fedstrata.deploy.keys import ends, expiring

    authority = Authority.open(folder)
    roll = authority.roll
    print(f"roll {roll.serial} of {roll.issued or 'before rolls were signed'}")
    print(f"sites: {', '.join(sorted(roll.sites)) or 'none'}")
    print(f"operators: {', '.join(sorted(roll.operators)) or 'none'}")
    for place in (folder / "ca", folder / "server"):
        for name, end in ends(place).items():
            if place.name == "ca" or name != "ca.crt":
                print(f"{place / name} ends on {end:%Y-%m-%d}")
        for line in expiring(place):
            print(f"warning: {line}", file=sys.stderr)


def _tell(folder: Path, serial: int) -> None:
    print(
        f"roll {serial}: copy {folder}/ca/roll.json into the server's key folder; it is taken in while the server runs,"
    )
    print("and brought to the sites with the next run")
