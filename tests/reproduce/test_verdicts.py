"""Verdicts by rule, on figures made up so that the answer is known."""

import json
import math
from dataclasses import replace

import pytest
from paper_tables import TEXT

import fedstrata
from fedstrata.core.errors import RequestError
from fedstrata.reproduce.figures import DIFFERS, HOLDS, OPEN, costs_of, departures, figure_of
from fedstrata.reproduce.results import Results, methods_beside
from fedstrata.reproduce.show import cost_grid_of, describe, from_printed, text_of
from fedstrata.reproduce.table import Wanted, find_table, read_table
from fedstrata.reproduce.verdict import BETTER, FAILS, IN_ORDER, NOT_INFERIOR, OTHER, SMALLER, WORSE, contrast, judge

TABLE = read_table(TEXT)
WOBBLE = (-0.002, -0.001, 0.0, 0.0, 0.001, 0.002)  # of six seeds, mean 0


def results(folder, by_row, seeds=6, table=TABLE):
    """Write results in which a row has these figures, a condition each, with a wobble over the seeds."""
    runs = [
        {
            "condition": condition,
            "method": method,
            "seed": seed,
            "experiment": table.digest(Wanted(condition, method, seed)),
            "figures": {"accuracy": value + WOBBLE[seed] * (1 if method == "fedavg" else 2)},
            "costs": {"seconds": 3.0},
            "data": {"samples": 1438, "test": 359, "complete": True},
            "device": "cpu",
        }
        for method, values in by_row.items()
        for condition, value in zip(table.conditions, values, strict=True)
        for seed in range(seeds)
    ]
    (folder / f"{table.id}.json").write_text(json.dumps({"id": table.id, "runs": runs}))
    return Results(table, folder)


def word(*args, **more):
    own = results(*args, **more)
    return judge({own.table.id: own})[own.table.id].word


@pytest.mark.parametrize(("ours", "said"), [(0.03, BETTER), (-0.002, NOT_INFERIOR), (-0.03, WORSE), (None, OPEN)])
def test_a_method_of_ours_beside_a_table(tmp_path, ours, said):
    results(tmp_path, {"fedavg": (0.50, 0.60), "fedprox": (0.52, 0.64)})
    beside = TABLE.beside("feddyn")
    if ours is not None:
        results(tmp_path, {"feddyn": (0.52 + ours, 0.64 + ours)}, table=beside)
        (tmp_path / f"{beside.id}.json").rename(tmp_path / "X1-with-feddyn.json")
    own = Results(beside, tmp_path)
    assert judge({beside.id: own})[beside.id].word == said
    assert contrast(own).mean == (None if ours is None else pytest.approx(ours))


def test_costs_stand_beside_the_paper_s_in_times_the_first_row_s(tmp_path):
    """Three seconds a run here; the paper's row takes half as much again as its first one, in its own unit."""
    table = replace(TABLE, costs={"seconds": {"fedavg": (40.0, math.nan), "fedprox": (60.0, 7.0)}})
    own = results(tmp_path, {"fedavg": (0.5, 0.6), "fedprox": (0.5, 0.6)}, table=table)
    lines = [line[1:] for line in cost_grid_of(own, "seconds").lines]
    assert lines[:2] == [["fedavg", "40", "3", "1", "1"], ["fedprox", "60", "3", "1.5", "1"]]
    assert lines[2:] == [["fedavg", "-", "3", "-", "1"], ["fedprox", "7", "3", "-", "1"]]
    assert costs_of(own, "seconds")[2]["paper_in_times"] is None
    assert "seconds of a run" in text_of(own, judge({table.id: own})[table.id])
    nothing = [line[-3:] for line in cost_grid_of(Results(table, tmp_path / "none"), "seconds").lines]
    assert nothing == [["-", "1", "-"], ["-", "1.5", "-"], ["-", "-", "-"], ["-", "-", "-"]]


def test_the_paper_s_own_figures_hold(tmp_path):
    assert word(tmp_path, {"fedavg": (0.50, 0.60), "fedprox": (0.52, 0.64)}) == HOLDS


def test_a_figure_may_be_two_of_its_deviations_away(tmp_path):
    def verdict(own, row, condition):
        return figure_of(own, "accuracy", row, condition).verdict

    own = results(tmp_path, {"fedprox": (0.525, 0.67)})
    assert verdict(own, "fedprox", "few") == HOLDS  # a deviation of 0.1 points: one point of room
    assert verdict(own, "fedprox", "many") == HOLDS  # a deviation of 2 points: four points of room
    assert (verdict(own, "fedavg", "few"), verdict(own, "fedlc", "few")) == (OPEN, "")  # not run, not printed
    own = results(tmp_path, {"fedprox": (0.535, 0.681)})
    assert verdict(own, "fedprox", "few") == DIFFERS
    assert verdict(own, "fedprox", "many") == OPEN  # one end of the interval is within four points, the other is not


