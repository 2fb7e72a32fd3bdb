"""The long-lived process of a site: `python -m fedstrata.remote.site.process CONFIG.json`.

A run waits for it, so it begins with what takes longest: it imports what it needs, and torch with it, in one go.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

from fedstrata.core.errors import FedstrataError
from fedstrata.core.machine.parent_line import end_with_parent
from fedstrata.core.machine.quick_imports import quick_imports


def main(path: str) -> None:
    """Serve until ended."""
    end_with_parent()
    with quick_imports():
        service = import_module("fedstrata.remote.site.service")
    service.serve_site(json.loads(Path(path).read_text()))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except FedstrataError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
