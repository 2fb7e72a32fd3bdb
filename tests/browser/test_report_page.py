"""The report, opened from a file as a reader does."""

from __future__ import annotations

import re

import pytest
import written
from looks import contrast, drawn, unreadable
from playwright.sync_api import expect

from fedstrata import compare
from fedstrata.report.document import document, heading
from fedstrata.report.gather import gather
from fedstrata.report.html_tables import html
from fedstrata.report.page import page as report
from fedstrata.report.tables import Table
from fedstrata.testing import tiny_federation

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> str:
    """A report of two runs with 100 clients."""
    folder = tmp_path_factory.mktemp("report")
    for method, rounds in (("fedavg", 60), ("scaffold", 59)):  # or else all their panels would be the same
        run = written.begun(folder / method, method=method, clients=100, labels=10, rounds=60)
        written.write_rounds(run, 1, rounds, clients=100, labels=10)
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
    with page.expect_download() as saved:
        page.locator("#figure-accuracy [data-save=png]").click()
    assert saved.value.suggested_filename == "accuracy.png"
    assert saved.value.path().read_bytes().startswith(b"\x89PNG")
    for inches, name in (("3.5", "accuracy.svg"), ("7", "accuracy-wide.svg")):
        with page.expect_download() as saved:
            page.locator(f"#figure-accuracy [data-inches='{inches}']").click()
        assert saved.value.suggested_filename == name
        svg = saved.value.path().read_text()
        assert f'width="{inches}in"' in svg
        assert "Helvetica" in svg
        assert re.search(r"<text[^>]*>scaffold</text>", svg)  # text stays text
        assert "fill: rgb(255, 255, 255)" in svg  # light paper, though the page is dark


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


# ---- always in sight, drawn when seen, one filter for everything


def test_the_bar_stays_in_sight(window, address):
    page = window(address, width=390, height=800)
    expect(page.locator("#against")).to_be_in_viewport()
    page.evaluate("() => scrollTo(0, 4000)")
    page.wait_for_function("() => scrollY > 3000")
    expect(page.locator("#against")).to_be_in_viewport()
    page.locator("nav a", has_text="Configuration").click()  # what is jumped to is not below the bar
    page.wait_for_function("() => scrollY > 5000")
    ends = page.evaluate(
        "() => ['.bar', '#reproduce'].map((name) => document.querySelector(name).getBoundingClientRect())"
    )
    assert ends[1]["top"] >= ends[0]["bottom"] - 1


def test_figures_are_drawn_when_they_come_into_view(window, address):
    page = window(address, width=1440)
    page.wait_for_function("() => document.querySelector('[data-figure=accuracy] .main-svg')")
    drawn_now = page.locator("[data-figure] > .plot-container").count()
    assert 0 < drawn_now < page.locator("[data-figure]").count()
    last = page.locator("[data-figure]").last
    assert last.locator(".main-svg").count() == 0
    last.scroll_into_view_if_needed()
    expect(last.locator(".main-svg").first).to_be_visible()


def test_a_method_that_is_hidden_is_hidden_everywhere(window, address):
    page = window(address, width=1440)
    drawn(page)
    line = "() => document.querySelector('[data-figure=accuracy]').data.find((l) => l.name === 'scaffold').visible"
    own = page.locator("figure[data-methods='[\"scaffold\"]']")
    row = page.locator("tr[data-methods='[\"scaffold\"]']")
    assert own.count() > 0
    assert row.count() > 0
    page.locator(".chip", has_text="scaffold").click()
    expect(page.locator(".chip", has_text="scaffold")).to_have_attribute("aria-pressed", "false")
    page.wait_for_function(f"() => ({line})() === 'legendonly'")
    expect(own.first).to_be_hidden()
    expect(row.first).to_be_hidden()
    page.locator("[data-figure=accuracy] .legendtoggle").last.click()  # a legend does the same
    expect(page.locator(".chip", has_text="scaffold")).to_have_attribute("aria-pressed", "true")
    expect(own.first).to_be_visible()


