"""The papers as pages: Markdown for the documents, a file a paper, and everything as one HTML page."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from textwrap import fill

from fedstrata.core.storage.files import write_atomically
from fedstrata.reproduce.figures import POINT, departures
from fedstrata.reproduce.ours import beside_papers
from fedstrata.reproduce.overview import Judged, in_words, oddities, of_paper
from fedstrata.reproduce.picture import TITLE, gains_picture
from fedstrata.reproduce.show import (
    OURS,
    commands,
    contrast_so_far,
    describe,
    grids_of,
    run_command,
    state_of,
    write_gain,
)
from fedstrata.reproduce.table import PAPERS, PaperTable
from fedstrata.runs.compare.tables import markdown_grid

WRITTEN = "<!-- written by `fedstrata reproduce page`; edit the files under src/fedstrata/reproduce instead -->"
PICTURE = "gains.svg"
BEGIN, END = "<!-- papers: written by fedstrata reproduce page -->", "<!-- end of papers -->"

WORDS = """Each row of a table is one method under one setting, *ours* with how many seeds it rests on. A *figure* \
*holds* where our whole 95 % interval lies within a point of the paper's, or within two of the paper's standard \
deviations; it *differs* where none of the interval does; else it is *open*. The verdict is about the primary contrast \
alone. *By Holm*: p is corrected for how many tables of the paper make a contrast. \
[reproduce.md](../reproduce.md#verdicts) has the rules."""

All = Mapping[str, Judged]  # by id


def markdown_pages(judged: All) -> dict[str, str]:
    """Return an index and a page a paper, and the picture that the index shows, by file name."""
    pages = {"README.md": _index(judged), **{f"{paper}.md": _paper(paper, judged) for paper in PAPERS}}
    written = {name: "\n".join(text).rstrip() + "\n" for name, text in pages.items()}
    return {**written, PICTURE: gains_picture(judged)}


def write_markdown(judged: All, folder: Path) -> list[Path]:
    """Write them."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = markdown_pages(judged)
    for name, text in pages.items():
        write_atomically(folder / name, text.encode())
    return [folder / name for name in pages]


def with_headlines(text: str, judged: All) -> str:
    """Return a document with the table of each paper that is reproduced first between its marks."""
    before, rest = text.split(BEGIN)
    lines = ["| paper | table | the paper's gain | ours | verdict | command |", "|---|---|---:|---:|---|---|"]
    for paper, (what, *said, command) in _headlines(judged).items():
        name = PAPERS[paper]
        lines.append(f"| {' | '.join((f'[{name}](docs/papers/{paper}.md)', what, *said, f'`{command}`'))} |")
    picture = f"![{TITLE}](docs/papers/{PICTURE})"
    return f"{before}{BEGIN}\n\n{picture}\n\n" + "\n".join(lines) + f"\n\n{END}{rest.split(END)[1]}"


def _headlines(judged: All) -> dict[str, tuple[str, ...]]:
    """Return, by paper, of the table that is reproduced first: what it is, its gains and verdict, and the command."""
    firsts = {paper: tables[0] for paper in PAPERS if (tables := of_paper(paper, judged))}
    return {
        paper: (
            _what(own.results.table),
            *_gains(own),
            f"{own.verdict.word}{_beside_printed(own)}",
            run_command(own.results.table),
        )
        for paper, own in firsts.items()
    }


def _what(table: PaperTable) -> str:
    """Say which table it is, and of which columns figures of the paper are known, if not of all."""
    known = table.contrasted
    return table.what if known == table.conditions else f"{table.what}; figures of {', '.join(known)} alone"


def _gains(own: Judged) -> tuple[str, str]:
    """Write the primary contrast as the paper has it, and as we do."""
    contrast = own.verdict.contrast
    theirs = "-" if contrast.claimed is None else write_gain(contrast.claimed)
    return theirs, contrast_so_far(own.results, contrast)


def _beside_printed(own: Judged) -> str:
    """Warn of lost settings, of a part of the data, and of baselines that do not come to their printed figures."""
    table = own.results.table
    said = f"; {len(table.lost)} settings are lost in our copy" if table.lost else ""
    said += "; on a part of the data" if own.results.partial else ""
    apart = departures(own.results)
    if apart is None or abs(apart[1]) < POINT or table.metrics[table.metric].lower:
        return said
    return f"{said}; baselines {100 * abs(apart[1]):.2f} points {'above' if apart[1] > 0 else 'below'} the paper's"


def _index(judged: All) -> Iterator[str]:
    yield f"# The five papers, reproduced\n\n{WRITTEN}\n"
    yield (
        "Each table is one file under `src/fedstrata/reproduce/papers` and one command, `fedstrata reproduce run ID`.\n"
        "Settings that a paper leaves open are marked in its file; verdicts follow the rules in\n"
        "[reproduce.md](../reproduce.md), and rest only on runs that lie under `reproduce/results`. A gain is the\n"
        "paper's own method minus its strongest printed baseline, averaged over all conditions.\n"
    )
    yield f"![{TITLE}]({PICTURE})\n"
    for paper, name in PAPERS.items():
        yield f"## {name}\n\n{fill(in_words(paper, judged), 120)}\n"
        yield "| table | what | runs | the paper's gain | ours | verdict |\n|---|---|---:|---:|---:|---|"
        for own in of_paper(paper, judged):
            table = own.results.table
            link = f"[{table.id}]({paper}.md#{_anchor(own)})"
            yield f"| {' | '.join((link, table.what, state_of(own.results), *_gains(own), own.verdict.word))} |"
        yield ""
    yield f"## {OURS} beside the papers' own methods\n"
    yield from beside_papers(judged)


def _paper(paper: str, judged: All) -> Iterator[str]:
    tables = of_paper(paper, judged)
    yield f"# {PAPERS[paper]}, reproduced\n\n{WRITTEN}\n\n{fill(in_words(paper, judged), 120)}\n"
    yield f"{fill(WORDS, 120)}\n"
    if strange := oddities(tables):
        yield "What is odd in the paper's own figures:\n"
        yield "\n".join(_item(f"{said} ({', '.join(ids)})") for said, ids in strange.items()) + "\n"
    for own in tables:
        table = own.results.table
        yield f"## {_head(own)}\n\n{fill(table.claim, 120)}\n"
        yield "\n".join(_item(said) for said in describe(own.results, own.verdict)) + "\n"
        for title, grid in grids_of(own.results):
            yield f"{title}:\n\n{markdown_grid(grid)}"
        for head, items in _remarks(own):
            yield f"{head}:\n\n" + "\n".join(map(_item, items)) + "\n"
        yield f"`{run_command(table)}`\n"


def _remarks(own: Judged) -> Iterator[tuple[str, list[str]]]:
    """Return what else is to be said of a table, under headings; of readings it is told with the table itself."""
    table = own.results.table
    if table.reading or table.base is not None:
        return
    stated = [f"`{one}`" if " = " in one else one for one in table.not_stated]
    readings = ", ".join(f'"{name}"' for name in table.readings)
    found = {
        "Not stated in the paper, our choice": stated,
        "Lost in our copy of the paper, our choice": [f"`{one}`" for one in table.lost],
        "Notes": list(table.notes),
        "Other readings of the paper, for `--reading`": [readings] if readings else [],
    }
    yield from ((head, items) for head, items in found.items() if items)


def _head(own: Judged) -> str:
    return f"{own.results.table.id}: {own.results.table.what}"


def _anchor(own: Judged) -> str:
    """Return what GitHub calls a heading."""
    kept = [c for c in _head(own).lower() if c.isalnum() or c in "-_ "]
    return "".join(kept).replace(" ", "-")


def _item(said: str) -> str:
    return fill(said, 120, initial_indent="* ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def html_page(judged: All) -> str:
    """Write one page that holds everything and fetches nothing."""
    from fedstrata.report.document import document, heading  # noqa: PLC0415  plotly takes long to import

    runs = sum(len(own.results.own_runs) for own in judged.values() if not own.results.table.same_runs)
    body = [
        *heading("The five papers, reproduced", f"{runs} runs so far", list(PAPERS.items())),
        '<main id="main" tabindex="-1">',
        f'<figure class="gains"><h3>{TITLE}</h3>{gains_picture(judged)}</figure>',
    ]
    titles = "paper", "table", "the paper's gain", "ours", "verdict", "command"
    linked = [[f'<a href="#{p}">{PAPERS[p]}</a>', *map(escape, own)] for p, own in _headlines(judged).items()]
    body += _table(
        "The table of each paper that is reproduced first", titles, linked, {"word": (0,), "text": (1, 3, 4, 5)}
    )
    for paper, name in PAPERS.items():
        tables = of_paper(paper, judged)
        body += [f'<h2 id="{paper}">{escape(name)}</h2>', f"<p>{_emphasis(in_words(paper, judged))}</p>"]
        titles = "table", "what", "runs", "the paper's gain", "ours", "verdict"
        body += _table("Its tables", titles, _listed_tables(tables), {"word": (0,), "text": (1, 2, 4, 5)}, name)
        odd = [f"{said} ({', '.join(ids)})" for said, ids in oddities(tables).items()]
        body += _listed("What is odd in the paper's own figures", odd) if odd else []
        for own in tables:
            body += _section(own)
    return document("The five papers, reproduced", [*body, "</main>"], [])


def _listed_tables(tables: Iterable[Judged]) -> Iterator[list[str]]:
    for own in tables:
        table = own.results.table
        cells = table.what, state_of(own.results), *_gains(own), own.verdict.word
        yield [f'<a href="#{_place(table)}">{escape(table.id)}</a>', *map(escape, cells)]


def _place(table: PaperTable) -> str:
    """Return what the section of a table is called in the HTML page: no name holds blanks there."""
    return escape(table.id.replace(" ", "-"))


def _section(own: Judged) -> Iterator[str]:
    table = own.results.table
    yield f'<h3 id="{_place(table)}">{escape(_head(own))}</h3><p>{escape(table.claim)}</p>'
    yield "".join(f"<p>{escape(said)}</p>" for said in describe(own.results, own.verdict))
    for title, grid in grids_of(own.results):
        rows, named = [], ""
        for at, line in enumerate(grid.lines):
            named = line[0] or named  # every line has its setting, as readers may sort them
            rows.append([_strong(escape(cell), (at, c) in grid.best) for c, cell in enumerate([named, *line[1:]])])
        yield from _table(title, grid.titles, rows, {"word": range(grid.words)}, table.id)
    remarks = "".join(line for head, items in _remarks(own) for line in _listed(head, items))
    if remarks:
        yield f"<details><summary>Settings that we chose, notes, readings</summary>{remarks}</details>"
    yield f"<p><code>{'<br>'.join(map(escape, commands(own.results)))}</code></p>"


def _table(
    title: str, titles: Sequence[str], rows: Iterable[Sequence[str]], kinds: Mapping[str, Collection[int]], of: str = ""
) -> Iterator[str]:
    """Write a table whose cells are HTML already; `kinds`: columns of words, and of text, whose lines are broken."""
    named = {at: f' class="{kind}"' for kind, own in kinds.items() for at in own}
    marks = [named.get(at, "") for at in range(len(titles))]
    head = "".join(f'<th scope="col"{kind}>{escape(column)}</th>' for column, kind in zip(titles, marks, strict=True))
    label = escape(f"{of}, {title}" if of else title)
    yield f'<div class="scroll whole" tabindex="0" role="region" aria-label="{label}"><table>'
    yield f"<caption>{escape(title)}</caption><thead><tr>{head}</tr></thead><tbody>"
    for row in rows:
        yield f"<tr>{''.join(f'<td{kind}>{cell}</td>' for cell, kind in zip(row, marks, strict=True))}</tr>"
    yield "</tbody></table></div>"


def _listed(head: str, items: list[str]) -> Iterator[str]:
    yield f"<p>{escape(head).replace('`', '')}:</p><ul>"
    yield from (f"<li>{escape(item.replace('`', ''))}</li>" for item in items)
    yield "</ul>"


def _strong(cell: str, strong: bool) -> str:
    return f"<strong>{cell}</strong>" if strong else cell


def _emphasis(text: str) -> str:
    """Turn the stars of a paragraph, of which there are pairs, into emphasis."""
    parts = escape(text).split("*")
    return "".join(f"<em>{part}</em>" if at % 2 else part for at, part in enumerate(parts))
