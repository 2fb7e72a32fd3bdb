"""A SuperNode that runs fedstrata's own app and no other.

Flower sends sites the app that they run, so whoever runs the server, or gets at it, could run any program at every
site. Our app holds no program: it points into the package that is installed at the site. Anything else is ignored here,
with a line in the log. Messages are answered in this process (`answering.py`).

`python -m fedstrata.deploy.site.supernode OPTIONS` is `flower-supernode OPTIONS` with that check.
"""

from __future__ import annotations

import sys
import tomllib
import zipfile
from importlib import import_module
from io import BytesIO
from typing import Any

from fedstrata.core.machine.parent_line import end_with_parent
from fedstrata.deploy.flower import run_command
from fedstrata.deploy.heartbeats import beat_on
from fedstrata.deploy.objects_under_way import ask_again_soon
from fedstrata.deploy.run_app import COMPONENTS
from fedstrata.deploy.site.answering import answer_here, hear, look_often, without_port

FILES = [".info/CONTENT", "pyproject.toml"]
LONGEST = 1 << 16  # bytes


def foreign(bundle: bytes) -> str | None:
    """Say what makes an app (a zip archive) another one than ours; None for ours."""
    try:
        with zipfile.ZipFile(BytesIO(bundle)) as archive:
            if sorted(archive.namelist()) != FILES:
                return "it holds other files"
            if archive.getinfo("pyproject.toml").file_size > LONGEST:
                return "its description is too long"
            told = tomllib.loads(archive.read("pyproject.toml").decode())
        if told["tool"]["flwr"]["app"]["components"] != COMPONENTS:
            return "it points to other code"
        return "it wants packages installed" if told["project"].get("dependencies") else None
    except (zipfile.BadZipFile, ValueError, KeyError, TypeError, AttributeError, RuntimeError):
        return "it cannot be read"


def main() -> None:
    """Run Flower's own command with a look at every app that it gets."""
    end_with_parent()
    connection, runs = (import_module(name) for name in ("flwr.supernode.fleet_http_connection", "flwr.supercore.run"))
    node = import_module("flwr.supernode.start_client_internal")
    try:
        read, ignored = connection.fab_from_proto, runs.RunNotRunningException
        answer_here(node, import_module(COMPONENTS["clientapp"].partition(":")[0]).app)
        look_often(node, hear(connection))
        beat_on(connection)
        without_port(import_module("flwr.supernode.cli.flower_supernode"))
        ask_again_soon()
    except (AttributeError, KeyError) as error:
        sys.exit(f"this version of Flower is not known to fedstrata: {error}")

    def checked(told: Any) -> Any:
        app = read(told)
        if (why := foreign(app.content)) is not None:
            print(f"refused: the server sent an app that is not fedstrata's: {why}", file=sys.stderr, flush=True)
            raise ignored
        return app

    connection.fab_from_proto = checked  # type: ignore[attr-defined]
    run_command("flower-supernode")


if __name__ == "__main__":
    main()
