"""The report of runs: outcome, figures by section with their numbers, privacy, configuration."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from fedstrata import __version__
from fedstrata.report import figures, tables
from fedstrata.report.document import document, framed, heading
from fedstrata.report.figures import SECTIONS, Shown
from fedstrata.report.figures.curves import AXES, grouped
from fedstrata.report.gather import Gathered
from fedstrata.report.html_tables import compared, cut, folded, html
from fedstrata.report.outcome import outcome
from fedstrata.report.run_data import Trail

IN_FULL = 4  # most runs all of whose own figures are drawn: the file stays under 6 MB
BRIEFLY = 12  # most runs of which at least the method's own figures and the faults, which are small, are
ORDER = [name for _, name, *_ in figures.OWN]


def page(gathered: Gathered) -> str:
    """Write the page."""
    full, shown, title = gathered.firsts[:IN_FULL], drawn(gathered), titled(gathered)
    sections = [(key, name) for key, name in SECTIONS.items() if _has(key, shown, gathered)]
    rest = [("privacy", "Privacy"), ("reproduce", "Configuration")]
    axes = "".join(f'<option value="{key}">{escape(name)}</option>' for key, name in AXES.items())
    against = f'<label>Curves against <select id="against">{axes}</select></label>'
    body = [
        *heading(title, outcome(gathered), [("outcome", "Outcome"), *sections, *rest], against),
        '<main id="main" tabindex="-1">',
        *(f'<p class="warning" role="alert">{escape(said)}</p>' for said in gathered.warnings),
        '<h2 id="outcome">Outcome</h2>',
        *_outcome_tables(gathered),
    ]
    if len(gathered.firsts) < len(gathered.trails) or len(full) < len(gathered.firsts):
        names = "; ".join(trail.name for trail in full)
        body.append(f'<p class="quiet">Curves are of all runs; labels and clients, one by one, of {escape(names)}.</p>')
    for key, name in sections:
        tabled = [trail for trail in gathered.trails if trail.faults][:BRIEFLY] if key == "faults" else full
        body += _section(key, name, [own for own in shown if own.section == key], tabled)
    body += [*_privacy(full), *_configuration(full), "</main>"]
    body += [f"<footer>Written by fedstrata {escape(__version__)}. This file needs no network.</footer>"]
    return document(title, body, shown)


def titled(gathered: Gathered) -> str:
    """Say in a few words what is shown."""
    trails, groups = gathered.trails, grouped(gathered.trails)
    data, seeds = {_data(trail) for trail in trails}, {len(own) for own in groups.values()}
    on = f" on {data.pop()}" if len(data) == 1 else ""
    if len(trails) == 1:
        return f"{trails[0].name}{on}"
    if len(seeds) > 1 or (seeds == {1} and not gathered.rows):
        return f"{len(trails)} runs{on}"
    methods = f"{len(groups)} methods" if len(groups) > 1 else next(iter(groups))
    return f"{methods}{on}" + (f", {seeds.pop()} seeds" if seeds != {1} else "")


def drawn(gathered: Gathered) -> list[Shown]:
    """Give all figures of the page: those of all runs together, then the same figure of every run, side by side."""
    several = len(gathered.trails) > 1
    own = []
    for at, trail in enumerate(gathered.firsts[:BRIEFLY]):
        small = [shown for shown in figures.of_one(trail) if at < IN_FULL or shown.section in ("method", "faults")]
        own += [(trail, shown) for shown in small]
    own.sort(key=lambda pair: ORDER.index(pair[1].name))
    return [*figures.overlays(gathered.trails), *(_of(trail, shown, several) for trail, shown in own)]


def _of(trail: Trail, shown: Shown, several: bool) -> Shown:
    """Name a run's own figure after the run, where there are several."""
    if not several:
        return shown
    slug = "".join(c if c.isalnum() else "-" for c in trail.name)
    return shown._replace(name=f"{shown.name}-{slug}", title=f"{shown.title}: {trail.name}")


