"""The report: one HTML file that holds everything it shows, and fetches nothing."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from plotly.offline import get_plotlyjs

from fedstrata import __version__
from fedstrata.report import figures, tables
from fedstrata.report.figures import SECTIONS, Shown
from fedstrata.report.figures.curves import AXES
from fedstrata.report.figures.style import template
from fedstrata.report.gather import Gathered
from fedstrata.report.outcome import outcome, share
from fedstrata.report.tables import Table
from fedstrata.report.trail import Trail

IN_FULL = 4  # most runs all of whose own figures are drawn: the file stays under 6 MB
BRIEFLY = 12  # most runs of which at least the method's own figures and the faults, which are small, are
ROWS = 40  # most rows of a table in the page; CSV files hold all
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
ORDER = [name for _, name, *_ in figures.OWN]
PERCENT = {"accuracy", "balanced_accuracy", "worst10", "share", "last_recall", "best_recall", "last_accuracy"}
PERCENT |= {"accuracy_over_first", "brings"}


def page(gathered: Gathered) -> str:
    """Write the page."""
    full, shown, title = gathered.firsts[:IN_FULL], drawn(gathered), titled(gathered)
    held = {"figures": {own.name: figure_of(own) for own in shown}, **look()}
    sections = [(key, name) for key, name in SECTIONS.items() if _has(key, shown, gathered)]
    rest = [("privacy", "Privacy"), ("reproduce", "Configuration")]
    body = [
        *_head(title, gathered, [("outcome", "Outcome"), *sections, *rest]),
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
    return _document(title, "\n".join(body), held)


def titled(gathered: Gathered) -> str:
    """Say in a few words what is shown."""
    first, *others = gathered.trails
    return f"{first.name} on {_data(first)}" if not others else f"{len(gathered.trails)} runs"


def drawn(gathered: Gathered) -> list[Shown]:
    """Give all figures of the page: those of all runs together, then the same figure of every run, side by side."""
    several = len(gathered.trails) > 1
    own = []
    for at, trail in enumerate(gathered.firsts[:BRIEFLY]):
        small = [shown for shown in figures.of_one(trail) if at < IN_FULL or shown.section in ("method", "faults")]
        own += [(trail, shown) for shown in small]
    own.sort(key=lambda pair: ORDER.index(pair[1].name))
    return [*figures.overlays(gathered.trails), *(_of(trail, shown, several) for trail, shown in own)]


def look() -> dict[str, Any]:
    """Give what a page needs to draw any figure."""
    templates = {name: template(name == "dark").to_plotly_json() for name in ("light", "dark")}
    return {"templates": templates, "axes": AXES}


def _document(title: str, body: str, held: dict[str, Any]) -> str:
    here = files("fedstrata.report")
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            f"<title>{escape(title)} - fedstrata</title>",
            f"<style>\n{(here / 'page.css').read_text()}</style></head><body>",
            body,
            f'<script type="application/json" id="held">{embedded(held)}</script>',
            f"<script>{get_plotlyjs()}</script>",
            f"<script>\n{(here / 'page.js').read_text()}</script>",
            "</body></html>\n",
        )
    )


def embedded(value: Any) -> str:
    """Give JSON that cannot end the script element it stands in."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def figure_of(shown: Shown) -> dict[str, Any]:
    """Give a figure as the page needs it: the title is a heading there, and colours are the reader's."""
    drawn = json.loads(shown.figure.to_json(validate=False, engine="json"))  # arrays are packed, NaN becomes null
    layout = {key: value for key, value in drawn["layout"].items() if key not in ("template", "title", "margin")}
    return {"data": drawn["data"], "layout": layout}


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
    return str(trail.asked("data", "name") or "unknown data")


def _head(title: str, gathered: Gathered, sections: Sequence[tuple[str, str]]) -> Iterator[str]:
    links = "".join(f'<a href="#{key}">{escape(name)}</a>' for key, name in sections)
    axes = "".join(f'<option value="{key}">{escape(name)}</option>' for key, name in AXES.items())
    yield '<a class="skip" href="#main">Skip to the content</a>'
    yield f'<header><h1>{escape(title)}</h1><p class="outcome">{escape(outcome(gathered))}</p>'
    yield f'<div class="bar"><nav aria-label="Sections">{links}</nav>'
    yield f'<label>Curves against <select id="against">{axes}</select></label>'
    yield '<button type="button" id="theme">Dark colours</button></div></header>'


def _outcome_tables(gathered: Gathered) -> Iterator[str]:
    if gathered.rows:
        yield _compared(gathered.rows)
    if not gathered.rows:
        yield _table(tables.runs(gathered.trails), "What each run came to", first="run")
    else:
        yield _folded("Every run", _table(tables.runs(gathered.trails), "What each run came to", first="run"))


