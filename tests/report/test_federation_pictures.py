"""Pictures of the federation: who holds what, rounds to be replayed, and what single methods did."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from reported import SMALL
from written import begun, write_rounds

from fedstrata import RequestError, plots, train
from fedstrata.report.gather import gather
from fedstrata.report.page import draw, page
from fedstrata.report.replay import CLIENTS, replay
from fedstrata.report.run_data import RunData
from fedstrata.testing import tiny_federation

COUNTS = [[0, 9, 1, 0], [8, 0, 0, 0], [0, 5, 0, 5], [6, 2, 0, 0]]


def made(path, counts=COUNTS, names=None, members=None):
    run = begun(path, clients=len(counts), labels=len(counts[0]))
    if names:
        text = (run.path / "events.jsonl").read_text()
        (run.path / "events.jsonl").write_text(
            text.replace('"clients": 4,', f'"clients": 4, "names": {json.dumps(names)},')
        )
    run.log("clients", counts=counts)
    if members:
        run.log("clusters", clusters=2, members=members)
    return run


def log_round(run, round, steps, **about):
    cost = {"bytes_up": 1000 * round, "bytes_down": 2000 * round, "bytes_p2p": 0}
    run.log("round", round=round, accuracy=0.25 * round, steps=steps, **cost, **about)


# ---- who holds what


def test_clients_with_the_same_labels_stand_together(tmp_path):
    heat, bars = plots.federation(made(tmp_path / "run").path).data
    assert heat.y == ("1", "3", "0", "2")  # most of label 0, the purest first; then most of label 1
    assert heat.z[2] == pytest.approx([0, 0.9, 0.1, 0])
    assert bars.x == (8, 8, 10, 10)


def test_clusters_that_the_method_found_stand_together_and_are_parted_by_lines(tmp_path):
    names = ["bonn", "graz", "oslo", "riga"]
    figure = plots.federation(made(tmp_path / "run", names=names, members=[0, 1, 1, 0]).path)
    clusters = [{"bonn", "riga"}, {"graz", "oslo"}]
    assert [set(figure.data[0].y[:2]), set(figure.data[0].y[2:])] in (clusters, clusters[::-1])
    assert [line.y0 for line in figure.layout.shapes] == [1.5]


def test_many_clients_are_shown_in_rows_of_similar_ones(tmp_path):
    counts = np.random.default_rng(0).integers(0, 9, (300, 4)).tolist()
    heat = plots.federation(made(tmp_path / "run", counts).path).data[0]
    assert len(heat.y) == 80
    assert np.allclose(np.sum(heat.z, axis=1), 1, atol=1e-3)


def test_who_holds_what_is_shown_once_for_paired_runs(tmp_path):
    for method in ("fedavg", "scaffold"):
        run = begun(tmp_path / method / "seed-0", method=method, clients=4)
        run.log("clients", counts=COUNTS)
        write_rounds(run, 1, 2, clients=4)
    assert [own.name for own in draw(gather([tmp_path])) if own.section == "federation"] == ["holds"]


def test_a_private_run_does_not_tell_who_holds_what(tmp_path):
    run = begun(tmp_path / "run")
    write_rounds(run, 1, 2)
    with pytest.raises(RequestError, match="label counts"):
        plots.federation(run.path)


# ---- rounds replayed


def test_a_replay_tells_whom_was_asked_who_was_late_and_what_went_up_and_down(tmp_path):
    run = made(tmp_path / "run", names=["bonn", "graz", "oslo", "riga"])
    log_round(run, 1, [{"kind": "loss", "clients": [0, 1, 2, 3]}, {"kind": "train", "clients": [0, 2], "missing": [3]}])
    run.log("dropped", round=2, step=0, clients=[1], why="late")
    log_round(run, 2, [{"kind": "train", "clients": [], "missing": [1]}])
    told = replay(RunData.read(run.path))
    named = [client["name"] for client in told["clients"]]
    assert named == ["graz", "riga", "bonn", "oslo"]
    (loss, asked), (lost,) = (round["steps"] for round in told["rounds"])
    assert (loss[0], len(loss[1])) == ("loss", 4)
    assert ({named[i] for i in asked[1]}, [named[i] for i in asked[2]]) == ({"bonn", "oslo"}, ["riga"])
    assert ([named[i] for i in lost[1]], [named[i] for i in lost[2]]) == ([], ["graz"])
    assert [(round["down"], round["up"]) for round in told["rounds"]] == [(2000, 1000), (2000, 1000)]
    assert told["rounds"][1]["why"] == "late"
    assert told["clients"][1]["mix"] == {"0": 0.75, "1": 0.25}


def test_the_page_and_a_notebook_hold_the_replay(tmp_path):
    run = made(tmp_path / "run")
    log_round(run, 1, [{"kind": "train", "clients": [0]}])
    for text in (page(gather([run.path])), plots.rounds(run.path).html):
        held = json.loads(re.search(r'id="replays">(.*?)</script>', text)[1])
        assert list(held) == ["fedavg"]
        assert "data-play" in text
    shown = plots.rounds(run.path)._repr_html_()
    assert shown.startswith("<iframe srcdoc=")
    assert len(plots.rounds(run.path).html) < 100_000  # it needs no plotting library


def test_too_many_clients_cannot_be_replayed(tmp_path):
    run = begun(tmp_path / "run", clients=CLIENTS + 1)
    log_round(run, 1, [{"kind": "train", "clients": [0]}])
    with pytest.raises(RequestError, match="more than 400 clients"):
        plots.rounds(run.path)


# ---- what single methods did


def test_hard_clients_are_those_that_train_in_several_steps(tmp_path):
    run = begun(tmp_path / "run", clients=4)
    for round, steps in ((1, [[0, 1, 2], [2, 1]]), (2, [[1, 2, 3], [2]])):
        for at, clients in enumerate(steps, 1):
            run.log("terraform", round=round, iteration=at, clients=clients, hard=[], tau=None, over=None)
        log_round(run, round, [{"kind": "train", "clients": clients} for clients in steps])
    heat = next(own.figure.data[0] for own in draw(gather([run.path])) if own.name == "hard-clients")
    assert list(heat.y) == ["2", "1", "0", "3"]
    assert np.asarray(heat.z).tolist() == [[2, 2], [2, 1], [1, 0], [0, 1]]


def test_the_turns_of_clusters_are_counted(tmp_path):
    run = made(tmp_path / "run", members=[0, 1, 1, 0])
    log_round(run, 1, [{"kind": "train", "clients": [1, 2]}])
    log_round(run, 2, [{"kind": "train", "clients": [0, 1]}])
    heat = next(own.figure.data[0] for own in draw(gather([run.path])) if own.name == "cluster-participation")
    assert np.asarray(heat.z).tolist() == [[0, 1], [2, 1]]


def test_samples_beyond_the_cut_are_drawn_for_each_client(tmp_path):
    run = begun(tmp_path / "run", clients=2)
    metrics = {"0": {"cut": 1.0, "biased": 0.2}, "1": {"cut": 1.0, "biased": 0.6}}
    log_round(run, 1, [{"kind": "train", "clients": [0, 1], "metrics": metrics}])
    log_round(run, 2, [{"kind": "train", "clients": [0], "metrics": {"0": metrics["0"]}}])
    heat = next(own.figure.data[0] for own in draw(gather([run.path])) if own.name == "biased")
    assert list(heat.y) == ["1", "0"]
    assert np.allclose(heat.z, [[0.6, np.nan], [0.2, 0.2]], equal_nan=True)


def test_the_schedule_that_is_drawn_is_the_one_that_was_followed(tmp_path):
    run = train(method="stratify-batch", overrides=SMALL, federation=tiny_federation(), out=tmp_path / "run")
    first, *later = (event for event in run.events() if event["event"] == "schedule")
    assert all("order" not in event for event in later)
    heat = next(figure.data[0] for figure in plots.method(run) if "schedule" in (figure.layout.title.text or ""))
    seen = np.asarray(heat.z)
    assert seen.sum(0).tolist() == [1.0] * len(first["order"])
    assert seen.argmax(0).tolist() == first["order"]
    assert len(first["order"]) == first["entries"]
    assert seen.sum(1).tolist() == first["exposure"]
