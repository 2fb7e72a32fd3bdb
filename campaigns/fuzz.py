"""Does anything bring a reader down? Every reader of files and messages, over damaged and hostile input.

A reader survives a case if it gives something back or refuses with an error of ours, in a few seconds and little
memory. Any other exception is lost: it would be a traceback at a user, or a server that stops.

`python -m campaigns fuzz` runs 200,000 cases; each is drawn from (reader, number), so that a lost one can be run
again: `--reader NAME --first NUMBER --cases 1`.
"""

from __future__ import annotations

import argparse
import resource
import time
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from campaigns._command import typed
from campaigns._readers import Reader, readers
from campaigns._table import RESULTS, Row, Table, show
from fedstrata.core.errors import FedstrataError

CASES = 200_000
SLOW = 10.0  # seconds that a case may take
MEMORY = 4 << 30  # bytes that all of it may take


def main(arguments: Sequence[str]) -> int:
    """Run, tell, and store."""
    parser = argparse.ArgumentParser(prog="python -m campaigns fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=CASES, help="over all readers")
    parser.add_argument("--reader", help="only this one")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--save", action="store_true", help="keep the table in campaigns/results/fuzz.json")
    parser.add_argument("--go-on", action="store_true", help="only cases that the stored table lacks")
    asked = parser.parse_args(arguments)
    if asked.save and asked.first:
        parser.error("what begins in the middle is not stored")
    if asked.go_on and not asked.save:
        parser.error("--go-on adds to the stored table; say --save too")
    table = Table(
        file=RESULTS / "fuzz.json" if asked.save else None, command=typed("fuzz", arguments), go_on=asked.go_on
    )
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY + _used(), hard))
    with TemporaryDirectory() as folder:
        try:
            rows = run_cases(Path(folder), asked.cases, table, asked.reader, asked.first)
        except LookupError as error:
            parser.error(str(error))
    show(rows)
    return int(any(row.lost for row in rows))


def run_cases(folder: Path, cases: int, table: Table, only: str | None = None, first: int = 0) -> list[Row]:
    """Run so many cases, dealt out by what one costs."""
    there = readers(folder)
    chosen = [reader for reader in there if only in (None, reader.name)]
    if not chosen:
        raise LookupError(f"there is no reader {only}; there are: {', '.join(reader.name for reader in there)}")
    shares = sum(reader.share for reader in chosen)
    for reader in chosen:
        row, began = table.row(reader.name), time.monotonic()
        wanted = max(round(cases * reader.share / shares), 1)
        if row.tried < wanted:  # the first so many of a reader's cases are always the same
            row.wanted = wanted
            try:
                for number in range(first + row.tried, first + wanted):
                    row.note(attempt(reader, number))
            finally:  # Ctrl-C ends a reader in the middle, and a later call goes on there
                table.keep(row)
            print(f"{row.name}: {row.tried} tried, {row.lost} lost, {time.monotonic() - began:.0f} s", flush=True)
        else:
            print(f"{row.name}: {row.tried} tried before, {wanted} asked for: none is left", flush=True)
    return list(table.rows.values())


def attempt(reader: Reader, number: int) -> str | None:
    """Run one case; give what went wrong."""
    rng = Random(f"fuzz {reader.name} {number}")
    data, began = reader.draw(rng), time.monotonic()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader.read(data)
    except FedstrataError:
        pass
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        said = str(error)[:100].encode("ascii", "backslashreplace").decode()
        return f"--first {number}: {type(error).__name__}: {said} ({Path(where.filename).name}:{where.lineno})"
    took = time.monotonic() - began
    return None if took < SLOW else f"--first {number}: took {took:.0f} s"


def _used() -> int:
    """Return the address space in use."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
