"""`fedstrata` shows its public names and nothing else, and examples and docs get along with them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedstrata
from fedstrata import api

ROOT = Path(__file__).parents[1]
APPS = {"flower_strategy"}  # submodules that are public: what Flower apps import
EXAMPLES = {str(path.relative_to(ROOT)): path.read_text() for path in sorted((ROOT / "examples").rglob("*.py"))}
PAGES = {
    f"{path.name}, block {number}": block
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE), 1)
}


def test_every_public_name_is_there():
    assert len(set(fedstrata.__all__)) == len(fedstrata.__all__)
    for name in fedstrata.__all__:
        assert getattr(fedstrata, name) is not None, name
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = fedstrata.trian


def test_the_package_shows_the_names_of_its_api_and_nothing_else():
    assert sorted(fedstrata.__all__) == sorted([*api.__all__, "plots", "__version__"])
    assert dir(fedstrata) == sorted(fedstrata.__all__)
    for name in api.__all__:
        assert getattr(fedstrata, name) is getattr(api, name), name


def test_the_api_exports_all_that_it_imports():
    tree = ast.parse(Path(api.__file__).read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module != "__future__"]
    assert sorted(alias.name for node in imports for alias in node.names) == sorted(api.__all__)


def test_the_package_alone_does_not_import_torch():
    code = "import sys, fedstrata; dir(fedstrata); sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_there_are_examples_and_pages():
    assert len(EXAMPLES) >= 5
    assert len(PAGES) >= 5


@pytest.mark.parametrize("name", [*EXAMPLES, *PAGES])
def test_an_example_uses_public_names_only(name):
    code = {**EXAMPLES, **PAGES}[name]
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
            if node.module == "fedstrata":
                assert {alias.name for alias in node.names} <= {*fedstrata.__all__, *APPS}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "fedstrata":
            assert node.attr in fedstrata.__all__, f"fedstrata.{node.attr} is not public"
            continue
        else:
            continue
        private = [m for m in modules if m.startswith("fedstrata.") and m.split(".")[1:] not in [[app] for app in APPS]]
        assert not private, f"{private} may move; import from fedstrata"