def _compared(rows: Sequence[dict[str, Any]]) -> str:
    """Give the table of a comparison: means, and intervals of what is compared rather than counted."""
    figures = list(dict.fromkeys(k for row in rows for k, v in row.items() if isinstance(v, dict) and "mean" in v))
    tested = any("p" in (row.get("accuracy_over_first") or {}) for row in rows)
    cells = []
    for row in rows:
        own = [row["method"], row.get("seeds"), *(_ranged(figure, row.get(figure) or {}) for figure in figures)]
        cells.append([*own, (row.get("accuracy_over_first") or {}).get("p")] if tested else own)
    columns = ["method", "seeds", *figures, *(["p against the first"] if tested else [])]
    return _table(Table("comparison", columns, cells), "Means over seeds; in brackets, 95 % intervals")


def _ranged(name: str, figure: dict[str, Any]) -> str:
    mean, ends = figure.get("mean"), figure.get("interval")
    said = _said(name, mean)
    if not ends or name not in PERCENT:
        return said
    return f"{said.removesuffix(' %')} [{100 * ends[0]:.1f}, {100 * ends[1]:.1f}] %"


def _section(key: str, name: str, shown: Sequence[Shown], tabled: Sequence[Trail]) -> Iterator[str]:
    yield f'<section aria-labelledby="{key}"><h2 id="{key}">{escape(name)}</h2><div class="figures">'
    for own in shown:
        yield f'<figure id="figure-{escape(own.name)}"><h3>{escape(own.title)}</h3>'
        yield f"<figcaption>{escape(own.said)}</figcaption>"
        label = escape(f"{own.title}. {own.said}", quote=True)
        height = int(own.figure.layout.height or 340)
        plot = f'<div class="plot" role="img" aria-label="{label}" style="min-height:{height}px"'
        yield f'{plot} data-figure="{escape(own.name)}"></div><div class="save">'
        for kind in ("png", "svg"):
            said = f'aria-label="Save {escape(own.title, quote=True)} as {kind.upper()}"'
            yield f'<button type="button" data-save="{kind}" {said}>{kind.upper()}</button>'
        yield "</div></figure>"
    yield "</div>"
    making = {"curves": tables.rounds, "labels": tables.labels, "clients": tables.clients, "faults": tables.faults}
    for trail in tabled if key in making else ():
        table = making[key](trail)
        if table.rows:
            yield _folded(f"As a table: {name.lower()} of {trail.name}", _table(table, _caption(key, table)))
    yield "</section>"


def _caption(key: str, table: Table) -> str:
    said = {"clients": "Those served worst come first.", "curves": "Some of the rounds."}.get(key, "")
    cut = f"{ROWS} of {len(table.rows)} rows; --csv writes all." if len(table.rows) > ROWS else ""
    return f"{said} {cut}".strip()


def _table(table: Table, caption: str = "", first: str = "") -> str:
    """Write a table; of a long one some rows, spread over the rounds or else the first."""
    skip = 1 if table.columns[0] == "run" and first != "run" else 0  # the heading names the run
    rows = table.rows
    if len(rows) > ROWS:
        step = len(rows) / ROWS if table.name == "rounds" else 1
        rows = [rows[min(int((i + 1) * step) - 1, len(rows) - 1)] for i in range(ROWS)]
    kinds = [_kind([row[i] for row in rows]) for i in range(len(table.columns))]
    head = "".join(
        f'<th scope="col"{kind}>{escape(name.replace("_", " "))}</th>'
        for name, kind in list(zip(table.columns, kinds, strict=True))[skip:]
    )
    lines = []
    for row in rows:
        cells = list(zip(table.columns, row, kinds, strict=True))[skip:]
        lines.append("".join(f"<td{kind}>{escape(_said(name, value))}</td>" for name, value, kind in cells))
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    note = f"<caption>{escape(caption)}</caption>" if caption else ""
    region = f'class="scroll" tabindex="0" role="region" aria-label="{escape(caption or table.name, quote=True)}"'
    return f"<div {region}><table>{note}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _kind(values: Sequence[Any]) -> str:
    """Say how a column is set: sentences may break, words and numbers may not."""
    longest = max((len(value) for value in values if isinstance(value, str)), default=0)
    return ' class="text"' if longest > 40 else ' class="word"' if longest else ""


def _folded(title: str, content: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def _said(name: str, value: Any) -> str:
    """Write a value for people."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, str):
        return value
    if name in PERCENT:
        return share(value)
    if name.startswith("bytes"):
        return f"{value / 1e6:,.2f} MB"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


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
        yield f"</dl>{_folded('experiment.toml', f'<pre tabindex=0>{escape(text)}</pre>')}"
    yield "</section>"