def test_tables_can_be_sorted(window, tmp_path):
    rows = [["b", "9 kB", 1200.0], ["a", "2 MB", None], ["c", "10 B", 3.0]]
    table = html(Table("t", ["name", "size", "value"], rows))
    page_text = document("t", [*heading("t", "", []), f'<main id="main">{table}</main>'], [])
    (tmp_path / "t.html").write_text(page_text)
    page = window(f"file://{tmp_path}/t.html")
    names = "() => [...document.querySelectorAll('td:first-child')].map((cell) => cell.textContent).join('')"
    for head, orders in {"name": ["abc", "cba", "bac"], "size": ["abc", "cba", "bac"], "value": ["bca", "cba"]}.items():
        for order in orders:
            page.locator("th button", has_text=head).click()
            assert page.evaluate(names) == order, head
    expect(page.locator("th", has_text="value")).to_have_attribute("aria-sort", "ascending")


def test_an_old_browser_is_told_so(chromium, address):
    context = chromium.new_context()
    context.add_init_script("delete window.DecompressionStream")
    page = context.new_page()
    page.goto(address)
    expect(page.locator("[data-figure]").first).to_contain_text("too old to draw the figures")
    context.close()


# ---- rounds replayed


def test_rounds_can_be_stepped_through_and_played(window, tmp_path):
    run = written.begun(tmp_path / "run", clients=4)
    run.log("clients", counts=[[9, 0, 0, 0], [0, 9, 0, 0], [0, 0, 9, 0], [0, 0, 0, 9]])
    run.log("dropped", round=1, step=0, clients=[2], why="late")
    steps = [{"kind": "train", "clients": [0, 1], "missing": [2]}]
    run.log("round", round=1, accuracy=0.5, steps=steps, bytes_up=2000, bytes_down=3000, bytes_p2p=0)
    steps = [{"kind": "train", "clients": [3]}]
    run.log("round", round=2, accuracy=0.75, steps=steps, bytes_up=3000, bytes_down=4000, bytes_p2p=0)
    (tmp_path / "report.html").write_text(report(gather([run.path])))
    page = window(f"file://{tmp_path}/report.html", width=390)
    said, step = page.locator(".said"), page.locator("[data-step]")
    expect(said).to_have_text("Round 1 of 5: 3 of 4 clients are asked to train. 3 kB go down in this round.")
    expect(page.locator(".node.asked")).to_have_count(3)
    step.click()
    step.click()
    expect(said).to_contain_text("reports of 2 clients go up; 1 client did not answer (late). 2 kB go up")
    expect(page.locator(".node.here")).to_have_count(2)
    expect(page.locator(".node.late")).to_have_count(1)
    step.click()
    expect(page.locator(".server text")).to_have_text("50.0 % right")
    page.locator("[data-back]").click()
    expect(said).to_contain_text("reports of 2 clients")
    page.locator("[data-speed]").select_option("fast")
    page.locator("[data-play]").click()
    expect(page.locator("[data-play]")).to_have_text("Pause")
    expect(page.locator(".server text")).to_have_text("75.0 % right")
    page.locator("[data-play]").click()
    page.locator("[data-round]").focus()
    page.keyboard.press("Home")
    expect(said).to_contain_text("Round 1 of 5: 3 of 4")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_runs_with_long_names_fit_a_telephone(window, tmp_path):
    folders = [
        tmp_path / f"{at}-alpha=0.1, clients_per_round=5, a name that is longer than a telephone is wide" for at in "ab"
    ]
    for folder in folders:
        run = written.begun(folder, clients=4)
        run.log("clients", counts=[[9, 0, 0, 0], [0, 9, 0, 0], [0, 0, 9, 0], [0, 0, 0, 9]])
        steps = [{"kind": "train", "clients": [0, 1]}]
        run.log("round", round=1, accuracy=0.5, steps=steps, bytes_up=2000, bytes_down=3000, bytes_p2p=0)
    (tmp_path / "report.html").write_text(report(gather(folders)))
    page = window(f"file://{tmp_path}/report.html", width=390)
    expect(page.locator(".replay select").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