def test_a_figure_is_told_with_its_interval_and_difference(tmp_path):
    own = figure_of(results(tmp_path, {"fedprox": (0.53, 0.64)}), "accuracy", "fedprox", "few")
    assert (own.paper, own.seeds) == (0.52, 6)
    assert own.low < own.mean < own.high
    assert own.difference == pytest.approx(0.01)
    assert own.to_json()["difference"] == pytest.approx(0.01)


def test_the_order_holds_where_other_figures_show_the_same_sign_in_every_pair(tmp_path):
    own = results(tmp_path, {"fedavg": (0.70, 0.80), "fedprox": (0.72, 0.83)})
    found = contrast(own)
    assert found.mean == pytest.approx(0.025)
    assert found.claimed == pytest.approx(0.03)
    assert found.p == pytest.approx(2 / 2**12)  # twelve pairs, all positive
    assert (found.seeds, found.wanted) == (6, 6)
    assert judge({"X1": own})["X1"].word == IN_ORDER


def test_a_gain_in_every_pair_that_is_far_below_the_claim_holds_in_order_alone(tmp_path):
    assert word(tmp_path, {"fedavg": (0.70, 0.80), "fedprox": (0.705, 0.805)}) == SMALLER


def test_where_no_baseline_is_printed_there_is_nothing_to_contrast():
    part = read_table(TEXT.replace("fedavg = [50.0, 60.0]", "fedavg = [50.0, nan]"))
    assert {one.condition for one in part.wanted() if part.primary(one)} == {"few"}


def test_a_gain_far_below_the_claim_does_not_hold(tmp_path):
    assert word(tmp_path, {"fedavg": (0.70, 0.80), "fedprox": (0.69, 0.79)}) == FAILS
    assert word(tmp_path, {"fedavg": (0.70, 0.80), "fedprox": (0.70, 0.80)}) == FAILS  # 0 is below half of 3 points


def test_too_few_seeds_leave_it_open(tmp_path):
    assert word(tmp_path, {"fedavg": (0.50, 0.60), "fedprox": (0.52, 0.64)}, seeds=5) == OPEN
    assert word(tmp_path, {"fedavg": (0.50, 0.60)}) == OPEN


def test_holm_counts_the_tables_of_a_paper_whether_they_were_run_or_not(tmp_path):
    own = results(tmp_path, {"fedavg": (0.70, 0.80), "fedprox": (0.72, 0.83)})
    alone = judge({"X1": own})["X1"]
    assert alone.p_holm == pytest.approx(alone.contrast.p)
    others = {name: Results(replace(TABLE, id=name), tmp_path) for name in ("X2", "X3")}
    without = {"X4": Results(replace(TABLE, id="X4", baselines=[]), tmp_path)}  # makes no contrast
    among = judge({"X1": own, **others, **without})
    assert among["X1"].p_holm == pytest.approx(3 * alone.contrast.p)
    assert among["X2"].p_holm is None


def test_a_reading_stands_in_the_place_of_its_table_among_those_of_a_paper(tmp_path):
    table = replace(TABLE, readings={"many alone": {"compare": {"conditions": ["many"]}}})
    own = results(tmp_path, {"fedavg": (0.70, 0.80), "fedprox": (0.72, 0.83)}, table=table)
    many = Results(table.read_as("many alone"), tmp_path)
    judged = judge({"X1": own, "X2": Results(replace(TABLE, id="X2"), tmp_path), many.table.id: many})
    assert judged["X1"].p_holm == pytest.approx(2 * judged["X1"].contrast.p)  # of two tables: the reading is none
    assert judged[many.table.id].p_holm == pytest.approx(2 * judged[many.table.id].contrast.p)


def test_columns_without_runs_are_left_out_of_the_claim_that_ours_stands_beside(tmp_path):
    """The paper prints 2 and 4 points; there is one seed of the second column alone."""
    results(tmp_path, {"fedavg": (0.70, 0.80), "fedprox": (0.72, 0.83)}, seeds=1)
    kept = json.loads((tmp_path / "X1.json").read_text())
    kept["runs"] = [run for run in kept["runs"] if run["condition"] == "many"]
    (tmp_path / "X1.json").write_text(json.dumps(kept))
    own = Results(TABLE, tmp_path)
    found = contrast(own)
    assert (found.claimed, found.claimed_there) == (pytest.approx(0.03), pytest.approx(0.04))
    assert (found.conditions, found.interval, found.p) == ((1, 2), None, None)  # one seed: nothing is sure
    assert "prints +3.00 points, +4.00 points in the 1 of 2 columns that have runs" in " ".join(
        describe(own, judge({"X1": own})["X1"])
    )


