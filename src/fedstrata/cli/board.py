"""`fedstrata board`: watch runs in a browser while they go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from fedstrata.core.errors import RequestError


def board(
    runs: Annotated[Path, typer.Argument(metavar="[RUNS_DIR]", help="The folder that holds the runs.")] = Path("runs"),
    port: Annotated[int, typer.Option(metavar="PORT", min=0, max=65535, help="0 takes any that is free.")] = 8765,
    host: Annotated[
        str,
        typer.Option(
            metavar="HOST", help="Address to listen at. At another than this machine's own, looking needs a token."
        ),
    ] = "127.0.0.1",
    token: Annotated[
        str | None,
        typer.Option(metavar="WORD", help="What others must know; made up and printed if it is needed and not given."),
    ] = None,
) -> None:
    """Watch runs in a browser while they train. Several can be laid over each other."""
    import_serve()(runs, host, port, token, say)


def import_serve() -> Callable[..., None]:
    """Return what serves the board; say what is missing for it."""
    try:
        from fedstrata.board.serve import serve
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise RequestError(f"the board needs {error.name}; get it with: pip install 'fedstrata[board]'") from None
    return serve


def say(where: str) -> None:
    """Say where the board is."""
    print(f"{where}\nCtrl-C ends it.", flush=True)
