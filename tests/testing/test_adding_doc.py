"""Every example of docs/adding.md is run: its file is imported, its checks are made, and two rounds are trained.

A block of Python whose first line names a file is that file; others are run as they stand. A block of TOML is an
experiment, or what a package says of its entry points. Parts are used as objects, by path and by name.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import fedstrata
from fedstrata import testing
from fedstrata.core import registry

DOC = Path(__file__).parents[2] / "docs/adding.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
GROUP = "fedstrata.parts"


@dataclass
class Section:
    """One example: the part's file, what is done with it, the experiment, and its entry points."""

    title: str
    files: dict[str, str] = field(default_factory=dict)
    uses: list[str] = field(default_factory=list)
    experiments: dict[str, str] = field(default_factory=dict)
    entries: dict[str, str] = field(default_factory=dict)


def sections():
    found = []
    for text in re.split(r"^#{2,3} ", DOC.read_text(), flags=re.MULTILINE)[1:]:
        section = Section(text.splitlines()[0])
        for language, block in BLOCK.findall(text):
            named = re.match(r"# ([\w/.]+)\n", block)
            if language == "python" and named:
                section.files[named[1]] = block
            elif language == "python":
                section.uses.append(block)
            elif named[1] == "pyproject.toml":
                section.entries |= tomllib.loads(block)["project"]["entry-points"][GROUP]
            else:
                section.experiments[named[1]] = block
        found += [section] if section.files else []
    return found


SECTIONS = sections()
EXAMPLES = pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.title)


@pytest.fixture(autouse=True)
def _installed(tmp_path, monkeypatch):
    """Lay the package out as pip would: its files, and what it says of itself."""
    root = tmp_path / "site"
    for section in SECTIONS:
        for name, text in section.files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    about = root / "my_parts-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my_parts\nVersion: 1.0\n")
    entries = {name: target for section in SECTIONS for name, target in section.entries.items()}
    (about / "entry_points.txt").write_text(f"[{GROUP}]\n" + "".join(f"{n} = {t}\n" for n, t in entries.items()))
    monkeypatch.syspath_prepend(root)
    registry.forget_parts()
    yield
    registry.forget_parts()
    for name in [name for name in sys.modules if name.split(".")[0] == "my_parts"]:
        del sys.modules[name]


@EXAMPLES
def test_the_example_is_whole(section):
    """A file, a use, an experiment and an entry point; nothing is imported from inside the package."""
    assert len(section.files) == len(section.uses) == len(section.experiments) == len(section.entries) == 1
    (use,) = section.uses
    assert re.search(r"^check_\w+\(", use, re.MULTILINE)
    assert "fedstrata.train(" in use
    for block in (*section.files.values(), use):
        names = [n.module for n in ast.walk(ast.parse(block)) if isinstance(n, ast.ImportFrom)]
        assert {n for n in names if n.startswith("fedstrata")} <= {"fedstrata", "fedstrata.testing"}


@EXAMPLES
def test_the_example_passes_its_checks_and_trains(section):
    exec(compile(section.uses[0], str(DOC), "exec"), {})
    (run,) = [fedstrata.Run.open(path) for path in Path("runs").iterdir()]
    assert run.summary["rounds"] == 2
    names = re.findall(r'"(.+?)"', (run.path / "experiment.toml").read_text())
    assert {_short(section), *section.entries.values()} & set(names)


@EXAMPLES
def test_the_example_trains_by_its_short_name_in_a_file(section):
    """By path and by name it is the same experiment."""
    ((name, target),) = section.entries.items()
    ((file, text),) = section.experiments.items()
    by_path, by_name = Path(file), Path(f"short-{file}")
    assert target in text
    by_path.write_text(text)
    by_name.write_text(text.replace(target, _short(section)))
    one, other = (fedstrata.Experiment.of(path).dump() for path in (by_path, by_name))
    if not name.startswith(("datasets.", "models.", "methods.", "engines.")):  # those stand as they were written
        assert one == other
    run = fedstrata.train(by_name, overrides={"train.rounds": 2, "train.epochs": 1, "train.clients_per_round": 3})
    assert run.summary["rounds"] == 2


def test_the_package_is_listed():
    for section in SECTIONS:
        (name,) = section.entries
        stage, _, short = name.partition(".")
        about = registry.describe(stage, short)
        assert about["summary"].endswith("."), name
        assert short in registry.names(stage)


def test_every_kind_of_part_has_an_example_and_every_suite_is_shown():
    assert {name.partition(".")[0] for section in SECTIONS for name in section.entries} == set(registry.STAGES)
    open_tensors = set(re.findall(r"check_\w+", "".join(use for section in SECTIONS for use in section.uses)))
    assert open_tensors == {name for name in testing.__all__ if name.startswith("check_")}


def test_lines_are_short_and_names_are_public():
    text = DOC.read_text()
    assert not [line for line in text.splitlines() if len(line) > 120 and not line.startswith("|")]
    table = re.findall(r"^\| \[.*?\]\(#([\w-]+)\) \| (?:a )?`(\w+)` \|", text, re.MULTILINE)
    titles = {section.title.lower().replace(" ", "-") for section in SECTIONS}
    assert {anchor for anchor, _ in table} == titles - {"selector-that-probes"}
    assert all(hasattr(fedstrata, name) for _, name in table)


def _short(section):
    (name,) = section.entries
    return name.partition(".")[2]
