"""What `mkdocs build` does beyond Markdown: links into the code, and pages written from the registry.

Pages link to files of the repository as they do on its host, with `../src/...`; in the site these become links to the
host. The lists of parts, of commands and of public names are made from the code itself when the site is built.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

import typer
from mkdocs.structure.files import File, Files
from typer.testing import CliRunner

from fedstrata import api
from fedstrata.cli import app
from fedstrata.core import registry

HOST = "https://github.com/fedstrata/fedstrata/blob/main/"
FIRST = ("train", "resume", "compare", "inspect", "replay", "Run", "Comparison", "Federation")  # what most people call
OUTSIDE = re.compile(r"\]\(((?:\.\./)+)([^)\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are written from the code."""
    for name, text in (("parts", parts()), ("commands", commands()), ("python", python())):
        files.append(File.generated(config, f"reference/{name}.md", content="\n".join(text)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links that leave the documents lead to the host of the code."""
    depth = len(PurePosixPath(page.file.src_uri).parts) - 1

    def outward(link: re.Match[str]) -> str:
        steps = link[1].count("../")
        return f"]({HOST}{link[2]})" if steps > depth else link[0]

    return OUTSIDE.sub(outward, markdown)


def parts() -> Iterator[str]:
    """List every part by its stage, with its options."""
    yield "# Parts\n\nEvery name that an experiment can use, with its options and their defaults."
    yield "`fedstrata list` has the same, with parts of your own.\n"
    for stage in registry.STAGES:
        yield f"## {stage}\n"
        for name in registry.names(stage):
            about = registry.describe(stage, name)
            paper = f" ({about['paper']})" if about.get("paper") else ""
            yield f"### {name}\n\n{about['summary']}{paper}\n"
            if about.get("options"):
                yield from _stages(about["options"]) if stage == "methods" else _options(about["options"])
                yield ""


def _options(options: Mapping[str, Any]) -> Iterator[str]:
    yield "| option | what it takes | default |\n|---|---|---|"
    for name, option in options.items():
        default = "-" if option.get("default") is None else f"`{option['default']}`"
        yield f"| `{name}` | {option['type']} | {default} |"


def _stages(stages: Mapping[str, Any]) -> Iterator[str]:
    yield "| stage | part |\n|---|---|"
    for stage, chosen in stages.items():
        yield f"| `{stage}` | `{json.dumps(chosen)}` |"


def commands() -> Iterator[str]:
    """Show the help of every command."""
    yield "# Commands\n"
    group = typer.main.get_command(app)

    def walk(command: Any, words: list[str]) -> Iterator[str]:
        if inner := getattr(command, "commands", None):
            for name, one in inner.items():
                if not one.hidden:
                    yield from walk(one, [*words, name])
            return
        shown = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "100", "NO_COLOR": "1"}).output
        yield f"## fedstrata {' '.join(words)}\n\n```text\n{shown.strip()}\n```\n"

    yield from walk(group, [])


def python() -> Iterator[str]:
    """List the public names of the package."""
    yield "# Python\n\nEverything here is taken from the package itself: `import fedstrata`, then `fedstrata.train`.\n"
    for name in (*FIRST, *sorted(set(api.__all__) - set(FIRST), key=str.lower)):
        found = getattr(api, name)
        if getattr(found, "__module__", "").startswith("fedstrata") and hasattr(found, "__qualname__"):
            options = f"    options:\n      heading_level: 2\n      heading: fedstrata.{name}\n      toc_label: {name}"
            yield f"::: {found.__module__}.{found.__qualname__}\n{options}\n"