def test_a_reading_of_one_row_takes_the_other_rows_from_the_table(tmp_path):
    more = {
        "variant": [{"name": "fedprox", "method": {"name": "fedprox", "corrections": [{"kind": "prox", "mu": 1.0}]}}]
    }
    table = replace(TABLE, readings={"pulled more": more, "another row": {"compare": {"method": "fedlc"}}})
    results(tmp_path, {"fedavg": (0.50, 0.60), "fedprox": (0.52, 0.64)}, table=table)
    other = Results(table.read_as("pulled more"), tmp_path)
    assert {row for _, row, _ in other.runs} == {"fedavg"}
    assert {one.method for one in other.missing()} == {"fedprox"}
    assert (other.own_runs, other.outdated) == ({}, 0)
    row = Results(table.read_as("another row"), tmp_path)
    assert {one.method for one in row.missing()} == {"fedlc"}
    assert row.table.figure("accuracy", "fedlc", "few") == 0.52  # what was printed of the paper's own method
    assert row.path.name == "X1-as-another-row.json"
    with pytest.raises(RequestError, match="fedprx"):
        _ = replace(TABLE, readings={"no": {"variant": [{"name": "fedprx"}]}}).read_as("no").rows


def test_a_reading_may_look_at_some_conditions_alone_or_at_another_figure_of_the_same_runs(tmp_path):
    readings = {
        "many alone": {"compare": {"conditions": ["many"]}},
        "longer": {"train": {"epochs": 2}, "compare": {"metric": "best_accuracy"}},
        "longer, at the end": {"train": {"epochs": 2}},
    }
    table = replace(TABLE, readings=readings)
    results(tmp_path, {"fedavg": (0.50, 0.60), "fedprox": (0.40, 0.66)}, table=table)
    many = Results(table.read_as("many alone"), tmp_path)
    assert (many.table.conditions, len(many.runs), many.missing(), many.outdated) == (["many"], 12, [], 0)
    assert contrast(many).mean == pytest.approx(0.06)
    assert contrast(many).claimed == pytest.approx(0.04)
    assert [table.read_as(name).kept_as for name in readings] == ["X1", "X1 as longer", "X1 as longer"]
    assert [table.read_as(name).same_runs for name in readings] == [True, False, True]
    longer = table.read_as("longer")
    results(tmp_path, {"fedavg": (0.50, 0.60)}, table=replace(longer, id="X1-as-longer"))
    assert not Results(longer, tmp_path).runs, "they do not have the figure"
    assert len(Results(table.read_as("longer, at the end"), tmp_path).runs) == 12


def test_what_cannot_be_compared_says_so(tmp_path):
    table = read_table(TEXT.replace('status = "A"', 'status = "A"\nnot_comparable = "no such data"'))
    assert word(tmp_path, {"fedavg": (0.50, 0.60), "fedprox": (0.52, 0.64)}, table=table) == OTHER


def test_a_table_without_a_contrast_holds_by_its_figures(tmp_path):
    table = read_table(TEXT.replace("seeds = 6", "seeds = 6\nbaselines = []"))
    assert table.baseline("few") is None
    assert word(tmp_path, {"fedprox": (0.52, 0.64)}, table=table) == HOLDS
    assert word(tmp_path, {"fedprox": (0.50, 0.64)}, table=table) == OPEN


def test_fewer_rounds_are_better(tmp_path):
    text = TEXT.replace("figures.accuracy", 'figures."rounds_to:0.5"').replace("deviations.accuracy", 'costs."seconds"')
    table = read_table(text.replace("[52.0, 64.0]", "[40, 30]").replace('"other"', '"best_accuracy_round"'))
    assert table.baseline("few") == "fedavg"
    assert table.figure("rounds_to:0.5", "fedprox", "few") == 40


def test_entries_of_other_settings_do_not_count(tmp_path):
    own = results(tmp_path, {"fedavg": (0.50, 0.60), "fedprox": (0.52, 0.64)})
    assert (len(own.runs), own.outdated) == (24, 0)
    changed = read_table(TEXT.replace("clients_per_round = 2", "clients_per_round = 3"))
    assert (len(Results(changed, tmp_path).runs), Results(changed, tmp_path).outdated) == (0, 24)


