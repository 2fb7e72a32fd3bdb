"""`fedstrata deploy fetch`: a site gets the model that it trained with others."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Annotated

import typer

from fedstrata.cli.options import AsJson
from fedstrata.core.errors import RequestError


def fetch(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Name of a finished run; by default the latest.")
    ] = None,
    site: Annotated[str | None, typer.Option(metavar="NAME", help="The site; needed where there are several.")] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="DIR", help="New folder; models/RUN without it.")
    ] = None,
    server: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The server; by default that of the site's client.")
    ] = None,
    keys: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The site's keys; by default those of its client.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="The server has no keys.")] = False,
    shows: Annotated[bool, typer.Option("--list", help="Only say what there is.")] = False,
    as_json: AsJson = False,
) -> None:
    """Get the model of a finished run, for `fedstrata predict`."""
    from fedstrata.deploy import state
    from fedstrata.deploy.keys import of_site
    from fedstrata.deploy.site.fetch import choose_run, shelf_of

    name = state.site_name(site) if site is not None else _only_site()
    if server is not None:
        server = state.join_address(*state.address(server))
    own = None if keys is None else of_site(keys, name)
    shelf = shelf_of(name, server, own, insecure)
    runs = shelf.runs()
    if shows:
        print(json.dumps(runs) if as_json else "\n".join(_line(each) for each in runs) or "no finished runs yet")
        return
    wanted = choose_run(runs, run)
    folder = out or Path("models") / wanted["run"]
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RequestError(f"-o {folder} is there already; name another folder")
    try:
        files = [shelf.fetch(wanted["run"], file, folder) for file in sorted(wanted["files"], reverse=True)]
    except OSError as error:
        raise RequestError(f"-o {folder} cannot be written: {error}") from None
    if as_json:
        print(json.dumps({**wanted, "files": [str(file) for file in files]}))
        return
    for file in files:
        print(f"{file}: {file.stat().st_size:,} bytes")
    masked = wanted["privacy"].get("labels", "none") != "none" and shelf.keys is not None
    more = f" --keys {shlex.quote(os.path.relpath(shelf.keys))}" if masked and shelf.keys is not None else ""
    # Whoever named the run, the line is one to copy.
    print(f"the model at work:  fedstrata predict {shlex.quote(str(folder))} INPUT{more}")


def _only_site() -> str:
    from fedstrata.deploy import state

    known = sorted(path.name.removeprefix("site-") for path in state.folder().glob("site-*") if path.is_dir())
    if len(known) == 1:
        return known[0]
    raise RequestError(
        "--site is needed: " + (f"this machine has {', '.join(known)}" if known else "none is known here")
    )


def _line(run: dict[str, object]) -> str:
    return f"{run['run']}  {run['method']}, {run['rounds']} rounds"
