"""The colours of the figures, as people see them who see fewer."""

from __future__ import annotations

import json
from itertools import combinations, pairwise

import numpy as np
import pytest
from written import begun, write_rounds

from fedstrata import plots
from fedstrata.board.views import RunReader
from fedstrata.methods.recipes import PARTS
from fedstrata.report.figures import curves
from fedstrata.report.figures.colours import DASHES, KNOWN, LINES, SLOTS, line_style, line_styles
from fedstrata.report.figures.style import APART, SCALES, SHARE, YES, template
from fedstrata.report.gather import gather
from fedstrata.report.page import draw
from fedstrata.runs.compare.friedman import friedman

# Machado, Oliveira and Fernandes 2009, full severity, on linear light
SEEN_AS = {
    "all colours": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
WHITE = XYZ.sum(1)


def light(colour: str) -> np.ndarray:
    """Return linear light, [3]."""
    parts = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(linear: np.ndarray) -> np.ndarray:
    """Return CIE Lab: distances are about what people see; 2 is just visible."""
    ratio = XYZ @ linear / WHITE
    x, y, z = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(one: str, other: str) -> float:
    low, high = sorted(float(XYZ[1] @ light(colour)) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def test_the_measures_know_black_and_white():
    assert lab(light("#ffffff")) == pytest.approx([100, 0, 0], abs=0.01)
    assert contrast("#000000", "#ffffff") == pytest.approx(21)


@pytest.mark.parametrize("sight", SEEN_AS)
def test_lines_can_be_told_apart(sight):
    seen = [lab(np.clip(np.array(SEEN_AS[sight]) @ light(colour), 0, 1)) for colour in LINES]
    assert min(np.linalg.norm(a - b) for a, b in combinations(seen, 2)) > 15


@pytest.mark.parametrize("dark", [False, True])
def test_lines_and_letters_stand_out_from_the_paper(dark):
    layout = template(dark).layout
    assert min(contrast(colour, layout.paper_bgcolor) for colour in LINES) > 2
    assert contrast(layout.font.color, layout.paper_bgcolor) > 7


def test_lines_that_lie_on_each_other_or_are_printed_grey_differ_in_their_dashes():
    styles = [(line["color"], line["dash"]) for line in map(line_style, range(len(LINES) * len(DASHES)))]
    assert len(set(styles)) == len(styles)
    assert all(one[1] != next_one[1] for one, next_one in pairwise(styles))


# ---- a method has one colour


def test_every_recipe_has_a_line_of_its_own():
    assert set(PARTS) <= set(KNOWN)
    few = line_styles((name, name) for name in KNOWN[: len(LINES)])
    assert len({style["color"] for style in few.values()}) == len(LINES)


def test_methods_that_are_often_compared_have_different_colours():
    often = ("fedavg", "fedprox", "scaffold", "feddyn", "fedadam", "fedyogi", "flips", "strata")
    assert len({style["color"] for style in line_styles((name, name) for name in often).values()}) == len(often)


def test_a_method_keeps_its_colour_whatever_it_is_shown_with():
    alone = {name: line_styles([(name, name)])[name]["color"] for name in (*KNOWN, "mine", "another")}
    together = line_styles((name, name) for name in reversed([*KNOWN[:20], "mine"]))
    assert {name: style["color"] for name, style in together.items()} == {name: alone[name] for name in together}


def test_lines_of_one_method_differ_in_their_dashes():
    styles = line_styles((f"{data}/fedavg", "fedavg") for data in ("a", "b", "c", "d")).values()
    assert {style["color"] for style in styles} == {LINES[0]}
    assert len({style["dash"] for style in styles}) == 4
    many = line_styles((str(i), "fedavg") for i in range(SLOTS))
    assert len({(style["color"], style["dash"]) for style in many.values()}) == SLOTS


def test_the_colour_is_the_same_in_a_comparison_in_a_run_alone_and_on_the_board(tmp_path):
    cell = begun(tmp_path / "c" / "flips" / "seed-0", method="flips")
    lone = begun(tmp_path / "lone-7", method="flips")
    write_rounds(cell, 1, 2)
    write_rounds(lone, 1, 2)
    reader = RunReader(cell.path, "c/flips/seed-0")  # as the board reads it
    reader.refresh()
    shown = [gather([tmp_path / "c"]).runs_data, gather([lone.path]).runs_data, [reader.run_data]]
    colours = {curves.curves(own, "loss_test").data[-1].line.color for own in shown}
    colours.add(plots.metric(lone.path, "loss_test").data[-1].line.color)
    assert colours == {line_styles([("flips", "flips")])["flips"]["color"]}


def tuned(root, **chosen):
    """Write a comparison whose rows were tuned: OUT/CONDITION/METHOD/SETTING/seed-N; settings by row and condition."""
    cells = []
    for method, settings in chosen.items():
        for at, setting in enumerate(settings):
            place = f"alpha={at}/{method}/{setting}/seed-0"
            write_rounds(begun(root / place, method="fedavg" if method == "slow" else method), 1, 2)
            cells.append({"condition": f"alpha={at}", "method": method, "seed": 0, "run_dir": place})
    told = {"cells": cells, "trials": [], "rows": [], "friedman": None}
    if len(chosen) > 1:
        told["friedman"] = friedman("accuracy", {name: [at, at + 1] for at, name in enumerate(chosen)}).to_json()
    (root / "comparison.json").write_text(json.dumps(told))
    return [root / cell["run_dir"] for cell in cells]


def test_a_method_has_one_colour_whatever_setting_was_chosen_for_it(tmp_path):
    methods = {"fedavg": ("lr=0.1", "lr=0.02"), "fedprox": ("lr=0.1", "lr=0.1"), "slow": ("lr=0.02", "lr=0.1")}
    runs = tuned(tmp_path / "c", **methods)
    shown = {own.name: own.figure for own in draw(gather([tmp_path / "c"]))}
    styles = {name: (style["color"], style["dash"]) for name, style in line_styles((n, n) for n in methods).items()}
    for name in ("accuracy-alpha-0", "accuracy-alpha-1", "critical-difference"):
        lines = {one.name: (one.line.color, one.line.dash) for one in shown[name].data if one.name in methods}
        assert lines == styles
    for run in runs:  # each alone, as a notebook or the board reads it
        drawn = curves.curves(gather([run]).runs_data, "loss_test").data[-1].line
        assert (drawn.color, drawn.dash) == styles[run.parts[-3]]


def test_a_condition_of_a_tuned_comparison_is_read_by_its_methods_not_by_their_settings(tmp_path):
    tuned(tmp_path / "c", fedavg=("lr=0.1", "lr=0.02"), slow=("lr=0.02", "lr=0.1"))
    found = gather([tmp_path / "c" / "alpha=1"]).runs_data
    told = [(run_data.group, run_data.row, run_data.line_name) for run_data in found]
    assert told == [("fedavg",) * 3, ("slow",) * 3]


def test_lines_of_two_names_do_not_depend_on_who_comes_first():
    names = ["fedprox", *(f"variant {at}" for at in range(40)), "fedavg", "fedprox(mu=0.1)"]
    styles = [line_styles((name, name) for name in order) for order in (names, names[::-1])]
    assert styles[0] == styles[1]
    assert styles[0]["fedprox"] == line_styles([("fedprox", "fedprox")])["fedprox"]


def test_a_row_has_the_colour_of_the_folder_that_its_runs_lie_in():
    styles = line_styles([("row", "fedprox(mu=0.1)")]) | line_styles([("folder", "fedprox-mu=0.1")])
    assert styles["row"] == styles["folder"]


@pytest.mark.parametrize("paper", ["light", "dark"])
def test_heat_maps_are_near_the_paper_where_there_is_little_and_far_from_it_where_there_is_much(paper):
    ground = template(paper == "dark").layout.paper_bgcolor
    for name in (SHARE, YES):
        least, *_, most = SCALES[paper][name]
        assert contrast(least, ground) < 1.3
        assert contrast(most, ground) > 4.5
    low, middle, high = (SCALES[paper][APART][at] for at in (0, 3, -1))
    assert contrast(middle, ground) < 1.3
    assert min(contrast(low, ground), contrast(high, ground)) > 4
    lightness = [lab(light(colour))[0] for colour in SCALES[paper][SHARE]]
    assert lightness == sorted(lightness, reverse=paper == "light")
