"""The report, opened from a file as a reader does."""

from __future__ import annotations

import re

import pytest
import written
from looks import contrast, drawn, unreadable
from playwright.sync_api import expect

from fedstrata import compare
from fedstrata.report import images
from fedstrata.report.gather import gather
from fedstrata.report.page import draw as charts
from fedstrata.report.page import page as report
from fedstrata.testing import tiny_federation

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> str:
    """A report of two runs with 100 clients."""
    folder = tmp_path_factory.mktemp("report")
    for method in ("fedavg", "scaffold"):
        run = written.begun(folder / method, method=method, clients=100, labels=10, rounds=60)
        written.play(run, 1, 60, clients=100, labels=10)
        written.conclude(run, rounds=60)
    (folder / "report.html").write_text(report(gather([folder / "fedavg", folder / "scaffold"])))
    return f"file://{folder}/report.html"


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (1440, "dark")])
def test_it_can_be_read(shared_window, address, width, scheme):
    page = shared_window(address, width=width, scheme=scheme)
    drawn(page)
    assert unreadable(page) == []
    assert contrast(page) >= 4.5
    assert page.evaluate("document.documentElement.dataset.theme") == scheme


def test_it_works_with_the_keyboard_alone(shared_window, address):
    page = shared_window(address, width=1440, scheme="dark")
    drawn(page)
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Skip to the content")
    expect(page.locator(":focus")).to_be_in_viewport()
    page.locator("#theme").focus()
    page.keyboard.press("Enter")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    page.keyboard.press("Enter")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.keyboard.press("Shift+Tab")
    expect(page.locator("#against")).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(page.locator("[data-figure=accuracy] .xtitle")).to_have_text(re.compile("megabytes"))
    reached = set()
    for _ in range(120):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.tagName"))
    assert {"BUTTON", "SUMMARY", "DIV"} <= reached  # buttons to save, tables that open, tables that scroll


def test_figures_can_be_saved(shared_window, address):
    page = shared_window(address, width=1440, scheme="dark")
    drawn(page)
    for kind in ("png", "svg"):
        with page.expect_download() as saved:
            page.locator(f"#figure-accuracy [data-save={kind}]").click()
        assert saved.value.suggested_filename == f"accuracy.{kind}"
        assert saved.value.path().stat().st_size > 1000


@pytest.mark.parametrize(("kind", "begins"), [("png", b"\x89PNG"), ("svg", b"<svg")])
def test_all_figures_are_saved_at_once(chromium, tmp_path, monkeypatch, kind, begins):
    monkeypatch.setattr(images, "BROWSERS", (*images.BROWSERS, chromium.browser_type.executable_path))
    run = written.begun(tmp_path / "run")
    written.play(run, 1, 5)
    shown = charts(gather([run.path]))
    saved = images.write_images(tmp_path / "figures", shown, kind)
    assert {path.name for path in saved} == {f"{own.name}.{kind}" for own in shown}
    assert all(path.read_bytes().startswith(begins) for path in saved)


def test_it_prints_on_light_paper_without_controls(shared_window, address):
    page = shared_window(address, width=1440, scheme="dark")
    drawn(page)
    paper = page.pdf(format="A4")
    assert paper.startswith(b"%PDF")
    assert paper.count(b"/Type /Page\n") > 2
    page.emulate_media(media="print")
    expect(page.locator(".bar")).to_be_hidden()
    expect(page.locator("[data-save]").first).to_be_hidden()


def test_the_outcome_of_a_comparison_fits_into_the_window(window, tmp_path):
    methods = ["fedavg", "fedprox", "scaffold", "power-of-choice"]
    asked = {"train.rounds": 2, "train.epochs": 1, "model.hidden": (5,)}
    compare(methods=methods, seeds=3, overrides=asked, federation=tiny_federation(), out=tmp_path / "c", jobs=1)
    (tmp_path / "report.html").write_text(report(gather([tmp_path / "c"])))
    page = window(f"file://{tmp_path}/report.html", width=1280)
    drawn(page)
    assert unreadable(page) == []
    wide = page.locator(".scroll:visible").evaluate_all("all => all.filter((own) => own.scrollWidth > own.clientWidth)")
    assert wide == []
