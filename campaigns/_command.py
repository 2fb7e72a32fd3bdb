"""The command of a campaign: `python -m campaigns NAME [--quick] [--part PART] [--minutes M] [--save] [--go-on]`."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from campaigns import _table
from campaigns._clock import end_after
from campaigns._table import Row, Table, show

Part = Callable[[Path, Table], None]  # in a folder; fills rows of the table


def command(name: str, parts: Mapping[str, Part], arguments: Sequence[str], description: str | None) -> int:
    """Run, tell, and store where asked to; 1 where anything was lost."""
    parser = argparse.ArgumentParser(prog=f"python -m campaigns {name}", description=description)
    parser.add_argument("--quick", action="store_true", help="a small size, as `make test-all` runs it")
    parser.add_argument("--part", choices=parts, help="only this; the rest of the stored table stays")
    parser.add_argument("--save", action="store_true", help=f"keep the table in campaigns/results/{name}.json")
    parser.add_argument("--go-on", action="store_true", help="try what the stored table lacks; else rows begin anew")
    parser.add_argument("--minutes", type=float, help="begin nothing more after that; the table says what was tried")
    asked = parser.parse_args(arguments)
    if asked.quick and asked.save:
        parser.error("--quick is no campaign to store")
    if asked.go_on and not asked.save:
        parser.error("--go-on adds to the stored table; say --save too")
    if asked.minutes is not None:
        end_after(asked.minutes)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # in processes that it starts: a thousand sites have threads enough
    file = _table.RESULTS / f"{name}.json" if asked.save else None
    table = Table(asked.quick, file, typed(name, arguments), asked.go_on)
    rows = run_parts(parts if asked.part is None else {asked.part: parts[asked.part]}, table)
    show(rows)
    return int(any(row.lost for row in rows))


def typed(name: str, arguments: Sequence[str]) -> str:
    """Return the command as somebody typed it."""
    return shlex.join(["python", "-m", "campaigns", name, *arguments])


def run_parts(parts: Mapping[str, Part], table: Table) -> list[Row]:
    """Run one part after another, each in a folder of its own."""
    for name, part in parts.items():
        with TemporaryDirectory(prefix=f"{name}-", ignore_cleanup_errors=True) as folder:
            part(Path(folder), table)
    return [row for row in table.rows.values() if row.tried]
