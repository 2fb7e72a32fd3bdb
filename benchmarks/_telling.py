"""How an app that measures tells what it found: whole, in the file that its run config names."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp


def measuring(measure: Callable[[Grid, int, bool], dict[str, Any]]) -> ServerApp:
    """Return the server side of an app that measures so many sites, fully or quickly."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = context.run_config
        out = Path(str(config["out"]))
        try:
            told = measure(grid, int(config["sites"]), bool(config["quick"]))
        except Exception as error:
            told = {"failed": "".join(traceback.format_exception(error))}
        new = out.with_suffix(".new")
        new.write_text(json.dumps(told))
        new.replace(out)

    return app
