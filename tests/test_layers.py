"""Layers: cli above the sessions, those above engines and methods, those above the stages, those above the core."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import fedstrata

ROOT = Path(fedstrata.__file__).parent
STAGES = ("schedule", "drive", "select", "sample", "correct", "combine", "optimize")
STAGES += ("data", "models", "rates", "devices")
HEIGHT = (
    {"cli": 5, "__main__": 5, "testing": 4, "deploy": 4, "report": 4, "inspecting": 4, "flower": 4, "board": 4}
    | dict.fromkeys(("training", "comparing", "following", "away", "work"), 3)
    | dict.fromkeys(("engines", "methods", "assemble", "privacy"), 2)
    | dict.fromkeys(STAGES, 1)
)


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path) -> set[str]:
    """Modules of this package that a module imports when it is imported itself; type checking does not count."""
    found = set()
    todo = list(ast.parse(path.read_text()).body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fedstrata":
            base = node.module.removeprefix("fedstrata").lstrip(".")
            for name in node.names:
                inner = f"{base}.{name.name}".lstrip(".")
                is_module = (ROOT / f"{inner.replace('.', '/')}.py").exists() or (
                    ROOT / inner.replace(".", "/")
                ).is_dir()
                found.add(inner if is_module else base or "__init__")
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.ClassDef):
            todo += node.body
    return found


GRAPH = {module_name(p): imports(p) for p in ROOT.rglob("*.py")}


def height(module: str) -> int:
    return HEIGHT.get(module.split(".", maxsplit=1)[0], 0)


def test_no_module_imports_from_a_higher_layer():
    wrong = [(m, i) for m, found in GRAPH.items() for i in found if height(i) > height(m)]
    assert not wrong


def test_imports_have_no_cycle():
    order = list(TopologicalSorter(GRAPH).static_order())
    assert order.index("messages") < order.index("loop") < order.index("training")


def test_the_core_names_no_method():
    methods = ("prox", "scaffold", "yogi", "adagrad", "power_of_choice", "flips", "terraform", "stratify", "fedbss")
    for module in ("loop", "lane", "look", "messages", "clientside", "serverside", "plan", "site", "wire", "judge"):
        code = ast.parse((ROOT / f"{module}.py").read_text())
        names = {n.id.lower() for n in ast.walk(code) if isinstance(n, ast.Name)}
        names |= {
            str(n.value).lower() for n in ast.walk(code) if isinstance(n, ast.Constant) and len(str(n.value)) < 40
        }
        assert not {m for m in methods if m in names}, module


def test_the_loop_fits_on_two_screens():
    code = [line for line in (ROOT / "loop.py").read_text().splitlines() if line.strip()]
    assert len(code) < 200
