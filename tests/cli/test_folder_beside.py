"""Modules that lie beside the user: the folder is searched last, and only where a part is named by its path."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedstrata
from fedstrata.core import origin

PACKAGE = Path(fedstrata.__file__).parent
SCRIPT = (
    "import sys; from fedstrata.cli import main; sys.argv[0] = 'fedstrata'; main()"  # what pip writes for `fedstrata`
)
WAYS = {"fedstrata": ["-P", "-c", SCRIPT], "python -m fedstrata": ["-m", "fedstrata"]}
EVIL = ("plotly", "rich", "typer", "torch", "tomli_w")
OWN = """
import sys
from dataclasses import dataclass
from fedstrata import Selector

@dataclass(frozen=True)
class Everybody(Selector):
    '''Selects all.'''

    def select(self, state, view):
        assert sys.path[-1] == {folder!r}, sys.path
        return list(view.client_info.holders)
"""


def call(way: str, folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *WAYS[way], *args], cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def beside(tmp_path_factory):
    """A folder with a run, with modules that have the names of libraries, and with a part of the user's own."""
    folder = tmp_path_factory.mktemp("beside")
    fedstrata.train(overrides={"train.rounds": 1, "data.clients": 3}, out=folder / "run")
    for name in EVIL:
        (folder / f"{name}.py").write_text(f"from pathlib import Path\nPath({str(folder / 'ran')!r}).touch()\n")
    (folder / "mine.py").write_text(OWN.format(folder=str(folder)))
    return folder


@pytest.mark.parametrize("way", WAYS)
def test_what_lies_beside_the_user_does_not_run(beside, way):
    done = call(way, beside, "report", "run", "-o", f"{way.replace(' ', '-')}.html")
    assert done.returncode == 0, done.stderr
    assert not (beside / "ran").exists()


@pytest.mark.parametrize("way", WAYS)
def test_a_part_of_one_s_own_is_found_beside_the_user_and_nothing_else_there(beside, way):
    args = ("--set", "method.selector=mine:Everybody", "--set", "train.rounds=1", "--set", "data.clients=3")
    done = call(way, beside, "run", *args, "--out", f"own-{way.replace(' ', '-')}")
    assert done.returncode == 0, done.stderr
    assert not (beside / "ran").exists()


def test_the_folder_is_searched_last_and_only_when_a_part_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(origin, "_own_folder", [])
    origin.find_own_parts_in(tmp_path)
    assert str(tmp_path) not in sys.path
    origin.search_own_folder()
    origin.search_own_folder()
    assert sys.path.count(str(tmp_path)) == 1
    assert sys.path[-1] == str(tmp_path)


def test_no_path_is_put_first_and_every_program_of_ours_starts_apart_from_its_folder():
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        assert not re.search(r"sys\.path\.insert|sys\.path\[:?0", text), path
        for match in re.finditer(r"sys\.executable,([^\]]*)", text):
            assert match[1].lstrip().startswith('"-P"'), f"{path}: {match[0]}"
