"""An inspection as one HTML file that fetches nothing: opens offline, in light and dark, and prints."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from plotly.offline import get_plotlyjs

from fedstrata import __version__
from fedstrata.inspecting.advice import Advice
from fedstrata.inspecting.figures import labels, skew

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from fedstrata.inspecting.inspection import Inspection

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --paper: #ffffff; --card: #f5f7f9; --line: #d4dae0; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ec; --soft: #a0a9b2; --paper: #14181c; --card: #1d2329; --line: #37404a; }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
       max-width: 70rem; padding: 1.5rem 1rem; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
h3 { margin: 0; font-size: 1.05rem; }
p { margin: .35rem 0; } .soft { color: var(--soft); }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .35rem .8rem .35rem 0; border-top: 1px solid var(--line); }
article { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .8rem 1rem;
          margin: .8rem 0; break-inside: avoid; }
code { display: block; font: .9rem ui-monospace, monospace; overflow-x: auto; padding: .4rem 0; }
@media print { body { max-width: none; } code { white-space: pre-wrap; } }
"""
PAINT = """
const dark = matchMedia('(prefers-color-scheme: dark)');
const paint = () => {
  const ink = getComputedStyle(document.documentElement).getPropertyValue('--ink').trim();
  document.querySelectorAll('.js-plotly-plot').forEach(plot => Plotly.relayout(plot, {'font.color': ink}));
};
dark.addEventListener('change', paint); paint();
"""


def page(inspection: Inspection) -> str:
    """Write the page."""
    m = inspection.measures
    said = f"{m.clients} clients, {m.samples} samples, {m.labels} labels; {inspection.k} clients train in a round"
    rows = "".join(
        f"<tr><td>{escape(r.name)}</td><td>{escape(r.value)}</td><td class='soft'>{escape(r.meaning)}</td></tr>"
        for r in inspection.readings
    )
    notes = "".join(f"<p class='soft'>{escape(note)}</p>" for note in inspection.notes)
    plots = _plot("labels", labels(inspection.table)) + _plot("skew", skew(inspection.table))
    advice = "".join(map(_card, inspection.advice)) or "<p>None of the rules applies: begin with fedavg.</p>"
    refused = "".join(
        f"<p>{escape(name)} would fit the data, but not this experiment: {escape(why)}</p>"
        for name, why in inspection.refused.items()
    )
    baseline = inspection.baseline
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(inspection.name)}: inspection</title>
<link rel="icon" href="data:,">
<style>{STYLE}</style>
<script>{get_plotlyjs()}</script>
</head>
<body>
<h1>{escape(inspection.name)}</h1>
<p>{said}</p>
{notes}
{plots}
<h2>Measures</h2>
<div class="wide"><table><tr><th>measure</th><th>value</th><th>what it means</th></tr>{rows}</table></div>
<h2>Advice</h2>
{advice}
{refused}
<p class="soft">Costs are of a round, rehearsed; fedavg takes {baseline.cost.client_updates:g} client updates.
What fedavg reveals to the server: {escape(" ".join(baseline.reveals))}</p>
<p class="soft">fedstrata {__version__}</p>
<script>{PAINT}</script>
</body>
</html>
"""


def _plot(name: str, figure: Figure) -> str:
    """Give a figure under a heading of the page: in a narrow window, its own title would meet its buttons."""
    title = figure.layout.title.text
    figure.update_layout(title=None, margin_t=30)
    config = {"displaylogo": False, "responsive": True}
    plot = figure.to_html(full_html=False, include_plotlyjs=False, div_id=name, config=config)
    return f"<h2>{escape(title)}</h2><div class='wide'>{plot}</div>"


def _card(advice: Advice) -> str:
    cost = advice.cost
    setup = f", and {cost['setup_bytes']:.0f} bytes before the first round" if cost["setup_bytes"] else ""
    instead = "".join(
        f"<p class='soft'>Instead of {escape(name)}, which does not go with this experiment: {escape(why)}</p>"
        for name, why in advice.not_here.items()
    )
    return f"""<article><h3>{escape(advice.recipe)}</h3>
<p>Fits because {escape(advice.because)}.</p>
<p>{escape(advice.mind)}</p>
<p><b>Costs</b> {cost["bytes"]:.3g} times the bytes and {cost["client_updates"]:.3g} times the client updates
of fedavg{setup}.</p>
<p><b>Reveals to the server</b> {escape(" ".join(advice.reveals) or "no more than fedavg.")}</p>
{instead}<code>{escape(advice.command)}</code></article>
"""
