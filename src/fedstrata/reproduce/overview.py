"""All tables at a glance: what each needs, how long it takes, how far it is, and the verdict; and a paper in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedstrata.reproduce.figures import OPEN
from fedstrata.reproduce.minutes import DEVICES, Timing
from fedstrata.reproduce.results import Results, methods_beside
from fedstrata.reproduce.show import fetch_commands, from_printed, write_gain
from fedstrata.reproduce.table import PAPERS, all_tables
from fedstrata.reproduce.verdict import Verdict, judge


@dataclass(frozen=True)
class Judged:
    """A table with the runs that were made of it, and what that says."""

    results: Results
    verdict: Verdict

    @cached_property
    def times(self) -> dict[str, Timing]:
        """How long it takes, by kind of device."""
        return {device: Timing(self.results, device) for device in DEVICES}

    def to_json(self) -> dict[str, Any]:
        """Return what `fedstrata reproduce list --json` tells."""
        table, own = self.results.table, self.results
        return {
            "id": table.id,
            "paper": table.paper,
            "what": table.what,
            "data": table.data,
            "fetch": fetch_commands(table),
            "runs": len(own.runs),
            "wanted": len(table.wanted()),
            "done": own.done,
            "minutes": {device: round(t.minutes(table.wanted()), 3) for device, t in self.times.items()},
            "minutes_left": {device: round(t.minutes(own.missing()), 3) for device, t in self.times.items()},
            "measured": [device for device, t in self.times.items() if t.measured],
            "verdict": self.verdict.word,
        }


def judge_all(folder: Path, papers: Collection[str] = tuple(PAPERS)) -> dict[str, Judged]:
    """Read all results and judge them, a paper at a time; other readings only where some of their runs were made.

    Runs of a method beside a table that it would not make so any more are told of, and count for nothing.
    """
    results: dict[str, Results] = {}
    for name, table in all_tables().items():
        if table.paper not in papers:
            continue
        results[name] = Results(table, folder)
        read = [table.read_as(reading) for reading in table.readings]
        others = [Results(one, folder) for one in read]
        others += [Results(one.beside(m), folder) for one in (table, *read) for m in methods_beside(one, folder)]
        results |= {own.table.id: own for own in others if own.own_runs or (own.table.base and own.outdated)}
    verdicts: dict[str, Verdict] = {}
    for paper in papers:
        verdicts |= judge({name: own for name, own in results.items() if own.table.paper == paper})
    return {name: Judged(own, verdicts[name]) for name, own in results.items()}


def of_paper(paper: str, judged: Mapping[str, Judged]) -> list[Judged]:
    """Return the tables of a paper, in the order in which they are reproduced."""
    return [own for own in judged.values() if own.results.table.paper == paper]


def in_words(paper: str, judged: Mapping[str, Judged]) -> str:
    """Say in one paragraph what a paper claims, what repairs what, and what was found so far."""
    about = files("fedstrata.reproduce").joinpath(f"papers/{paper}/about.md").read_text("utf-8")
    return f"{' '.join(about.split())} {' '.join(_found(of_paper(paper, judged)))}"


def _found(tables: list[Judged]) -> Iterator[str]:
    known = [own for own in tables if own.verdict.word != OPEN or (own.results.done and own.verdict.contrast.mean)]
    runs = sum(len(own.results.own_runs) for own in tables if not own.results.table.same_runs)
    plain = [own for own in tables if not own.results.table.reading and own.results.table.base is None]
    if not runs:
        yield f"None of its {len(plain)} tables has been reproduced here yet, so all verdicts are open."
        return
    done = sum(own.results.done for own in plain)
    yield f"So far {runs} runs are done; of {len(plain)} tables {done} {'has' if done == 1 else 'have'} all runs of"
    yield "the primary contrast."
    counted = Counter(own.verdict.word for own in plain)
    yield f"Verdicts: {'; '.join(f'{word} ({number})' for word, number in counted.most_common())}."
    for own in known:
        table, contrast = own.results.table, own.verdict.contrast
        if _is_reading(own) and any(other.results.table.id == table.file_id for other in known):
            continue  # told with the table itself
        if contrast.mean is None:
            yield f"{table.id}: {own.verdict.word}."
            continue
        claimed = "" if contrast.claimed is None else f" where the paper prints {write_gain(contrast.claimed)}"
        apart = f"; {told}" if (told := from_printed(own.results)) else ""
        part = ", on a part of the data" if own.results.partial else ""
        yield f"{table.id} {_word(own)}{part}: {write_gain(contrast.mean)}{claimed}{apart}."
        readings = [one for one in known if _is_reading(one) and one.results.table.file_id == table.id]
        if readings:
            yield f"Read otherwise: {'; '.join(map(_read_otherwise, readings))}."


def _is_reading(own: Judged) -> bool:
    return bool(own.results.table.reading) and own.results.table.base is None


def _word(own: Judged) -> str:
    return "stays open" if own.verdict.word == OPEN else own.verdict.word


def _read_otherwise(own: Judged) -> str:
    gain = own.verdict.contrast.mean
    return f"{own.results.table.reading}, {_word(own)}{'' if gain is None else f' ({write_gain(gain)})'}"


def oddities(tables: Collection[Judged]) -> dict[str, list[str]]:
    """Return what is strange in a paper's own figures, each once, with the tables that it is about."""
    found: dict[str, list[str]] = {}
    for own in tables:
        table, claimed = own.results.table, own.verdict.contrast.claimed
        behind = [f"By the paper's own figures the row {table.method} is behind its strongest baseline, in the mean."]
        for said in (*table.oddities, *(behind if (claimed or 0.0) < 0 else ())) if not table.reading else ():
            found.setdefault(said, []).append(table.id)
    return found
