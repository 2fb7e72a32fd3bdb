"""What becomes of runs whose sites and servers stop, die, lie, and come back. Real processes, one federation."""

from __future__ import annotations

import signal

import pytest
import torch
from staging import SMALL, A, B, C, distance, model, of, taught

from fedstrata import train
from fedstrata.deploy import processes
from fedstrata.runs.folder import Run

pytestmark = pytest.mark.sites


@pytest.fixture
def sites(federation):
    """Return the federation, with everybody there."""
    federation.mend()
    return federation


def test_a_site_that_lies_is_refused_and_one_that_is_late_is_used_again(sites, tmp_path):
    lies = {2: ("nan", "not finite"), 3: ("shapes", "another shape"), 4: ("huge", "no training gives")}
    for number, (word, _) in lies.items():
        sites.wish("b", number, word)
    pause = sites.wish("c", 5, "hold")
    asked = SMALL | {"train.rounds": 9, "train.evaluate.every": 9}
    with sites.running(tmp_path / "run", asked, stream=True, deadline=30.0) as run:
        run.holds("c", 5)
        sites.commands["a"].signal(signal.SIGSTOP)
        pause.unlink()
        dropped = run.reaches("dropped", clients=[A])  # in this round, or if it was ready before, in the next
        sites.commands["a"].signal(signal.SIGCONT)
        done = run.ends()
    for number, (_, why) in lies.items():
        said = [e["why"] for kind in ("site_refused", "dropped") for e in of(done, kind) if e["round"] == number]
        assert any(why in text for text in said), number
        assert taught(done)[number] == [A, C]
    assert dropped["why"] == "no answer"
    assert taught(done)[dropped["round"]] == [B, C]
    assert taught(done)[9] == [A, B, C]
    assert torch.isfinite(model(done)).all()


@pytest.mark.parametrize(
    "wish",
    [{"system.wait_for": 0.6}, {"system.over_select": 1.5, "train.clients_per_round": 2}],
    ids=["k of n", "over-selection"],
)
def test_nobody_waits_for_a_site_that_hangs_where_enough_others_replied(sites, tmp_path, wish):
    pauses = [sites.wish(site, 2, "hold") for site in ("b", "c")]  # one reply is not enough
    asked = SMALL | {"train.rounds": 4, "train.evaluate.every": 4} | wish
    with sites.running(tmp_path / "run", asked, stream=True) as run:
        run.holds("b", 2)
        run.holds("c", 2)
        sites.commands["a"].signal(signal.SIGSTOP)
        for pause in pauses:
            pause.unlink()
        run.reaches("dropped", round=4, clients=[A])  # without any deadline; only evaluation waits for everybody
        sites.commands["a"].signal(signal.SIGCONT)
        done = run.ends()
    assert taught(done)[3] == taught(done)[4] == [B, C]


def test_labels_of_a_site_that_dies_are_queued_again(sites, tmp_path):
    asked = {"method.name": "stratify-batch", "model.name": "mlp", "model.norm": "batch", "train.rounds": 1}
    sites.wish("c", 1, "hold gradient")
    with sites.running(
        tmp_path / "run", SMALL | asked | {"method.schedule.length": 100, "train.batch_size": 20}
    ) as run:
        run.holds("c", 1)
        sites.commands["c"].kill_site()
        done = run.ends()
    (schedule,) = of(done, "schedule")
    assert schedule["gone"] == [C]
    assert [e["stratum"] for e in of(done, "label_dropped")] == schedule["dropped"], "labels that nobody else has"
    assert schedule["exposure"] == [0 if label in schedule["dropped"] else 10 for label in range(10)]
    assert sum(schedule["exposure"]) >= 50, "what it had reserved was given by the others"
    assert [(e["step"], e["clients"]) for e in of(done, "dropped")] == [(1, [C])]


