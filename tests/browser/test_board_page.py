"""The board, watched as a person does while runs go on."""

from __future__ import annotations

import re
import shutil

import pytest
import written
from looks import contrast, drawn, unreadable
from playwright.sync_api import Page, expect

from fedstrata import Run, train
from fedstrata.board.notes import read_notes

pytestmark = [pytest.mark.browser, pytest.mark.extended]
POINTS = "(many) => document.querySelector('[data-figure=accuracy]')?.calcdata?.[0]?.length === many"


@pytest.fixture
def board(served):
    """A board with one finished run of 100 clients and one that stopped."""
    runs = served[1]
    if not (runs / "done").exists():
        done = written.begun(runs / "done", clients=100, labels=10, rounds=60)
        written.write_rounds(done, 1, 60, clients=100, labels=10)
        written.conclude(done, rounds=60)
        written.write_rounds(
            written.begun(runs / "half", method="scaffold", clients=100, labels=10, rounds=60), 1, 30, 100, 10
        )
        for at in range(6):
            shutil.copytree(runs / "half", runs / f"rather-long-names/of-folders/{at}")
    return served


def line(page: Page, run: str):
    return page.locator("#runs tbody tr").filter(has=page.get_by_role("link", name=run, exact=True))


def test_a_run_is_watched_from_its_first_round_to_its_end(window, board):
    address, runs = board
    page = window(address)
    expect(line(page, "done")).to_contain_text("finished")

    def watch(event) -> None:
        if event["event"] != "round":
            return
        expect(line(page, "live")).to_contain_text(f"{event['round']} / 3")  # the run appears, and moves on
        expect(line(page, "live")).to_contain_text("running")
        if event["round"] == 1:
            page.get_by_role("link", name="live", exact=True).click()
        page.wait_for_function(POINTS, arg=event["round"])
        if event["round"] == 2:
            page.evaluate(
                "Plotly.relayout(document.querySelector('[data-figure=accuracy]'), {'xaxis.range': [0, 2.5]})"
            )

    small = {"data.clients": 5, "model.hidden": (8,), "train.epochs": 1, "train.batch_size": 64}
    train(overrides={"train.rounds": 3, **small}, out=runs / "live", watch=watch)
    expect(line(page, "live")).to_contain_text("finished")
    expect(page.locator("#outcome")).to_contain_text("after 3 rounds")
    zoomed = page.evaluate("document.querySelector('[data-figure=accuracy]').layout.xaxis.range")
    assert zoomed == [0, 2.5]
    shutil.rmtree(runs / "live")
    expect(page.locator("#warnings")).to_contain_text("live was removed")
    expect(line(page, "live")).to_have_count(0)


def test_runs_are_laid_over_each_other_and_the_address_can_be_shared(window, board):
    address, _ = board
    page = window(address)
    line(page, "done").get_by_role("checkbox").check()
    line(page, "half").get_by_role("checkbox").check()
    expect(page.locator("#title")).to_have_text("2 runs on digits")
    expect(page.locator("#figure-accuracy .legendtext")).to_have_text(["done", "half"])
    shared = window(page.url)
    expect(shared.locator("#figure-accuracy .legendtext")).to_have_text(["done", "half"])
    expect(line(shared, "half").get_by_role("checkbox")).to_be_checked()
    page.go_back()
    expect(page.locator("#title")).to_have_text("done on digits")
    line(page, "done").get_by_role("checkbox").uncheck()
    expect(page.locator("figure")).to_have_count(0)


def test_it_opens_on_the_run_that_is_going_on_and_says_how_long_it_will_take(window, board):
    address, runs = board
    live = written.begun(runs / "going-on", rounds=1000)
    with live.locked():
        written.write_rounds(live, 1, 12)
        page = window(address)
        expect(page.locator("#title")).to_have_text("going-on on digits")
        expect(line(page, "going-on")).to_contain_text("16 min left")
    shutil.rmtree(live.path)


def test_a_comparison_is_one_entry_with_a_mean_and_unfolds(window, board):
    address, runs = board
    for method, figures in {"fedavg": (0.95, 0.4), "flips": (0.7, 0.8)}.items():
        for seed, accuracy in enumerate(figures):
            one = written.begun(runs / f"several/{method}/seed-{seed}", method=method, seed=seed)
            written.write_rounds(one, 1, 5)
            written.conclude(one, accuracy)
    (runs / "several/comparison.json").write_text("{}")
    page = window(address)
    entry = line(page, "several")
    expect(entry).to_contain_text("flips, best of 2")
    expect(entry).to_contain_text("75.0 % [70.0, 80.0]")
    expect(line(page, "fedavg")).to_have_count(0)
    entry.get_by_role("button", name="Methods of several").click()
    expect(line(page, "fedavg")).to_contain_text("67.5 % [40.0, 95.0]")
    line(page, "flips").get_by_role("checkbox").check()
    expect(page.locator("#title")).to_have_text("several/flips on digits, 2 seeds")
    shutil.rmtree(runs / "several")


