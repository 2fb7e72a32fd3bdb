"""What went wrong, by round."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import plotly.graph_objects as go

from fedstrata.core.events import FAULTS
from fedstrata.report.figures.colours import LINES
from fedstrata.report.figures.style import bins, figure, plain
from fedstrata.report.run_data import RunData

BARS = 100


def faults(run_data: RunData) -> go.Figure | None:
    """Draw lost reports, by reason, and other faults, by round."""
    counted: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for fault in run_data.faults:
        if fault.round is not None:
            name = FAULTS[fault.kind] + (f": {fault.why[:40]}" if fault.kind == "dropped" else "")
            counted[name].append((fault.round, max(len(fault.clients), 1)))
    if not counted or not len(run_data):
        return None
    last = max(int(run_data.rounds[-1]), *(round for own in counted.values() for round, _ in own))
    starts = bins(last, BARS)
    drawn = figure(title=f"{run_data.name}: faults", barmode="stack", height=300, bargap=0.1)
    for at, (name, own) in enumerate(sorted(counted.items(), key=lambda item: -len(item[1]))):
        rounds, weights = np.array(own).T
        heights = np.bincount(np.searchsorted(starts, rounds - 1, side="right") - 1, weights, len(starts))
        colour = LINES[at % len(LINES)]
        hover = f"{plain(name)}: %{{y:.0f}} from round %{{x}}<extra></extra>"
        drawn.add_bar(x=starts + 1, y=heights, name=plain(name), marker={"color": colour}, hovertemplate=hover)
    drawn.update_xaxes(title_text="round")
    drawn.update_yaxes(title_text="count" if len(starts) == last else f"count in {-(-last // len(starts))} rounds")
    drawn.update_layout(showlegend=True)
    return drawn
