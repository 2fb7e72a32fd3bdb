"""The command of a campaign: `python -m campaigns NAME [--quick] [--save]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from campaigns._table import Row, show, store

Play = Callable[[Path, bool], list[Row]]


def command(play: Play, arguments: Sequence[str]) -> int:
    """Play, tell, and store where asked to; 1 where anything was lost."""
    module = sys.modules[play.__module__]
    name = play.__module__.rpartition(".")[2]
    parser = argparse.ArgumentParser(prog=f"python -m campaigns {name}", description=module.__doc__)
    parser.add_argument("--quick", action="store_true", help="a small part of it, as `make test-all` plays it")
    parser.add_argument("--save", action="store_true", help=f"keep the table in campaigns/results/{name}.json")
    asked = parser.parse_args(arguments)
    with TemporaryDirectory() as folder:
        rows = play(Path(folder), asked.quick)
    show(rows)
    if asked.save:
        store(name, f"python -m campaigns {name}{' --quick' * asked.quick} --save", rows)
    return int(any(row.lost for row in rows))
