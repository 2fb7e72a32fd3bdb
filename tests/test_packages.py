"""Wheel and source package: what is inside, and that a fresh environment runs what was installed from them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import fedstrata
from fedstrata.core.storage.archives import unpack

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "fedstrata"

pytestmark = [pytest.mark.extended, pytest.mark.xdist_group("packages")]


def run(*command, cwd):
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build both with the back end of pyproject.toml, the wheel out of the source package, as an index would get it."""
    pytest.importorskip("hatchling")
    pytest.importorskip("hatch_fancy_pypi_readme")
    place = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", place, cwd=ROOT)
    (source,) = place.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        unpack(archive, place / "source")
    (unpacked,) = (place / "source").iterdir()
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", place, cwd=unpacked)
    (wheel,) = place.glob("*.whl")
    return source, wheel


def test_the_wheel_holds_the_whole_package_and_nothing_else(built):
    names = set(zipfile.ZipFile(built[1]).namelist())
    wanted = {f"fedstrata/{path.relative_to(PACKAGE).as_posix()}" for path in PACKAGE.rglob("*") if path.is_file()}
    wanted = {name for name in wanted if "__pycache__" not in name}
    results = (ROOT / "reproduce/results").iterdir()
    wanted |= {f"fedstrata/reproduce/published/{path.name}" for path in results if path.suffix in (".json", ".md")}
    assert wanted <= names  # papers' tables, the board's pages and scripts, templates
    about = f"fedstrata-{fedstrata.__version__}.dist-info/"
    assert not [name for name in names - wanted if not name.startswith(about)]


def test_its_metadata_are_those_of_the_project(built):
    wheel = zipfile.ZipFile(built[1])
    text = wheel.read(f"fedstrata-{fedstrata.__version__}.dist-info/METADATA").decode()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert re.findall(r"^Version: (.*)$", text, re.M) == [fedstrata.__version__]
    assert set(re.findall(r"^Provides-Extra: (.*)$", text, re.M)) == set(extras)
    links = re.findall(r"\]\(([^)]+)\)", text[text.index("# fedstrata") :])
    assert links
    assert [link for link in links if not link.startswith(("https://", "#"))] == []  # an index knows no files of ours


@pytest.fixture(scope="module")
def fresh(built, tmp_path_factory):
    """A fresh environment with the wheel, which finds what it depends on here; nothing is downloaded."""
    place = tmp_path_factory.mktemp("fresh")
    venv.create(place / "venv", with_pip=False, symlinks=True)
    python = place / "venv" / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", built[1], cwd=place)
    home = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=place).strip())
    # not through site: an editable install here would come before the wheel
    (home / "beside.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    found = Path(run(python, "-c", "import fedstrata; print(fedstrata.__file__)", cwd=place).strip())
    assert found.is_relative_to(place)
    return python, place


def test_a_fresh_environment_runs_what_the_wheel_installed(fresh):
    python, place = fresh
    command = python.parent / "fedstrata"
    assert run(command, "--version", cwd=place) == f"fedstrata {fedstrata.__version__}\n"
    assert run(python, "-m", "fedstrata", "--version", cwd=place) == f"fedstrata {fedstrata.__version__}\n"
    answer = json.loads(run(command, "run", "-q", "--json", "--set", "train.rounds=2", cwd=place))
    assert answer["rounds"] == 2
    run(command, "report", answer["run_dir"], "-o", "report.html", cwd=place)
    assert (place / "report.html").stat().st_size > 1e5
    tables = json.loads(run(command, "reproduce", "list", "--json", cwd=place))
    assert sum(table["runs"] for table in tables)  # those that were published
    run(command, "new", "mine", cwd=place)
    assert (place / "mine/experiment.toml").exists()


def test_every_extra_is_known_to_the_installed_doctor(fresh):
    python, place = fresh
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    found = json.loads(run(python.parent / "fedstrata", "doctor", "--json", cwd=place))["findings"]
    looked = {finding["what"] for finding in found}
    assert {f"[{extra}]" for extra in extras if extra not in ("dev", "track")} <= looked
