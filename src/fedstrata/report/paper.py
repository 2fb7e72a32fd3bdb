"""Figures as files for a paper: a width in inches, letters of 8 points, text that stays text.

Drawn by matplotlib, not by a browser: it is there after `pip install`, puts TrueType fonts into PDF files, which
conferences ask for, and gives the same file every time. The reports' figures consist of lines, bands, bars and heat
maps; these are what this file knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go

from fedstrata.core.errors import RequestError
from fedstrata.report.figures import Shown

FORMATS = ("pdf", "svg", "png")
WIDTH = 3.5  # inches: a column of most papers
NARROW, WIDE = 1.0, 20.0
GREY = "#808080"
DASHES = {"solid": "-", "dash": (0, (4, 2)), "dot": (0, (1, 1.5)), "dashdot": (0, (5, 1.5, 1, 1.5))}
SYMBOLS = {"diamond": "D", "square": "s", "cross": "P", "x": "X", "triangle-up": "^", "line-ns-open": "|"}
LOOK: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # which comes with matplotlib
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # TrueType: text that can be searched, and no Type 3 fonts
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "fedstrata",
}


def check_format(kind: str) -> None:
    """Refuse a format in which no figure can be saved."""
    if kind not in FORMATS:
        raise RequestError(f"--format {kind} is not known; there are {', '.join(FORMATS)}")


def check_figures(kind: str, width: float) -> Any:
    """Refuse what no figure can be saved as, before anything is written; return matplotlib."""
    check_format(kind)
    if not NARROW <= width <= WIDE:
        raise RequestError(f"--width {width:g} must be from {NARROW:g} to {WIDE:g} inches")
    try:
        import matplotlib as mpl  # noqa: PLC0415  an extra
    except ImportError:
        raise RequestError(
            "--figures needs matplotlib: pip install 'fedstrata[figures]'; the buttons below the figures of a report "
            "save them without it"
        ) from None
    return mpl


def write_figures(folder: Path, shown: Sequence[Shown], kind: str = "pdf", width: float = WIDTH) -> list[Path]:
    """Write every figure into a folder.

    Parameters
    ----------
    folder
        Is made if it is not there.
    shown
        The figures.
    kind
        "pdf", "svg" or "png".
    width
        In inches.

    Returns
    -------
    list of Path
    """
    mpl = check_figures(kind, width)
    date = {"pdf": "CreationDate", "svg": "Date"}.get(kind)
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for own in shown:
            with mpl.rc_context(LOOK):
                written.append(folder / f"{own.name}.{kind}")
                drawn = _figure(own.figure, width)
                drawn.savefig(written[-1], dpi=300, metadata={date: None} if date else None)
    except OSError as error:
        raise RequestError(f"--figures {folder} cannot be written: {error}") from None
    return written


def _figure(figure: go.Figure, width: float) -> Any:
    """Draw a figure again."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    named = [unescape(t.name) for t in figure.data if t.name and t.showlegend is not False]
    legend = figure.layout.showlegend is not False and len(named) > 1
    columns = max(1, int(width / (0.42 + 0.062 * max(map(len, named), default=1))))
    rows = -(-len(named) // columns) if legend else 0
    height = (figure.layout.height or 340) / 96 * (0.66 if width < 5 else 0.85) + 0.14 * rows
    drawn = Figure(figsize=(width, height), layout="constrained")
    panels = _panels(drawn, figure)
    for place, panel in panels.items():
        own = [t for t in figure.data if _place(t) == place]
        if any(t.type == "heatmap" for t in own):
            _heat(drawn, panel, own[0], figure.layout)
        else:
            _lines(panel, [t for t in own if t.type == "scatter"])
            _bars(panel, [t for t in own if t.type == "bar"], figure.layout)
        _axes(panel, place, figure.layout, heat=own[0].type == "heatmap")
    first = next(iter(panels.values()))
    for shape in figure.layout.shapes:
        _shape(first, shape)
    for note in figure.layout.annotations:
        ha = {"right": "right", "left": "left"}.get(note.xanchor or "", "center")
        va = {"bottom": "bottom", "middle": "center"}.get(note.yanchor or "", "top")
        first.text(note.x, note.y, unescape(note.text), ha=ha, va=va, fontsize=7)
    if legend:
        handles = {label: h for p in panels.values() for h, label in zip(*p.get_legend_handles_labels(), strict=True)}
        drawn.legend(handles.values(), handles.keys(), loc="outside upper left", ncols=columns, handlelength=2.6)
    return drawn


def _place(trace: Any) -> tuple[str, str]:
    return trace.xaxis or "x", trace.yaxis or "y"


def _axis(layout: Any, name: str) -> Any:
    return layout[f"{name[0]}axis{name[1:]}"]


def _panels(drawn: Any, figure: go.Figure) -> dict[tuple[str, str], Any]:
    """Return axes for each pair of the figure's, in a grid as its domains say."""
    places = list(dict.fromkeys(map(_place, figure.data)))
    ends = {name: tuple(_axis(figure.layout, name).domain or (0.0, 1.0)) for place in places for name in place}
    across = sorted({ends[x] for x, _ in places})
    down = sorted({ends[y] for _, y in places}, reverse=True)
    sizes = [[high - low for low, high in side] for side in (across, down)]
    grid = drawn.add_gridspec(len(down), len(across), width_ratios=sizes[0], height_ratios=sizes[1])
    panels: dict[tuple[str, str], Any] = {}
    for x, y in places:
        shared = next((own for (_, other), own in panels.items() if other == y), None)
        panels[x, y] = drawn.add_subplot(grid[down.index(ends[y]), across.index(ends[x])], sharey=shared)
    return panels


def _lines(panel: Any, traces: Sequence[Any]) -> None:
    before = None
    for trace in traces:
        x, y = (np.asarray([unescape(v) if isinstance(v, str) else v for v in side]) for side in (trace.x, trace.y))
        label = unescape(trace.name) if trace.name and trace.showlegend is not False else None
        if trace.fill == "tonexty" and before is not None:
            colour, opacity = _colour(trace.fillcolor)
            panel.fill_between(x, before, y, color=colour, alpha=opacity, linewidth=0, label=label)
        elif (trace.line.width is None or trace.line.width > 0) and trace.mode is not None:
            _line(panel, trace, x, y, label)
        before = y
    panel.grid(linewidth=0.4, alpha=0.5)
    panel.set_axisbelow(True)


def _line(panel: Any, trace: Any, x: np.ndarray, y: np.ndarray, label: str | None) -> None:
    marked, joined = "markers" in trace.mode, "lines" in trace.mode
    style = DASHES[trace.line.dash or "solid"] if joined else "none"
    symbol = SYMBOLS.get(trace.marker.symbol or "", "o") if marked else None
    size = 4.0 if trace.marker.size is None else 0.5 * trace.marker.size
    colour = trace.line.color or trace.marker.color
    wide = 0.6 * (trace.line.width or 2)
    panel.plot(x, y, color=colour, linestyle=style, linewidth=wide, marker=symbol, markersize=size, label=label)
    for at, text in enumerate(trace.text if "text" in trace.mode else ()):
        panel.annotate(text, (x[at], y[at]), (0, 4), textcoords="offset points", ha="center", fontsize=7)


def _bars(panel: Any, traces: Sequence[Any], layout: Any) -> None:
    base: Any = 0
    for trace in traces:
        label = unescape(trace.name) if trace.name and trace.showlegend is not False else None
        if trace.orientation == "h":
            panel.barh(np.arange(len(trace.x)), trace.x, color=trace.marker.color, height=0.7)
            panel.tick_params(axis="y", labelleft=False)
            continue
        x, y = np.asarray(trace.x), np.asarray(trace.y)
        wide = 0.9 * float(np.diff(x).min()) if trace.width is None and len(x) > 1 else trace.width
        bottom = base if layout.barmode == "stack" else 0
        panel.bar(x, y, width=0.9 if wide is None else wide, bottom=bottom, color=trace.marker.color, label=label)
        base = base + y


def _heat(drawn: Any, panel: Any, trace: Any, layout: Any) -> None:
    from matplotlib.colors import LinearSegmentedColormap  # noqa: PLC0415
    from matplotlib.ticker import PercentFormatter  # noqa: PLC0415

    z, x = np.asarray(trace.z, dtype=np.float64), list(trace.x)
    words = isinstance(x[0], str)
    step = 1.0 if words or len(x) < 2 else (x[-1] - x[0]) / (len(x) - 1)
    ends = (-0.5, len(x) - 0.5) if words else (x[0] - step / 2, x[-1] + step / 2)
    colours = LinearSegmentedColormap.from_list("scale", [tuple(stop) for stop in trace.colorscale])
    limits = {"vmin": trace.zmin, "vmax": trace.zmax}
    how = {"aspect": "auto", "interpolation": "nearest", "cmap": colours, **limits}
    image = panel.imshow(z, extent=(*ends, len(z) - 0.5, -0.5), **how)
    names = [unescape(str(name)) for name in trace.y]
    shown = [unescape(str(name)) for name in layout.yaxis.ticktext or names]
    panel.set_yticks([names.index(name) for name in shown if name in names], [n for n in shown if n in names])
    if words:
        every = max(1, -(-len(x) // 20))
        panel.set_xticks(range(0, len(x), every), [unescape(name) for name in x[::every]])
    if trace.showscale is not False:
        share = PercentFormatter(1, decimals=0) if trace.colorbar.tickformat == ".0%" else None
        drawn.colorbar(image, ax=panel, fraction=0.05, pad=0.02, format=share).outline.set_visible(False)


def _axes(panel: Any, place: tuple[str, str], layout: Any, heat: bool) -> None:
    from matplotlib.ticker import MaxNLocator, PercentFormatter  # noqa: PLC0415

    for name, own in zip("xy", place, strict=True):
        axis, drawn = _axis(layout, own), getattr(panel, f"{name}axis")
        if axis.visible is False:
            panel.set_axis_off()
        drawn.set_label_text(unescape(axis.title.text or ""))
        if name == "y" and not panel.get_subplotspec().is_first_col():
            drawn.set_label_text("")
        if axis.tickformat == ".0%":
            drawn.set_major_formatter(PercentFormatter(1, decimals=0))
        if axis.nticks:
            drawn.set_major_locator(MaxNLocator(max(axis.nticks - 1, 1)))  # which counts what is between two
        if axis.range is not None:
            getattr(panel, f"set_{name}lim")(*axis.range)
        elif axis.rangemode == "tozero" and not heat:
            getattr(panel, f"set_{name}lim")(**{"left" if name == "x" else "bottom": 0})
    if not panel.get_subplotspec().is_last_row():
        panel.tick_params(axis="x", labelbottom=False)


def _shape(panel: Any, shape: Any) -> None:
    if shape.type == "rect":
        colour, opacity = _colour(shape.fillcolor)
        panel.axvspan(shape.x0, shape.x1, color=colour, alpha=opacity, linewidth=0)
    elif shape.type == "line" and shape.y0 == shape.y1:
        panel.axhline(shape.y0, color=shape.line.color or GREY, linewidth=0.5)


def _colour(text: str) -> tuple[tuple[float, ...] | str, float]:
    """Return colour and opacity of plotly's rgba(...)."""
    numbers: Iterator[float] = map(float, re.findall(r"[\d.]+", text))
    if not text.startswith("rgba"):
        return text, 1.0
    red, green, blue, opacity = numbers
    return (red / 255, green / 255, blue / 255), opacity
