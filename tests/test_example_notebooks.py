"""Notebooks of examples/ are executed from the first cell to the last; git holds them without outputs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import fedstrata

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))
by_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@by_notebook
def test_a_notebook_is_kept_without_outputs(path):
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert cells
    assert not [cell.id for cell in cells if cell.outputs or cell.execution_count]


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore")  # of the machinery that executes notebooks
@by_notebook
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    source = str(Path(fedstrata.__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")])))
    notebook = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3", resources=where).execute()
    shown = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert [output for output in shown if "text/html" in output.get("data", {})]  # runs show themselves as tables
