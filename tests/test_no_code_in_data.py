"""What is read never runs: pickle, eval, exec, marshal, shelve and yaml stand nowhere but in the places listed here."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import fedstrata

ROOT = Path(fedstrata.__file__).parent
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "yaml", "joblib"}
CALLS = {"eval", "exec", "compile", "__import__"}
ALLOWED = {
    "core/machine/child_process.py": {"pickle"},  # between a process and children it started, over a pipe of their own
    "engines/local/processes.py": {"pickle"},
    "engines/local/worker_process.py": {"pickle"},
    "runs/compare/pool.py": {"pickle", "recv"},
    "runs/compare/worker.py": {"pickle", "recv"},
    "data/formats/client_files.py": {"pickle"},  # PFLlib's files: an unpickler that knows arrays, and nothing else
    "models/pretrained.py": {"pickle"},  # only the error that torch raises for weights that are no plain tensors
    "engines/local/traced_step.py": {"exec"},  # a function written here from the names of torch's own operations
}


def used(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names} & MODULES
        elif isinstance(node, ast.ImportFrom):
            found |= {(node.module or "").split(".")[0]} & MODULES
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found |= {node.func.id} & CALLS
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            found |= {"recv"} if node.func.attr == "recv" and not node.args else set()  # of a pipe: it unpickles
            loads = ast.unparse(node.func) == "torch.load" and not any(k.arg == "weights_only" for k in node.keywords)
            found |= {"torch.load"} if loads else set()
        elif isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "weights_only"):
            wanted = node.arg == "weights_only"
            if not isinstance(node.value, ast.Constant) or node.value.value is not wanted:
                found.add(node.arg)
    return found


def test_nothing_that_is_read_can_run():
    found = {str(path.relative_to(ROOT)): names for path in sorted(ROOT.rglob("*.py")) if (names := used(path))}
    assert found == ALLOWED


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import pickle", {"pickle"}),
        ("from yaml import load", {"yaml"}),
        ("eval(x)", {"eval"}),
        ("torch.load(x)", {"torch.load"}),
        ("torch.load(x, weights_only=False)", {"weights_only"}),
        ("np.load(x, allow_pickle=True)", {"allow_pickle"}),
        ("line.recv()", {"recv"}),
        ("line.recv_bytes(); sock.recv(9); torch.load(x, weights_only=True); np.load(x, allow_pickle=False)", set()),
    ],
)
def test_what_can_run_is_seen(tmp_path, text, found):
    (tmp_path / "x.py").write_text(text)
    assert used(tmp_path / "x.py") == found