def _has(key: str, shown: Sequence[Shown], gathered: Gathered) -> bool:
    faulty = key == "faults" and any(trail.faults for trail in gathered.trails)
    return faulty or any(own.section == key for own in shown)


def _data(trail: Trail) -> str:
    name = str(trail.asked("data", "name") or "unknown data")
    return "data from Python" if name == "given" else name


def _outcome_tables(gathered: Gathered) -> Iterator[str]:
    of_runs = html(tables.runs(gathered.trails), "What each run came to", first="run")
    if gathered.rows:
        yield from compared(gathered.rows, gathered.remarks)
        yield folded("Every run", of_runs)
    else:
        yield of_runs


def _section(key: str, name: str, shown: Sequence[Shown], tabled: Sequence[Trail]) -> Iterator[str]:
    yield f'<section aria-labelledby="{key}"><h2 id="{key}">{escape(name)}</h2><div class="figures">'
    for own in shown:
        yield from framed(own)
    yield "</div>"
    making = {"curves": tables.rounds, "labels": tables.labels, "clients": tables.clients, "faults": tables.faults}
    about = {"clients": "Those served worst come first.", "curves": "Some of the rounds."}.get(key, "")
    for trail in tabled if key in making else ():
        table = making[key](trail)
        if table.rows:
            yield folded(f"As a table: {name.lower()} of {trail.name}", html(table, f"{about} {cut(table)}".strip()))
    yield "</section>"


def _privacy(trails: Iterable[Trail]) -> Iterator[str]:
    yield '<section aria-labelledby="privacy"><h2 id="privacy">Privacy: who could learn what</h2>'
    told: dict[str, list[str]] = {}
    for trail in trails:
        told.setdefault(json.dumps(trail.summary.get("privacy")), []).append(trail.name)
    for statement, names in told.items():
        yield f"<h3>{escape(', '.join(names))}</h3>" if len(told) > 1 else ""
        statements = json.loads(statement)
        if not isinstance(statements, dict):
            yield '<p class="quiet">The statement is written when a run ends.</p>'
            continue
        yield "<dl>"
        for who, sentences in statements.items():
            lines = sentences if isinstance(sentences, list) else [sentences]
            said = "<br>".join(escape(str(line)) for line in lines)
            yield f"<dt>{escape(str(who))}</dt><dd>{said}</dd>"
        yield "</dl>"
    yield "</section>"


def _configuration(trails: Iterable[Trail]) -> Iterator[str]:
    yield '<section aria-labelledby="reproduce"><h2 id="reproduce">Configuration, versions, reproduction</h2>'
    for trail in trails:
        again = f"fedstrata run {shlex.quote(str(trail.path / 'experiment.toml'))}"
        from_python = "given" in (trail.asked("data", "name"), trail.asked("model", "name"))
        versions = {"fedstrata": trail.start.get("version"), **trail.start.get("wall", {}), **trail.engine}
        about = {
            "folder": trail.path,
            "partition hash": trail.start.get("fingerprint"),
            "clients": trail.start.get("clients"),
            "training samples": trail.start.get("samples"),
            "test samples": trail.start.get("test_samples"),
            "parameters": trail.start.get("parameters"),
            "versions": ", ".join(f"{name} {value}" for name, value in versions.items() if value is not None),
            "to reproduce": "data or model came from Python: pass them again with this configuration"
            if from_python
            else again,
        }
        yield f"<h3>{escape(trail.name)}</h3><dl>"
        yield from (f"<dt>{name}</dt><dd>{escape(str(v))}</dd>" for name, v in about.items() if v is not None)
        text = (trail.path / "experiment.toml").read_text(errors="replace")
        yield f"</dl>{folded('experiment.toml', f'<pre tabindex=0>{escape(text)}</pre>')}"
    yield "</section>"
