"""The rooms of the package: who may import whom, what lies at the root, and that the core knows no method by name."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

import fedstrata
from fedstrata.methods.recipes import PARTS as RECIPES

PACKAGE = Path(fedstrata.__file__).parent
PROJECT = Path(__file__).parent.parent
ROOT = {"__init__.py", "__main__.py", "api.py", "py.typed"}
LARGE = [
    "core",
    "core/machine",
    "core/storage",
    "data",
    "deploy",
    "deploy/operators",
    "deploy/server",
    "deploy/site",
    "remote",
    "remote/server",
    "remote/site",
    "runs/compare",
]
ONLY_POSIX = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
CODE = {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


@pytest.fixture(scope="module")
def graph():
    """Every import, inside functions too; what only a type checker imports is left out."""
    return grimp.build_graph("fedstrata", exclude_type_checking_imports=True, cache_dir=None)


def test_the_contracts_on_imports_are_kept():
    """In a process of its own: it configures logging, which closes what other tests' libraries log to."""
    lint = "from importlinter.cli import lint_imports as lint; raise SystemExit(lint(no_cache=True, no_logo=True))"
    done = subprocess.run([sys.executable, "-c", lint], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_modules_do_not_import_each_other_in_a_circle(graph):
    modules = graph.modules - {"fedstrata"}  # the root gives names of all rooms, and a version to them
    imported = {module: graph.find_modules_directly_imported_by(module) & modules for module in modules}
    order = list(TopologicalSorter(imported).static_order())  # raises on a circle
    rooms = [f"fedstrata.{module}" for module in ("core.messages", "server.loop", "runs.training", "cli.run")]
    assert sorted(rooms, key=order.index) == rooms


def test_rooms_take_nothing_but_the_version_from_the_root(graph):
    """The contract leaves the root out, which gives names of all rooms: nobody may reach up through it."""
    for module in graph.find_modules_that_directly_import("fedstrata"):
        for line in graph.get_import_details(importer=module, imported="fedstrata"):
            assert line["line_contents"] == "from fedstrata import __version__", module


def test_the_root_holds_no_modules_of_its_own():
    files = {path.name for path in PACKAGE.iterdir() if path.is_file()}
    assert files <= ROOT
    assert {"__init__.py", "__main__.py", "py.typed"} <= files
    folders = [path for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"]
    assert all((folder / "__init__.py").exists() for folder in folders)


@pytest.mark.parametrize("room", LARGE)
def test_a_large_room_has_a_map(room):
    """Its docstring names every module and every package in it, and none that is not there."""
    there = {path.stem for path in (PACKAGE / room).glob("*.py")} - {"__init__"}
    there |= {f"{path.parent.name}/" for path in (PACKAGE / room).glob("*/__init__.py")}
    named = re.findall(r"`([\w/]+)`", ast.get_docstring(CODE[PACKAGE / room / "__init__.py"]))
    assert {name for name in named if name not in there} == set()
    assert there - {*named} == set()


@pytest.mark.parametrize("room", ["machine", "storage"])
def test_files_and_the_machine_know_nothing_of_learning(room, graph):
    own = f"fedstrata.core.{room}"
    for module in graph.find_descendants(own):
        others = {name for name in graph.find_modules_directly_imported_by(module) if not name.startswith(f"{own}.")}
        assert others <= {"fedstrata.core.errors"}, module


def test_core_client_and_server_name_no_method():
    methods = {*RECIPES, "prox", "yogi", "adagrad", "stratify", "stratified", "bias-aware", "fedga"}
    wanted = {method: f"_{method.replace('-', '_')}_" for method in methods}
    for path, code in CODE.items():
        if path.relative_to(PACKAGE).parts[0] in ("core", "client", "server"):
            said = [f"_{_snake(text)}_" for text in _words(code)]
            assert not [method for method, name in wanted.items() if any(name in text for text in said)], path


def test_the_loop_fits_on_three_screens():
    lines = (PACKAGE / "server" / "loop.py").read_text().splitlines()
    assert len([line for line in lines if line.strip()]) <= 200


def test_nothing_imports_what_only_posix_has_before_it_is_needed():
    """Import and training in one process work on Windows as well."""
    for path, code in CODE.items():
        for node in code.body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not ONLY_POSIX & set(names), path


def test_a_class_name_has_one_meaning():
    places = defaultdict(list)
    for path, code in CODE.items():
        for node in ast.walk(code):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(PACKAGE)))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def _words(code: ast.Module) -> list[str]:
    """Return every name and text in a module; what docstrings tell is left out."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    told = {
        id(node.body[0].value) for node in ast.walk(code) if isinstance(node, documented) and ast.get_docstring(node)
    }
    found = []
    for node in ast.walk(code):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.alias(name=name):
                found.append(name)
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                found.append(name)
            case ast.Constant(value=str() as text) if id(node) not in told:
                found.append(text)
    return found


def _snake(text: str) -> str:
    return "_".join(word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", text))
