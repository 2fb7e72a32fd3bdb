"""An inspection as one HTML file, in the frame of reports."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

from fedstrata import __version__
from fedstrata.inspection.advice import Advice
from fedstrata.inspection.figures import labels, skew
from fedstrata.report.document import document, frame, heading
from fedstrata.report.figures import Shown
from fedstrata.report.html_tables import html
from fedstrata.report.tables import Table

if TYPE_CHECKING:
    from fedstrata.inspection.inspection import Inspection

SECTIONS = {"labels": "Labels", "measures": "Measures", "advice": "Advice"}


def page(inspection: Inspection) -> str:
    """Write the page."""
    m, drawn = inspection.measures, labels(inspection.table)
    said = f"{m.clients} clients, {m.samples} samples, {m.labels} labels; {inspection.k} clients train in a round"
    how = f"{drawn.layout.title.text.capitalize()}."
    apart = "How many clients have so many samples, so many labels in effect, and are so far from the mix of all."
    shown = [
        Shown("labels", "who-holds-what", "Who holds which labels", how, drawn),
        Shown("labels", "skew", "How clients differ", apart, skew(inspection.table)),
    ]
    return document(f"{inspection.name}: inspection", _body(inspection, said, shown), shown)


def _body(inspection: Inspection, said: str, shown: list[Shown]) -> Iterator[str]:
    yield from heading(inspection.name, said, SECTIONS.items())
    yield '<main id="main" tabindex="-1">'
    yield from (f'<p class="quiet">{escape(note)}</p>' for note in inspection.notes)
    yield '<h2 id="labels">Labels</h2>'
    for own in shown:
        yield from frame(own)
    yield '<h2 id="measures">Measures</h2>'
    rows = [[reading.name, reading.value, reading.meaning] for reading in inspection.readings]
    yield html(Table("measures", ["measure", "value", "what it means"], rows))
    yield '<h2 id="advice">Advice</h2>'
    for advice in inspection.advice:
        yield from _card(advice)
    if not inspection.advice:
        yield "<p>None of the rules applies: begin with fedavg.</p>"
    for name, why in inspection.refused.items():
        yield f"<p>{escape(name)} would fit the data, but not this experiment: {escape(why)}</p>"
    updates, reveals = inspection.baseline.cost.client_updates, escape(" ".join(inspection.baseline.reveals))
    yield f'<p class="quiet">Costs are of a round, rehearsed; fedavg takes {updates:g} client updates.'
    yield f"What fedavg reveals to the server: {reveals}</p></main>"
    yield f"<footer>Written by fedstrata {__version__}. This file needs no network.</footer>"


def _card(advice: Advice) -> Iterator[str]:
    size, updates, before = (advice.cost[key] for key in ("bytes", "client_updates", "setup_bytes"))
    setup = f", and {before:.0f} bytes before the first round" if before else ""
    yield f"<article><h3>{escape(advice.recipe)}</h3>"
    yield f"<p>Fits because {escape(advice.because)}.</p><p>{escape(advice.mind)}</p>"
    yield f"<p><b>Costs</b> {size:.3g} times the bytes and {updates:.3g} times the client updates of fedavg{setup}.</p>"
    yield f"<p><b>Reveals to the server</b> {escape(' '.join(advice.reveals) or 'no more than fedavg.')}</p>"
    for name, why in advice.not_here.items():
        yield f'<p class="quiet">Instead of {escape(name)}, which does not go with this experiment: {escape(why)}</p>'
    yield f'<pre tabindex="0">{escape(advice.command)}</pre></article>'
