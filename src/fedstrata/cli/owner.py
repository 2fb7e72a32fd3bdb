"""`fedstrata deploy approve` and `audit`: what a site's owner says to runs, and what has left the site."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import tomli_w
import typer

from fedstrata.cli.options import AsJson
from fedstrata.core.errors import RequestError
from fedstrata.core.plain_text import plain_text

Site = Annotated[
    str | None, typer.Option("--site", metavar="NAME", help="The site; needed where this machine has several.")
]


def approve(
    run: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="A run that was asked for; without one, all are listed.")
    ] = None,
    site: Site = None,
    refuse: Annotated[bool, typer.Option("--refuse", help="Say no, also to a run that goes on already.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Only show what the run does, as an experiment file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say whether this site takes part in a run. Its policy has approval = "ask"."""
    from fedstrata.remote.site.policy.approvals import Approvals
    from fedstrata.remote.site.policy.gate import RUNS

    known = Approvals(_folder(site) / RUNS)
    if run is None and (refuse or show):
        raise RequestError("say which run: fedstrata deploy approve ID; without one, all are listed")
    if run is None:
        proposals = known.all()
        if as_json:
            print(json.dumps([asdict(proposal) for proposal in proposals]))
            return
        rows = [[p.short, p.word, p.at, *_words(p.experiment)] for p in proposals]
        _print_table(("id", "word", "asked for", "method", "model", "rounds", "privacy"), rows)
        print(f"{sum(p.word == 'asked' for p in proposals)} of {len(proposals)} runs wait for your word")
        return
    chosen = known.find(run) if show else known.decide(run, "refused" if refuse else "approved")
    if as_json:
        print(json.dumps(asdict(chosen)))
    elif show:
        text = tomli_w.dumps(dict(chosen.experiment))  # a server's words: what they say must be what is seen
        print("\n".join(plain_text(line, len(line)) for line in text.split("\n")), end="")
    else:
        print(f"run {chosen.short} is {chosen.word}")


def audit(
    site: Site = None,
    run: Annotated[str | None, typer.Option("--run", metavar="RUN", help="Only what left in this run.")] = None,
    known: Annotated[
        str | None,
        typer.Option("--known", metavar="HASH", help="A newest hash of before: it must still be there."),
    ] = None,
    lines: Annotated[int, typer.Option("--lines", metavar="N", min=0, help="Show the last N replies one by one.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Show what has left this site, and check the log of it. Exit code 1 if somebody changed it."""
    from fedstrata.remote.site.policy.audit import verify
    from fedstrata.remote.site.policy.gate import AUDIT

    path = _folder(site) / AUDIT
    written, verdict = verify(path, known)
    written = [line for line in written if run is None or str(line.get("run", "")).startswith(run)]
    if as_json:
        print(json.dumps({**asdict(verdict), "file": str(path), "replies": written}))
    else:
        _print_table(("run", "request", "replies", "refused", "bytes", "first", "last"), _by_kind(written))
        for line in written[-lines:] if lines else ():
            print(json.dumps(line))
        print(f"{path}: {verdict.lines} replies left; newest: {verdict.newest}")
        print(f"NOT WHOLE: {verdict.wrong}" if verdict.wrong else "the chain is whole")
    if verdict.wrong is not None:
        raise typer.Exit(1)


def _folder(site: str | None) -> Path:
    """Find a site's folder on this machine; its name is not needed where there is one only."""
    from fedstrata.deploy import state

    there = sorted(path.name.removeprefix("site-") for path in state.folder().glob("site-*") if path.is_dir())
    if site is None and len(there) == 1:
        return state.of_site(there[0])
    if site is None or state.site_name(site) not in there:
        said = "--site is required" if site is None else f'--site = "{site}" has never run here'
        raise RequestError(f"{said}; sites of this machine: {', '.join(there) or 'none'} (in {state.folder()})")
    return state.of_site(site)


def _words(experiment: Any) -> list[str]:
    """Put what a run does into a few words."""
    privacy = experiment["privacy"]
    said = [f"{key} {privacy[key]}" for key in ("aggregate", "labels", "clustering")]
    said += [f"noise {privacy['dp']['noise']} ({privacy['dp']['where']})"] if "dp" in privacy else []
    return [
        experiment["method"]["name"],
        experiment["model"]["name"],
        str(experiment["train"]["rounds"]),
        ", ".join(said),
    ]


def _by_kind(lines: list[dict[str, Any]]) -> list[list[str]]:
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in lines:
        groups.setdefault((str(line.get("run", "-")), str(line["kind"])), []).append(line)
    return [
        [
            plain_text(run)[:12],
            plain_text(kind),
            str(len(group)),
            str(sum("refused" in line for line in group)),
            str(sum(line["bytes"] for line in group)),
            group[0]["at"],
            group[-1]["at"],
        ]
        for (run, kind), group in groups.items()
    ]


def _print_table(titles: tuple[str, ...], rows: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in titles:
        table.add_column(title, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 160, highlight=False, markup=False).print(table)