def test_settings_that_differ_are_columns_and_two_runs_are_laid_side_by_side(window, board):
    page = window(board[0] + "?run=done&run=half")
    table = page.get_by_role("region", name=re.compile("Settings: .* differ"))
    expect(table).to_contain_text("method.name")
    expect(table).to_contain_text("scaffold")
    expect(page.get_by_role("region", name="At the last evaluation.")).to_contain_text("second less first")
    page.get_by_role("button", name="All settings").click()
    expect(page.get_by_role("region", name=re.compile("Settings: .* differ"))).to_contain_text("train.lr")
    page.get_by_text("Log", exact=True).click()
    expect(page.get_by_label("Log of half")).to_contain_text("round 30  round  accuracy=")


def test_a_method_that_is_hidden_is_hidden_everywhere(window, board):
    page = window(board[0] + "?run=done&run=half", width=1440)
    drawn(page)
    shown = "() => document.querySelector('[data-figure=accuracy]').data.find((l) => l.name === 'half').visible"
    chip = page.locator(".chip", has_text="half")
    own = page.locator("figure[data-methods='[\"half\"]']").first
    table = page.get_by_role("region", name="At the last evaluation.")
    expect(own).to_be_visible()
    expect(table).to_contain_text("half")
    chip.click()
    expect(chip).to_have_attribute("aria-pressed", "false")
    page.wait_for_function(f"() => ({shown})() === 'legendonly'")
    expect(own).to_be_hidden()
    expect(table).not_to_contain_text("half")
    chip.click()
    expect(own).to_be_visible()
    expect(table).to_contain_text("half")
    line(page, "done").get_by_role("checkbox").uncheck()  # what is left needs no filter
    expect(page.locator(".chip")).to_have_count(0)


def test_notes_and_tags_are_kept_and_found(window, board):
    address, runs = board
    page = window(address + "?run=half")
    page.get_by_text("Notes and tags", exact=True).click()
    page.get_by_label("Note on half").fill("stopped by me")
    page.get_by_label("Tags, with commas between them").fill("odd, odd, later")
    page.get_by_role("button", name="Keep").click()
    expect(line(page, "half")).to_contain_text("oddlater")
    page.get_by_label("Filter").fill("later")
    expect(line(page, "done")).to_have_count(0)
    assert read_notes(runs / "half").note == "stopped by me"


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), pytest.param(1440, "light", marks=pytest.mark.extended)])
def test_it_can_be_read(window, board, width, scheme):
    many = "".join(f"&run=rather-long-names/of-folders/{at}" for at in range(6))
    page = window(f"{board[0]}?run=done&run=half{many}", width=width, scheme=scheme)
    expect(page.locator("#title")).to_have_text("8 runs on digits")
    drawn(page)
    assert unreadable(page) == []
    assert contrast(page) >= 4.5
    assert page.evaluate("document.documentElement.dataset.theme") == scheme


def test_it_works_with_the_keyboard_alone(window, board):
    page = window(board[0])
    expect(line(page, "half")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Skip to the figures")
    page.keyboard.press("Tab")
    page.keyboard.type("half scaff stop")
    expect(line(page, "done")).to_be_hidden()
    expect(page.locator("#count")).to_have_text(re.compile(r"1 of \d+ runs"))
    tab_to(page, "a", "half")
    page.keyboard.press("Enter")
    expect(page.locator("#title")).to_have_text("half on digits")
    tab_to(page, "button", "accuracy", back=True)
    page.keyboard.press("Enter")
    expect(page.locator("th[data-key=accuracy]")).to_have_attribute("aria-sort", "descending")
    tab_to(page, "input", "", back=True)
    page.keyboard.press("Space")  # all of the list, which the filter has cut to one
    expect(page.locator("figure")).to_have_count(0)


def tab_to(page: Page, tag: str, text: str, back: bool = False) -> None:
    for _ in range(30):
        page.keyboard.press("Shift+Tab" if back else "Tab")
        at = page.evaluate("[document.activeElement.tagName.toLowerCase(), document.activeElement.textContent]")
        if at == [tag, text]:
            outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline != "none"  # one sees where one is
            return
    pytest.fail(f"the keyboard does not reach {tag} {text!r}")


def test_a_board_that_goes_away_is_noticed_and_comes_back(window, board):
    page = window(board[0], forgiven="ERR_INTERNET_DISCONNECTED")
    expect(page.locator("#link")).to_have_text("Live")
    page.context.set_offline(True)
    page.evaluate("source.close(); follow()")
    expect(page.locator("#link")).to_contain_text("Not connected")
    page.context.set_offline(False)
    page.evaluate("follow()")
    expect(page.locator("#link")).to_have_text("Live")


@pytest.mark.parametrize("clients", [10, pytest.param(200, marks=pytest.mark.extended)])
def test_200_runs_and_10000_rounds_do_not_slow_the_page_down(window, board, clients):
    address, runs = board
    long = written.begun(runs / "long/long", clients=clients, labels=10, rounds=10_000)
    written.write_long(long, 10_000, clients=clients, labels=10)
    for at in range(200):
        Run.create(runs / f"long/run-{at}", (long.path / "experiment.toml").read_text())
    page = window(f"{address}?run=long/long")
    expect(page.locator("#count")).to_have_text("209 runs")
    page.wait_for_function("() => document.querySelector('[data-figure=accuracy]')?.calcdata?.[0]?.length > 100")
    assert page.evaluate("document.querySelector('[data-figure=accuracy]').calcdata[0].length") <= 1000
    expect(page.locator("#outcome")).to_contain_text("after 10000 of 10000 rounds")
    shutil.rmtree(runs / "long")