def test_two_processes_keep_what_both_ran(tmp_path):
    first, second = Results(TABLE, tmp_path), Results(TABLE, tmp_path)
    run = fedstrata.train(overrides={"train.rounds": 1}, out=tmp_path / "run")
    first.add(Wanted("few", "fedavg", 0), run)
    second.add(Wanted("few", "fedprox", 0), run)
    assert [key[1] for key in Results(TABLE, tmp_path).runs] == ["fedavg", "fedprox"]


def test_an_entry_says_whether_local_steps_were_compiled(tmp_path):
    kept = Results(TABLE, tmp_path)
    for seed, (told, compiled) in enumerate((([], False), ([True], True), ([True, False], False))):
        run = fedstrata.train(overrides={"train.rounds": 1, "engine.device": "cpu"}, out=tmp_path / f"run-{seed}")
        for word in told:  # as on a GPU, where a compiled step may be refused later
            run.log("engine", wall={"remark": None, "compiled": word})
        kept.add(Wanted("few", "fedavg", seed), run)
        entries = json.loads(kept.path.read_text())["runs"]
        assert next(e["compiled"] for e in entries if e["seed"] == seed) is compiled


@pytest.mark.parametrize(
    "text",
    [
        '{"runs": [{"condition": 3}',
        "[]",
        '{"id": "X1", "runs": [{"condition": "few", "method": "fedavg", "seed": 0}]}',
    ],
)
def test_damaged_results_are_refused(tmp_path, text):
    (tmp_path / "X1.json").write_text(text)
    with pytest.raises(RequestError, match=r"X1\.json is damaged.*move it away"):
        Results(TABLE, tmp_path)
    (tmp_path / "X1.json").rename(tmp_path / "X1-with-feddyn.json")
    with pytest.raises(RequestError, match=r"X1-with-feddyn\.json is damaged"):
        methods_beside(TABLE, tmp_path)


def test_where_a_table_is_broken_every_part_names_setting_and_method(tmp_path):
    own = results(tmp_path, {"fedavg": (0.50, 0.60), "fedprox": (0.52, 0.64)})
    lines = text_of(own, judge({"X1": own})["X1"], 60).splitlines()
    parts = [at for at, line in enumerate(lines) if line.startswith("setting ")]
    assert len(parts) > 1
    for at in parts:
        assert lines[at].split()[:2] == ["setting", "method"]
        assert [line.split()[0] for line in lines[at + 1 : at + 3]] == ["few", "fedprox"]
        assert lines[at + 1].index("fedavg") == lines[at + 2].index("fedprox")  # words stand at the left


def test_settings_are_told_in_few_words(tmp_path):
    own = Results(find_table("B2"), tmp_path)
    shown = text_of(own, judge({"B2": own})["B2"], 400)
    assert "train.optimizer = sgd(momentum=0.0001, weight_decay=1e-05), train.evaluate.every = 1" in shown


def test_the_primary_contrast_comes_first_and_has_more_seeds():
    wanted = TABLE.wanted()
    assert len(wanted) == 2 * 2 * 6 + 2 * 1 * 2  # two rows with six seeds, one with two, under two conditions
    assert all(TABLE.primary(one) for one in wanted[:24])
    assert {one.method for one in wanted[24:]} == {"fedlc"}
    assert {one.method for one in TABLE.read_as("more local work").wanted()} == {"fedavg", "fedprox"}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("fedavg = [50.0, 60.0]", "fedavg = [50.0]", "fedavg must be a row with 2 figures"),
        ('method = "fedprox"', 'method = "fedpro"', "is unknown"),
        ('what = "Table 1, digits"', 'what = "a"\nwhatever = 1', "paper.whatever"),
        ("clients_per_round = 2", "clients_per_rounds = 2", "X1: train.clients_per_rounds"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(old, new, said):
    with pytest.raises(RequestError, match=said):
        read_table(TEXT.replace(old, new)).check()


def test_it_is_told_which_side_of_a_contrast_is_away_from_the_paper(tmp_path):
    own = results(tmp_path, {"fedavg": (0.55, 0.67), "fedprox": (0.51, 0.64)})  # printed: 50, 60 and 52, 64
    assert departures(own) == pytest.approx((-0.005, 0.06))
    assert "fedprox -0.50 points, its strongest baselines +6.00 points" in from_printed(own)
    assert departures(results(tmp_path, {"fedprox": (0.51, 0.64)})) is None
