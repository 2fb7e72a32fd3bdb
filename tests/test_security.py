"""The threat model: every case is there, and says what is promised by which test; every test is one that is run."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent
PAGE = (PROJECT / "SECURITY.md").read_text()
WAYS = ("honest", "curious", "hostile")
CASES = [f"Server {server}, site {site}" for server, site in product(WAYS, WAYS)]
CASES += ["The network", "Files that somebody else wrote"]
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def promises() -> dict[str, list[str]]:
    """Return what each case promises, one text each."""
    model = PAGE.split("## Threat model")[1].split("\n## ")[0]
    cases = dict(re.findall(r"### (.+?)\n(.*?)(?=\n### |\Z)", model, re.DOTALL))
    return {name: re.findall(r"^\* (.*?)(?=\n\* |\n\n|\Z)", text, re.DOTALL | re.M) for name, text in cases.items()}


def test_every_case_is_there_and_promises_something():
    found = promises()
    assert list(found) == CASES
    assert [name for name, told in found.items() if not told] == []


def test_no_promise_is_without_a_test():
    bare = [(name, text) for name, told in promises().items() for text in told if not TEST.search(text)]
    assert bare == []


def test_every_test_that_is_named_is_there():
    named = set(TEST.findall(PAGE))
    assert len(named) > 50
    for file in sorted({file for file, _ in named}):
        functions = {
            n.name for n in ast.walk(ast.parse((PROJECT / file).read_text())) if isinstance(n, ast.FunctionDef)
        }
        assert {test for other, test in named if other == file} <= functions, file


@pytest.mark.extended
def test_every_test_that_is_named_is_collected():
    named = {f"{file}::{test}" for file, test in TEST.findall(PAGE)}
    everything = ["-o", "addopts=", "--collect-only", "-q", "-m", "not slow", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *everything, *sorted({name.split("::")[0] for name in named})]
    done = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, check=False)
    collected = {line.split("[")[0] for line in done.stdout.splitlines()}
    assert named - collected == set(), done.stdout[-2000:]
