"""The papers as pages: Markdown for the documents, a file a paper, and everything as one HTML page."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from html import escape
from pathlib import Path

from fedstrata.core.files import write_atomically
from fedstrata.reproduce.results import Results, methods_beside
from fedstrata.reproduce.show import describe, grid_of, state_of
from fedstrata.reproduce.table import PAPERS, all_tables
from fedstrata.reproduce.verdict import Verdict, judge
from fedstrata.runs.compare.tables import markdown_grid

WRITTEN = "<!-- written by `fedstrata reproduce page`; edit the files under src/fedstrata/reproduce instead -->"

Judged = Mapping[str, tuple[Results, Verdict]]  # by id


def judge_all(folder: Path, papers: Collection[str] = tuple(PAPERS)) -> dict[str, tuple[Results, Verdict]]:
    """Read all results and judge them, a paper at a time; other readings only where something of them was played."""
    results: dict[str, Results] = {}
    for name, table in all_tables().items():
        if table.paper not in papers:
            continue
        results[name] = Results(table, folder)
        others = [Results(table.read_as(reading), folder) for reading in table.readings]
        others += [Results(table.beside(method), folder) for method in methods_beside(table, folder)]
        results |= {own.table.id: own for own in others if own.runs}
    verdicts: dict[str, Verdict] = {}
    for paper in papers:
        verdicts |= judge({name: own for name, own in results.items() if own.table.paper == paper})
    return {name: (own, verdicts[name]) for name, own in results.items()}


def write_markdown(judged: Judged, folder: Path) -> list[Path]:
    """Write an index and a page a paper."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = {"README.md": "\n".join(_index(judged))}
    pages |= {f"{paper}.md": "\n".join(_paper(paper, judged)) for paper in PAPERS}
    for name, text in pages.items():
        write_atomically(folder / name, f"{text.rstrip()}\n".encode())
    return [folder / name for name in pages]


def html_page(judged: Judged) -> str:
    """Write one page that holds everything and fetches nothing."""
    from fedstrata.report.document import document, heading  # noqa: PLC0415  plotly takes long to import

    played = sum(len(results.runs) for results, _ in judged.values())
    body = [
        *heading("The five papers, played again", f"{played} runs so far", list(PAPERS.items())),
        '<main id="main" tabindex="-1">',
    ]
    for paper, name in PAPERS.items():
        body.append(f'<h2 id="{paper}">{escape(name)}</h2>')
        for results, verdict in _own(paper, judged):
            body += _section(results, verdict)
    return document("The five papers, played again", [*body, "</main>"], [])


def _section(results: Results, verdict: Verdict) -> Iterator[str]:
    table = results.table
    yield f'<h3 id="{escape(table.id)}">{escape(table.id)}: {escape(table.what)}</h3><p>{escape(table.claim)}</p>'
    for name in table.metrics:
        grid = grid_of(results, name)
        head = "".join(f'<th scope="col">{escape(title)}</th>' for title in grid.titles)
        lines = [
            "".join(
                f"<td>{'<strong>' if (at, c) in grid.best else ''}{escape(cell)}"
                f"{'</strong>' if (at, c) in grid.best else ''}</td>"
                for c, cell in enumerate(line)
            )
            for at, line in enumerate(grid.lines)
        ]
        rows = "".join(f"<tr>{line}</tr>" for line in lines)
        caption = f"{name}: paper / ours [95 % interval]"
        yield f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.id)}"><table>'
        yield f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    yield "".join(f"<p>{escape(said)}</p>" for said in describe(results, verdict))
    yield "".join(f'<p class="quiet">{escape(note)}</p>' for note in table.notes)


def _index(judged: Judged) -> Iterator[str]:
    yield f"# The five papers, played again\n\n{WRITTEN}\n"
    yield (
        "Each table is one file under `src/fedstrata/reproduce/papers` and one command, `fedstrata reproduce run ID`.\n"
        "Settings that a paper leaves open are marked in its file; verdicts follow the rules in\n"
        "`src/fedstrata/reproduce/verdict.py`, and rest only on runs that lie under `reproduce/results`.\n"
    )
    yield "| table | what | runs | primary contrast | verdict |\n|---|---|---:|---|---|"
    for name, (results, verdict) in judged.items():
        table, contrast = results.table, verdict.contrast
        gain = "-"
        if contrast.mean is not None and not table.metrics[table.metric].lower:
            gain = f"{100 * contrast.mean:+.2f} points"
            gain += "" if contrast.claimed is None else f" (paper {100 * contrast.claimed:+.2f})"
        cells = f"[{name}]({table.paper}.md)", f"{PAPERS[table.paper]}, {table.what}", state_of(results)
        yield f"| {' | '.join((*cells, gain, verdict.word))} |"


def _paper(paper: str, judged: Judged) -> Iterator[str]:
    yield f"# {PAPERS[paper]}, played again\n\n{WRITTEN}\n"
    for results, verdict in _own(paper, judged):
        table = results.table
        yield f"## {table.id}: {table.what}\n\n{table.claim}\n"
        for name in table.metrics:
            yield f"{name}, paper / ours [95 % interval]; bold where ours is the paper's:\n"
            yield markdown_grid(grid_of(results, name))
        yield "\n".join(f"* {said}" for said in [*describe(results, verdict), *table.notes])
        yield f"\n`fedstrata reproduce run {table.id}`\n"


def _own(paper: str, judged: Judged) -> Iterator[tuple[Results, Verdict]]:
    return (own for own in judged.values() if own[0].table.paper == paper)
