"""What a notebook shows: progress, objects as HTML, figures as data frames."""

from __future__ import annotations

import sys
from types import ModuleType
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from rich.console import Console

import fedstrata
from fedstrata.runs import progress, screen
from fedstrata.runs.compare import live

FEW = {"train.rounds": 3, "engine.workers": 1}


class Frame:
    """As much of a data frame as is used; pandas itself is not needed to test."""

    def __init__(self, columns):
        self.columns, self.index = dict(columns), None
        assert len({len(column) for column in self.columns.values()}) <= 1  # as pandas insists

    def set_index(self, name):
        self.index = self.columns.pop(name)
        return self


@pytest.fixture
def pandas(monkeypatch):
    module = ModuleType("pandas")
    module.DataFrame = Frame
    monkeypatch.setitem(sys.modules, "pandas", module)


@pytest.fixture
def notebook(monkeypatch):
    """Pretend to be in a notebook; return what its cell showed, one picture after another."""
    pictures = []

    class Shown:
        def update(self, html):
            pictures.append(html)

    def display(html, *, display_id):
        assert display_id is True
        pictures.append(html)
        return Shown()

    module = ModuleType("IPython.display")
    module.HTML, module.display = str, display
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    for room in (progress, live):
        monkeypatch.setattr(room, "Console", Pretending)
    return pictures


class Pretending(Console):
    """A console in a notebook."""

    is_jupyter = property(lambda _: True, lambda *_: None)


def parsed(text):
    """Read HTML that is well formed."""
    return ET.fromstring(f"<div>{text}</div>")


# ---- progress --------------------------------------------------------------------------------------------------------


def test_a_notebook_shows_progress_without_being_asked(notebook):
    run = fedstrata.train(overrides=FEW)
    assert "3/3" in notebook[-1]
    assert f"{100 * run.summary['accuracy']:.1f} %" in notebook[-1]
    assert notebook[-1].startswith("<pre")
    assert len(notebook) <= 3 + 4 * run.summary["seconds"]  # first and last, and four a second


def test_remarks_stay_above_the_picture(notebook):
    fedstrata.train(method="fedyogi", overrides={**FEW, "method.server_step.lr": 0.5})
    assert "training goes wrong" in notebook[-1]


def test_comparisons_and_resumed_runs_show_theirs(notebook):
    fedstrata.compare(methods=["fedavg", "sfl"], overrides={**FEW, "train.rounds": 1}, jobs=1)
    assert "2/2 runs" in notebook[-1]
    assert not any("balanced" in picture for picture in notebook)  # cells show nothing of their own
    run = fedstrata.train(overrides=FEW, progress=False)
    notebook.clear()
    fedstrata.resume(run.path, overrides={"train.rounds": 4})
    assert "4/4" in notebook[-1]


def test_progress_can_be_left_out(notebook):
    run = fedstrata.train(overrides=FEW, progress=False)
    fedstrata.resume(run.path, overrides={"train.rounds": 4}, progress=False)
    fedstrata.compare(methods=["fedavg"], overrides={"train.rounds": 1}, progress=False)
    assert notebook == []


def test_watch_is_told_beside_it(notebook):
    told = []
    fedstrata.train(overrides=FEW, watch=lambda event: told.append(event["event"]) or fedstrata.STOP)
    assert told[0] == "begin"
    assert told.count("round") == 1


def test_scripts_without_a_terminal_stay_silent(capfd):
    fedstrata.train(overrides=FEW)
    fedstrata.compare(methods=["fedavg"], overrides={"train.rounds": 1})
    assert capfd.readouterr() == ("", "")


def test_a_terminal_shows_a_live_table(monkeypatch):
    class Terminal(Console):
        is_terminal = property(lambda _: True)
        is_jupyter = property(lambda _: False, lambda *_: None)

    drawn = []
    monkeypatch.setattr(progress, "Console", Terminal)
    monkeypatch.setattr(screen.Live, "start", lambda live: drawn.append("start"))
    monkeypatch.setattr(screen.Live, "stop", lambda live: drawn.append(live.get_renderable()))
    fedstrata.train(overrides=FEW)
    assert drawn[0] == "start"
    assert len(drawn) == 2


# ---- objects ---------------------------------------------------------------------------------------------------------


def test_a_run_as_html():
    run = fedstrata.train(overrides={**FEW, "name": "a <b> run"}, out="run")
    page = parsed(run._repr_html_())
    text = "".join(page.itertext())
    assert "a <b> run: run" in text
    assert f"accuracy{100 * run.summary['accuracy']:.1f} %" in text
    assert len(page.find(".//polyline").get("points").split()) == 3


def test_a_run_that_is_not_finished_as_html():
    def interrupt(event):
        if event["event"] == "round":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedstrata.train(overrides=FEW, out="cut", watch=interrupt)
    assert "not finished" in "".join(parsed(fedstrata.Run("cut")._repr_html_()).itertext())


@pytest.mark.parametrize("over", [None, {"train.lr": [0.1, 0.2]}])
def test_a_comparison_as_html(over):
    done = fedstrata.compare(methods=["fedavg", "sfl"], over=over, seeds=2, overrides={"train.rounds": 1})
    page = parsed(done._repr_html_())
    lines = [[cell.text or "".join(cell.itertext()) for cell in line] for line in page.findall(".//tbody/tr")]
    assert [line[0] for line in lines] == ["fedavg", "sfl"]
    assert all(remark in "".join(page.itertext()) for remark in done.remarks)


def test_an_inspection_as_html():
    found = fedstrata.inspect()
    text = "".join(parsed(found._repr_html_()).itertext())
    assert all(reading.value in text and reading.meaning in text for reading in found.readings)
    assert all(advice.command in text for advice in found.advice)


def test_a_federation_as_html():
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(6, 4)), np.array(["<a>", "b", "c"] * 2)) for _ in range(12)]
    federation = fedstrata.Federation.from_clients(clients)
    page = parsed(federation._repr_html_())
    text = "".join(page.itertext())
    assert "clients12" in text
    assert "2 more clients" in text
    assert "<a>" in text
    listed = page.findall(".//tbody")[1]
    counted = [[int(cell.text) for cell in line] for line in listed]
    assert [line[1:] for line in counted] == [[sum(row), *row] for row in federation.counts[:10].tolist()]


# ---- data frames -----------------------------------------------------------------------------------------------------


def test_the_rounds_of_a_run_as_a_data_frame(pandas):
    run = fedstrata.train(overrides={**FEW, "train.evaluate.every": 2})
    frame = run.to_pandas()
    assert frame.index == [1, 2, 3]
    assert frame.columns["accuracy"] == [None, *run.curve("accuracy")]
    assert frame.columns["bytes_up"] == run.curve("bytes_up")
    assert all(seconds > 0 for seconds in frame.columns["seconds"])
    assert "steps" not in frame.columns


def test_the_rows_of_a_comparison_as_a_data_frame(pandas):
    done = fedstrata.compare(methods=["fedavg", "sfl"], seeds=2, overrides={"train.rounds": 1})
    frame = done.to_pandas()
    assert frame.columns["method"] == ["fedavg", "sfl"]
    assert frame.columns["accuracy"] == [row["accuracy"]["mean"] for row in done.rows]
    assert frame.columns["accuracy_from"] == [row["accuracy"]["interval"][0] for row in done.rows]


def test_without_pandas_a_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    run = fedstrata.train(overrides=FEW)
    with pytest.raises(fedstrata.RequestError, match=r'needs pandas, .*: pip install "fedstrata\[pandas\]"'):
        run.to_pandas()
