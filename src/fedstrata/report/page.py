"""The report of runs: outcome, figures by section with their numbers, privacy, configuration."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from itertools import groupby
from typing import Any, TypeVar

from fedstrata import __version__
from fedstrata.config.naming import name_data
from fedstrata.core.errors import RequestError
from fedstrata.core.plain_text import plain_text
from fedstrata.report import figures, replay, tables
from fedstrata.report.condition_table import by_condition
from fedstrata.report.document import chips, document, figure_of, frames, heading
from fedstrata.report.figures import CONDITIONS, SECTIONS, Shown
from fedstrata.report.figures.colours import line_styles
from fedstrata.report.figures.curves import AXES, group_runs
from fedstrata.report.gather import GatheredRuns
from fedstrata.report.html_tables import comparison_tables, cut, fold, html, settings, tiles
from fedstrata.report.outcome import outcome
from fedstrata.report.run_data import RunData
from fedstrata.runs.amounts import write_epsilon
from fedstrata.runs.compare.grid import conditions_of

IN_FULL = 4  # most runs all of whose own figures are drawn: the file stays under 6 MB
BRIEFLY = 12  # most runs of which at least the method's own figures and the faults, which are small, are
Page = TypeVar("Page")
ORDER = [name for _, name, *_ in figures.OWN]


def page(gathered: GatheredRuns) -> str:
    """Write the page."""
    return leave_out_damaged(gathered, _page)


def leave_out_damaged(gathered: GatheredRuns, show: Callable[[GatheredRuns], Page]) -> Page:
    """Show runs; one that cannot be shown, because what it wrote is damaged, is left out, with a warning."""
    try:
        return show(gathered)
    except Exception:
        bad = {run_data.name: why for run_data in gathered.runs_data if (why := _why_not(run_data, show))}
        if not bad:
            raise
    said = [f"{name} cannot be shown, because what it wrote is damaged: {why}" for name, why in bad.items()]
    gathered.runs_data = [run_data for run_data in gathered.runs_data if run_data.name not in bad]
    gathered.warnings = [*gathered.warnings, *said]
    if not gathered.runs_data:
        raise RequestError("; ".join(said))
    return show(gathered)


def _why_not(run_data: RunData, show: Callable[[GatheredRuns], Any]) -> str | None:
    try:
        show(GatheredRuns([run_data]))
    except Exception as error:  # whatever damaged figures can do to those who draw them
        return plain_text(f"{type(error).__name__}: {error}", 200)
    return None


def replay_page(run_data: RunData) -> str | None:
    """Write a page of its own in which a run can be replayed."""
    framed = list(replay.frame([run_data]))
    if not framed:
        return None
    body = [*heading(run_data.name, outcome(GatheredRuns([run_data])), []), '<main id="main" tabindex="-1">', *framed]
    return document(run_data.name, [*body, "</main>"], [], [replay.SCRIPT])


def _page(gathered: GatheredRuns) -> str:
    full, shown, title = gathered.featured(IN_FULL), draw(gathered), make_title(gathered)
    conditions = {run_data.condition for run_data in gathered.runs_data}
    sections = [(key, name) for key, name in SECTIONS.items() if _has(key, shown, gathered)]
    links = [("outcome", "Outcome"), *sections, ("privacy", "Privacy"), ("reproduce", "Configuration")]
    axes = "".join(f'<option value="{key}">{escape(name)}</option>' for key, name in AXES.items())
    against = f'<label>Curves against <select id="against">{axes}</select></label>'
    body = [
        *heading(title, outcome(gathered), links, against, method_filter(gathered)),
        '<main id="main" tabindex="-1">',
        *(f'<p class="warning" role="alert">{escape(said)}</p>' for said in gathered.warnings),
        '<h2 id="outcome">Outcome</h2>',
        *_outcome_tables(gathered),
    ]
    if len(gathered.firsts) < len(gathered.runs_data) or len(full) < len(gathered.firsts):
        names = "; ".join(run_data.name for run_data in full)
        shown_of = "all runs" if len(conditions) <= CONDITIONS else f"the first {CONDITIONS} conditions"
        about = f"Curves are of {shown_of}; labels and clients, one by one, of {names}."
        more = " A condition's own folder makes a report of its own, with all figures." if len(conditions) > 1 else ""
        body.append(f'<p class="quiet">{escape(about + more)}</p>')
    replayed = "".join(replay.frame(full))
    for key, name in sections:
        tabled = [run_data for run_data in gathered.runs_data if run_data.faults][:BRIEFLY] if key == "faults" else full
        more = replayed if key == "federation" else ""
        body += _section(key, name, [own for own in shown if own.section == key], tabled, more)
    body += [*_choices(full), *_privacy(full), *_configuration(gathered, full), "</main>"]
    body += [f"<footer>Written by fedstrata {escape(__version__)}. This file needs no network.</footer>"]
    return document(title, body, shown, [replay.SCRIPT] if replayed else [])


def method_filter(gathered: GatheredRuns) -> str:
    """Return the buttons that hide a method everywhere, where there are several."""
    styles = line_styles((run_data.row, run_data.line_name) for run_data in gathered.runs_data)
    return chips(styles) if len(styles) > 1 else ""


def make_title(gathered: GatheredRuns) -> str:
    """Say in a few words what is shown."""
    runs_data, groups = gathered.runs_data, group_runs(gathered.runs_data)
    data, seeds = {_data(run_data) for run_data in runs_data}, {len(own) for own in groups.values()}
    on = f" on {data.pop()}" if len(data) == 1 else ""
    if len(runs_data) == 1:
        return f"{runs_data[0].name}{on}"
    if len(seeds) > 1 or (seeds == {1} and not gathered.rows):
        return f"{len(runs_data)} runs{on}"
    conditions = {run_data.condition for run_data in runs_data if run_data.condition}
    if conditions:
        methods = {run_data.row for run_data in runs_data}
        on += f" under {len(conditions)} conditions"
        named = f"{len(methods)} methods" if len(methods) > 1 else methods.pop()
    else:
        named = f"{len(groups)} methods" if len(groups) > 1 else next(iter(groups))
    return f"{named}{on}" + (f", {seeds.pop()} seeds" if seeds != {1} else "")


def draw(gathered: GatheredRuns) -> list[Shown]:
    """Return all figures of the page: those of all runs together, then the same figure of every run, side by side."""
    several = len(gathered.runs_data) > 1
    own = []
    full = {run_data.name for run_data in gathered.featured(IN_FULL)}
    for run_data in gathered.firsts[:BRIEFLY]:
        brief = run_data.name not in full
        small = [one for one in figures.of_one(run_data) if not brief or one.section in ("method", "faults")]
        own += [(run_data, shown) for shown in small]
    own.sort(key=lambda pair: ORDER.index(pair[1].name))
    overlays = figures.under_conditions if len({run.condition for run in gathered.runs_data}) > 1 else figures.overlays
    over = figures.over_conditions(gathered.tested)
    held = figures.of_federation(gathered.firsts)
    return [*over, *overlays(gathered.runs_data), *held, *(_of_runs(own) if several else (shown for _, shown in own))]


def _of_runs(own: Sequence[tuple[RunData, Shown]]) -> Iterator[Shown]:
    """Name figures after their runs; what looks the same for several, as paired runs have the same draws, is once."""
    alike: dict[tuple[str, str], list[tuple[RunData, Shown]]] = {}
    for run_data, shown in own:
        looks = json.dumps(figure_of(shown), sort_keys=True)
        alike.setdefault((shown.name, looks), []).append((run_data, shown))
    for together in alike.values():
        runs_data, (first, *_) = zip(*together, strict=True)
        slug = "".join(c if c.isalnum() else "-" for c in runs_data[0].name)
        of, methods = _listed(runs_data), tuple(dict.fromkeys(run_data.row for run_data in runs_data))
        named = {"name": f"{first.name}-{slug}", "title": f"{first.title}: {of}", "family": first.title, "of": of}
        yield first._replace(**named, methods=methods)


def _listed(runs_data: Sequence[RunData]) -> str:
    """Name runs; the seed that all of them have in common, once."""
    seeds = {run_data.path.name for run_data in runs_data}
    grouped_names = [run_data.group for run_data in runs_data]
    if len(runs_data) > 1 and len(seeds) == 1 and len(set(grouped_names)) == len(runs_data):
        shared = f", {seeds.pop()}" if runs_data[0].name.endswith(f", {runs_data[0].path.name}") else ""
        return f"{', '.join(grouped_names[:-1])} and {grouped_names[-1]}{shared}"
    return ", ".join(run_data.name for run_data in runs_data)


def _has(key: str, shown: Sequence[Shown], gathered: GatheredRuns) -> bool:
    faulty = key == "faults" and any(run_data.faults for run_data in gathered.runs_data)
    replayed = key == "federation" and any(map(replay.replay, gathered.featured(IN_FULL)))
    return faulty or replayed or any(own.section == key for own in shown)


def _data(run_data: RunData) -> str:
    return name_data(run_data.asked("data", "name"), run_data.asked("data", "path")) or "unknown data"


def _outcome_tables(gathered: GatheredRuns) -> Iterator[str]:
    methods = [run_data.row for run_data in gathered.runs_data]
    of_runs = html(tables.runs(gathered.runs_data), "What each run came to", first="run", methods=methods)
    if gathered.rows:
        several = conditions_of(gathered.rows)
        ranked = not gathered.unranked
        yield from by_condition(gathered) if several else comparison_tables(gathered.rows, gathered.remarks, ranked)
        yield from settings(gathered.rows)
        yield fold("Every run", of_runs)
    elif len(gathered.runs_data) == 1:
        yield tiles(tables.runs(gathered.runs_data))
    else:
        yield of_runs


def _section(key: str, name: str, shown: Sequence[Shown], tabled: Sequence[RunData], more: str = "") -> Iterator[str]:
    yield f'<section aria-labelledby="{key}"><h2 id="{key}">{escape(name)}</h2><div class="figures">'
    for family, own in groupby(shown, key=lambda one: one.family):
        yield from frames(family, list(own))
    yield f"</div>{more}"
    making = {"curves": tables.rounds, "labels": tables.labels, "clients": tables.clients, "faults": tables.faults}
    about = {"clients": "Those served worst come first.", "curves": "Some of the rounds."}.get(key, "")
    for run_data in tabled if key in making else ():
        table = making[key](run_data)
        if table.rows:
            said = html(table, f"{about} {cut(table)}".strip())
            yield fold(f"As a table: {name.lower()} of {run_data.name}", said, [run_data.row])
    yield "</section>"


def _privacy(runs_data: Iterable[RunData]) -> Iterator[str]:
    yield '<section aria-labelledby="privacy"><h2 id="privacy">Privacy: who could learn what</h2>'
    told: dict[str, list[str]] = {}
    for run_data in runs_data:
        told.setdefault(json.dumps(run_data.summary.get("privacy")), []).append(run_data.name)
    for statement, names in told.items():
        yield f"<h3>{escape(', '.join(names))}</h3>" if len(told) > 1 else ""
        statements = json.loads(statement)
        if not isinstance(statements, dict):
            yield '<p class="quiet">The statement is written when a run ends.</p>'
            continue
        yield "<dl>"
        for who, sentences in statements.items():
            spent = who == "epsilon" and isinstance(sentences, float | None)
            lines = sentences if isinstance(sentences, list) else [write_epsilon(sentences) if spent else sentences]
            said = "<br>".join(escape(str(line)) for line in lines)
            yield f"<dt>{escape(str(who))}</dt><dd>{said}</dd>"
        yield "</dl>"
    yield "</section>"


def _choices(runs_data: Iterable[RunData]) -> Iterator[str]:
    """List what a recipe chose by what was measured, where one did."""
    chosen = [run_data for run_data in runs_data if run_data.choices]
    if not chosen:
        return
    yield '<section aria-labelledby="choices"><h2 id="choices">What was chosen, and why</h2>'
    for run_data in chosen:
        items = "".join(f"<li>{escape(choice)}</li>" for choice in run_data.choices)
        yield f"<h3>{escape(run_data.name)}</h3><ul>{items}</ul>"
    yield "</section>"


def _configuration(gathered: GatheredRuns, runs_data: Iterable[RunData]) -> Iterator[str]:
    yield '<section aria-labelledby="reproduce"><h2 id="reproduce">Configuration, versions, reproduction</h2>'
    differ = tables.differences(gathered.firsts[:BRIEFLY])
    if differ.rows:
        yield html(differ, f"In what these runs differ: {len(differ.rows)} keys; all others are the same.")
    for run_data in runs_data:
        again = f"fedstrata run {shlex.quote(str(run_data.path / 'experiment.toml'))}"
        from_python = "given" in (run_data.asked("data", "name"), run_data.asked("model", "name"))
        versions = {"fedstrata": run_data.start.get("version"), **run_data.start.get("wall", {}), **run_data.engine}
        about = {
            "folder": run_data.path,
            "partition hash": run_data.start.get("fingerprint"),
            "clients": run_data.start.get("clients"),
            "training samples": run_data.start.get("samples"),
            "test samples": run_data.start.get("test_samples"),
            "parameters": run_data.start.get("parameters"),
            "versions": ", ".join(f"{name} {value}" for name, value in versions.items() if value is not None),
            "to reproduce": "data or model came from Python: pass them again with this configuration"
            if from_python
            else again,
        }
        yield f"<h3>{escape(run_data.name)}</h3><dl>"
        yield from (f"<dt>{name}</dt><dd>{escape(str(v))}</dd>" for name, v in about.items() if v is not None)
        text = (run_data.path / "experiment.toml").read_text(errors="replace")
        yield f"</dl>{fold('experiment.toml', f'<pre tabindex=0>{escape(text)}</pre>')}"
    yield "</section>"
