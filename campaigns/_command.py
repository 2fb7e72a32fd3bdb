"""The command of a campaign: `python -m campaigns NAME [--quick] [--part PART] [--minutes M] [--save]`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from campaigns._clock import end_after
from campaigns._table import Row, show, store

Play = Callable[[Path, bool], Iterable[Row]]  # in a folder; whether only a small part is wanted


def command(name: str, parts: Mapping[str, Play], arguments: Sequence[str], description: str | None) -> int:
    """Play, tell, and store where asked to; 1 where anything was lost."""
    parser = argparse.ArgumentParser(prog=f"python -m campaigns {name}", description=description)
    parser.add_argument("--quick", action="store_true", help="a small size, as `make test-all` plays it")
    parser.add_argument("--part", choices=parts, help="only this; the rest of the stored table stays")
    parser.add_argument("--save", action="store_true", help=f"keep the table in campaigns/results/{name}.json")
    parser.add_argument("--minutes", type=float, help="begin nothing more after that; the table says what was tried")
    asked = parser.parse_args(arguments)
    if asked.minutes is not None:
        end_after(asked.minutes)
    rows = play_parts(parts if asked.part is None else {asked.part: parts[asked.part]}, asked.quick)
    show(rows)
    if asked.save:
        store(name, f"python -m campaigns {name}{' --quick' * asked.quick} --save", rows, whole=asked.part is None)
    return int(any(row.lost for row in rows))


def play_parts(parts: Mapping[str, Play], quick: bool) -> list[Row]:
    """Play one part after another, each in a folder of its own."""
    rows = []
    for name, play in parts.items():
        with TemporaryDirectory(prefix=f"{name}-", ignore_cleanup_errors=True) as folder:
            for row in play(Path(folder), quick):
                print(f"{row.name}: {row.tried} tried, {row.lost} lost", flush=True)
                rows.append(row)
    return rows
