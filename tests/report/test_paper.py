"""Figures as files for papers."""

from __future__ import annotations

import re
import sys
import zlib

import pytest
from PIL import Image

from fedstrata import RequestError, compare, plots
from fedstrata.report.gather import gather
from fedstrata.report.page import draw
from fedstrata.testing import tiny_federation

SEVERAL = {"train.rounds": 2, "train.epochs": 1, "model.hidden": (5,), "system.stragglers.rate": 0.4}


def few(run, *wanted):
    shown = {own.name: own.figure for own in draw(gather([run.path]))}
    return {name: shown[name] for name in wanted}


def test_pdf_files_have_their_width_and_hold_their_fonts_as_text(small, tmp_path):
    (path,) = plots.save(few(small, "accuracy"), tmp_path, "pdf", 3.5)
    pdf = path.read_bytes()
    wide = float(re.search(rb"/MediaBox \[ ?0 0 ([\d.]+)", pdf)[1])
    assert wide == pytest.approx(72 * 3.5)
    streams = b"".join(_inflated(part) for part in re.findall(rb"stream\r?\n(.*?)\r?\nendstream", pdf, re.S))
    assert b"/FontFile2" in pdf + streams  # a TrueType font is inside
    assert b"/Type3" not in pdf + streams
    again = plots.save(few(small, "accuracy"), tmp_path / "again", "pdf", 3.5)
    assert again[0].read_bytes() == pdf  # the same file every time


def test_numbers_below_narrow_bars_do_not_run_into_each_other(small, tmp_path):
    """Beside the label matrix there is half an inch for how many samples clients hold: room for two numbers."""
    (path,) = plots.save(few(small, "holds"), tmp_path, "svg", 3.5)
    svg = path.read_text()
    bars = svg[svg.index('id="axes_2"') :]
    bars = bars[: bars.index("samples</text>")]
    assert 1 <= len(re.findall(r">\d+</text>", bars)) <= 2


def test_text_of_svg_files_stays_text(small, tmp_path):
    (path,) = plots.save(few(small, "accuracy"), tmp_path, "svg", 7)
    svg = path.read_text()
    assert 'width="504pt"' in svg
    assert ">worst tenth of clients</text>" in svg


def test_png_files_have_300_dots_an_inch(small, tmp_path):
    (path,) = plots.save(few(small, "recall"), tmp_path, "png", 2)
    with Image.open(path) as image:
        assert image.size[0] == 600


@pytest.mark.extended
def test_every_figure_of_a_report_can_be_saved(cli, tmp_path):
    methods = ["fedavg", "flips", "terraform", "fedbss", "stratify-batch"]
    compare(methods=methods, overrides=SEVERAL, federation=tiny_federation(), out=tmp_path / "c", jobs=1)
    folder = tmp_path / "figures"
    out = ("-o", str(tmp_path / "r.html"))
    code, said, _ = cli("report", str(tmp_path / "c"), *out, "--figures", str(folder), "--format", "svg", "--json")
    assert code == 0, said
    shown = {f"{own.name}.svg" for own in draw(gather([tmp_path / "c"]))}
    assert {path.name for path in folder.iterdir()} == shown
    assert {"holds.svg", "accuracy.svg"} < shown


def test_wrong_wishes_are_refused(cli, small, tmp_path, monkeypatch):
    about = ("report", str(small.path), "-o", str(tmp_path / "r.html"), "--figures", str(tmp_path / "f"))
    code, _, err = cli(*about, "--width", "0.1")
    assert (code, "from 1 to 20 inches" in err) == (2, True)
    with pytest.raises(RequestError, match="pdf, svg, png"):
        plots.save(small, tmp_path, "eps")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, err = cli(*about)
    assert (code, "fedstrata[figures]" in err) == (2, True)
    assert not (tmp_path / "r.html").exists()


def _inflated(part: bytes) -> bytes:
    try:
        return zlib.decompress(part)
    except zlib.error:
        return b""