def test_a_site_that_is_started_again_goes_on_in_the_run_with_its_state(sites, tmp_path):
    asked = SMALL | {"method.name": "scaffold", "train.rounds": 4}
    here = train(overrides=asked, out=tmp_path / "here")
    sites.wish("b", 2, "note")
    pause = sites.wish("c", 2, "hold")
    with sites.running(tmp_path / "there", asked, stream=True) as run:
        run.did("b", 2)
        run.holds("c", 2)
        left = sites.commands["b"].family()
        sites.commands["b"].process.kill()  # what it started ends by itself, or by the next one
        sites.commands["b"].process.wait()
        run.joins_again("b", "--patience", "0")
        assert not processes.alive(left)
        pause.unlink()
        done = run.ends()
    assert distance(here, done) < 1e-9


def test_a_site_that_comes_back_with_other_data_is_asked_what_they_are(sites, tmp_path):
    sites.wish("c", 2, "hold")
    pause = sites.wish("b", 3, "hold")
    asked = SMALL | {"method.name": "flips", "train.clients_per_round": 3, "train.rounds": 4}
    with sites.running(tmp_path / "run", asked, stream=True) as run:
        run.holds("c", 2)
        sites.commands["c"].kill_site()
        run.joins_again("c", "--partition", "1/3")
        run.holds("b", 3)
        pause.unlink()
        done = run.ends()
    (changed,) = of(done, "site_changed")
    assert (changed["site"], changed["client"]) == ("c", C)
    assert changed["samples"] != changed["before"]
    assert taught(done) == {1: [A, B, C], 2: [A, B], 3: [A, B], 4: [A, B, C]}
    c = sites.commands["c"]
    members = c.family()
    assert len(members) >= 3, "the command, what it started of Flower, and the site"
    c.process.terminate()
    c.ends(0)
    assert "has ended" in c.said
    assert processes.alive(members) == set()


def test_a_server_that_was_killed_goes_on_from_its_checkpoint(sites, tmp_path):
    asked = SMALL | {"method.name": "scaffold", "train.rounds": 4}
    here = train(overrides=asked, out=tmp_path / "here")
    pause = sites.wish("c", 3, "hold")
    with sites.running(tmp_path / "there", asked, stream=True) as run:
        run.holds("c", 3)
        sites.commands["server"].kill()
        pause.unlink()
        sites.start_server()
        again = ("run", "--resume", str(tmp_path / "there"), "--stream", "--server", sites.address)
        sites.call(*again)
    done = Run.open(tmp_path / "there")
    assert distance(here, done) < 1e-9
    assert [e["wall"]["round"] for e in of(done, "resumed")] == [2]


@pytest.mark.parametrize("kept", [True, False], ids=["the sum was kept", "the sum was lost"])
def test_a_server_that_was_killed_gets_no_second_sum_under_masks(sites, tmp_path, kept):
    """It dies when it knows the sum of round 2, before its checkpoint, and asks again."""
    asked = SMALL | {"train.rounds": 3, "train.evaluate.every": 2, "privacy.aggregate": "masked"}
    asked |= {"privacy.encoding.bits": 64, "privacy.encoding.fraction": 40}
    pause = sites.wish("c", 0, "hold")  # evaluation comes after the sum
    with sites.running(tmp_path / "run", asked, stream=True) as run:
        run.holds("c", 0)
        sites.commands["server"].kill()
        pause.unlink()
        sums = list((tmp_path / "run/checkpoint").glob("sum-*"))
        assert [file.name for file in sums] == ["sum-1-0"]
        if not kept:
            sums[0].unlink()
        sites.start_server()
        sites.call("run", "--resume", str(tmp_path / "run"), "--stream", "--server", sites.address)
    done = Run.open(tmp_path / "run")
    refused = {e["site"]: e["why"] for e in of(done, "site_refused")}
    if kept:
        assert not refused
        assert distance(train(overrides=asked, out=tmp_path / "here"), done) < 1e-9
    else:
        assert set(refused) == {"a", "b", "c"}
        assert all("gave its update for round 2, step 0" in why for why in refused.values())
    assert [e["round"] for e in of(done, "sum_reused")] == ([2] if kept else [])
    assert [e["round"] for e in of(done, "no_update")] == ([] if kept else [2])
