"""What the project says of itself agrees: version, systems, dependencies, commands."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import grimp
import pytest

import fedstrata

PROJECT = Path(__file__).parent.parent
TABLE = tomllib.loads((PROJECT / "pyproject.toml").read_text())
IMPORTED_AS = {"grpcio": "grpc", "pillow": "PIL", "scikit-learn": "sklearn", "mlflow-skinny": "mlflow"}


def requirement(text: str) -> str:
    """Return the name that a requirement is imported by."""
    name = re.match(r"[A-Za-z0-9-]+", text)[0]
    return IMPORTED_AS.get(name, name.replace("-", "_"))


def test_the_version_stands_in_one_place_and_others_agree_with_it():
    assert TABLE["project"]["dynamic"] == ["version", "readme"]
    assert PROJECT / TABLE["tool"]["hatch"]["version"]["path"] == PROJECT / "src/fedstrata/__init__.py"
    cited = re.search(r"^version: (\S+)$", (PROJECT / "CITATION.cff").read_text(), re.M)[1]
    assert cited == fedstrata.__version__
    released = re.findall(r"^## ([0-9.]+) - \d{4}-\d\d-\d\d$", (PROJECT / "CHANGELOG.md").read_text(), re.M)
    assert released[0] == fedstrata.__version__


def test_the_workflow_tests_every_python_that_is_promised():
    promised = {c.split(" :: ")[-1] for c in TABLE["project"]["classifiers"] if "Python :: 3." in c}
    workflow = (PROJECT / ".github/workflows/test.yml").read_text()
    assert set(re.findall(r'"(3\.\d+)"', re.search(r"python: \[(.*)\]", workflow)[1])) == promised


def test_every_dependency_is_used_and_every_extra_has_code():
    used = grimp.build_graph("fedstrata", include_external_packages=True, cache_dir=None).modules
    code = "".join(path.read_text() for path in (PROJECT / "src").rglob("*.py"))
    used |= set(re.findall(r'(?:import_module|find_spec)\("(\w+)', code))
    used |= {
        name for names in re.findall(r"modules: ClassVar.* = \((.*)\)", code) for name in re.findall(r'"(\w+)"', names)
    }
    used |= {"fedstrata[tensorboard,mlflow,wandb]", "click"}  # an extra of extras; what typer imports, held back
    extras = {name: needs for name, needs in TABLE["project"]["optional-dependencies"].items() if name != "dev"}
    for name, needs in {"": TABLE["project"]["dependencies"], **extras}.items():
        assert [need for need in needs if "win32" not in need and requirement(need) not in used] == [], name


def test_extras_that_pages_name_are_there():
    pages = [PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", *(PROJECT / "docs").glob("*.md")]
    named = {extra for page in pages for extra in re.findall(r"fedstrata\[(\w+)\]", page.read_text())}
    assert named
    assert named <= TABLE["project"]["optional-dependencies"].keys()


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_links_between_pages_lead_somewhere(page):
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", (PROJECT / page).read_text())
    assert [link for link in links if not (PROJECT / link).exists()] == []


def test_pages_name_make_targets_that_exist():
    targets = set(re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(), re.M))
    for page in ("README.md", "CONTRIBUTING.md", ".ci/run", ".github/workflows/test.yml"):
        text = (PROJECT / page).read_text()
        named = re.findall(r"(?:`|^|run: )make (?:PYTHON=\S+ )?([a-z-]+)", text, re.M)
        assert set(named) <= targets, page
