"""Label counts that Stratify's server must not learn: it is acted here, curious but honest, against transcripts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from fedstrata import Federation, RequestError, Stream, train
from fedstrata.core.client_context import ClientContext, Gradient
from fedstrata.core.client_parts import Client
from fedstrata.core.messages import REFUSED, Task
from fedstrata.core.rng import PRIVATE, Streams
from fedstrata.methods.schedules.lots import Lots
from studies import disclosure

PRF = {"privacy.labels": "prf"}
BINOMIAL = {"method.name": "stratify-batch", "method.schedule.clients": "binomial"}
MASKED = {"privacy.aggregate": "masked", "privacy.encoding.bits": 64, "privacy.encoding.fraction": 40}
SMALL = {"data.clients": 6, "model.hidden": (8,), "train.rounds": 1, "method.schedule.length": 120}
SMALL |= {"train.batch_size": 30, "engine.precision": "fp64"}


@pytest.fixture(scope="module")
def heard():
    return {name: disclosure.listen(asked) for name, asked in disclosure.MODES.items()}


def test_without_replacement_the_server_reads_every_count_off_refusals(heard):
    transcript, truth = heard["as printed"]
    bounds = disclosure.read(transcript)
    assert np.array_equal(bounds.low, truth)
    assert np.array_equal(bounds.high, truth)
    assert transcript.shown == transcript.figures > 0


@pytest.mark.parametrize("mode", [name for name in disclosure.MODES if name != "as printed"])
def test_with_masked_labels_an_epoch_tells_the_server_nothing_that_it_did_not_know_before(heard, mode):
    transcript, truth = heard[mode]
    assert len(transcript.steps) > 20
    assert transcript.shown == transcript.figures == 0
    assert not any(report.metrics.get(REFUSED) for _, _, reports in transcript.steps for report in reports)
    before = disclosure.read(replace(transcript, steps=[]))
    after = disclosure.read(transcript)
    assert np.array_equal(after.low, before.low)
    assert np.array_equal(after.high, before.high)
    assert after.exact(np.ones(len(truth), dtype=bool)) == 0
    for client, own in enumerate(truth):  # who works together with it gives its own counts away, and no other's
        both = disclosure.read(transcript, (client, own))
        others = np.arange(len(truth)) != client
        disclosure.check(both, truth)
        assert both.exact(others) == 0


def test_what_clients_that_draw_lots_send_looks_the_same_whatever_they_drew(heard):
    transcript, truth = heard["`binomial`"]
    for step, tasks, reports in transcript.steps:
        assert step.kind == "gradient"
        assert len({tuple(task.config.items()) for task in tasks}) == 1
        assert {task.client for task in tasks} == set(range(len(truth)))
        forms = {(r.samples, r.steps, r.nbytes, r.received, r.finite, tuple(r.metrics)) for r in reports}
        assert len(forms) == 1
        assert not any(r.aggregated or r.open_tensors for r in reports)
    work = {r.work for _, _, reports in transcript.steps for r in reports}
    assert len(work) > 3  # they did draw different numbers; this one is for the virtual clock, and stays at real sites


def test_the_page_shows_what_the_study_finds(heard, monkeypatch):
    known = {id(asked): heard[name] for name, asked in disclosure.MODES.items()}
    monkeypatch.setattr(disclosure, "listen", lambda asked: known[id(asked)])  # which takes long
    page = disclosure.PAGE.read_text()
    (shown,) = disclosure.SECTION.findall(page)
    assert shown == disclosure.table()


def test_single_samples_are_not_refused_either(tmp_path):
    asked = {"method.name": "stratify-single", "train.rounds": 1, "method.schedule.length": 600, **PRF}
    run = train(overrides=SMALL | asked, out=tmp_path / "run")
    (event,) = [event for event in run.events() if event["event"] == "schedule"]
    assert event["refused"] == 0
    assert not any("runs out" in said for said in run.summary["privacy"]["server"])
    asked = {key: value for key, value in (SMALL | asked).items() if key not in PRF}
    run = train(overrides=asked, out=tmp_path / "open")
    (event,) = [event for event in run.events() if event["event"] == "schedule"]
    assert event["refused"] > 0
    assert any("runs out" in said for said in run.summary["privacy"]["server"])


# ---- lots ------------------------------------------------------------------------------------------------------------


def drawing(labels, round, entries, totals, asked=2):
    """One client's lots for a batch; its gradient adds up one-hot labels."""
    client, streams = Client(0, np.arange(len(labels)), labels, 2), Streams(0)
    config = {"strata": (0, 1), "entries": entries, "totals": totals, "asked": asked}

    def gradient(positions):
        one_hot = torch.zeros(2).index_add(0, torch.from_numpy(labels[positions]), torch.ones(len(positions)))
        return Gradient(one_hot, torch.tensor(1.0))

    rng = lambda purpose, **where: streams(purpose, **({"round": round, "client": 0} | where))  # noqa: E731
    return ClientContext(client, Task(0, round, 0, config=config), {}, {}, 1, 4, 0.1, rng, None, gradient, None)


def test_a_client_gives_binomially_many_samples_and_the_mean_over_all_is_that_of_a_batch():
    labels, entries, totals = np.array([0, 0, 0, 1]), (10, 20), (30, 40)
    drawn = np.array(
        [np.bincount(labels[Lots().draw(drawing(labels, r, entries, totals))], minlength=2) for r in range(4000)]
    )
    f, chances = np.array(entries), np.array([3 / 30, 1 / 40])
    assert drawn.mean(0) == pytest.approx(f * chances, abs=0.05)
    assert drawn.var(0) == pytest.approx(f * chances * (1 - chances), abs=0.05)
    updates = [Lots().gradient(drawing(labels, r, entries, totals)) for r in range(4000)]
    mean = torch.stack([done.aggregated["update"] for done in updates]).mean(0)
    assert mean.tolist() == pytest.approx((-2 / 30 * f * chances).tolist(), abs=0.005)  # of two who are asked
    assert {done.samples for done in updates} == {30}
    alone = Lots().draw(drawing(labels, 0, entries, (3, 1)))  # it holds all there are: it gives all, some of them again
    assert np.bincount(labels[alone]).tolist() == [10, 20]


def test_masked_lots_give_the_open_run_s_model_and_lose_nothing(tmp_path):
    runs = [
        train(overrides=SMALL | BINOMIAL | wish, out=tmp_path / str(i))
        for i, wish in enumerate([{"model.norm": "batch"}, {"model.norm": "batch", **MASKED}])
    ]
    first, second = (torch.cat([t.double().reshape(-1) for _, t in sorted(run.model().items())]) for run in runs)
    assert float((first - second).abs().max()) < 1e-6
    for run in runs:
        (event,) = [event for event in run.events() if event["event"] == "schedule"]
        assert (event["entries"], event["lost"], event["refused"]) == (120, 0, 0)
    assert any("fallback" in event["event"] and "draws" in event["why"] for event in runs[0].events())


def test_lots_weigh_clients_by_what_they_hold(tmp_path, monkeypatch):
    """One of ten holds 70 %: it gives 70 % of the samples, though nobody knows that it does."""
    given, draw = np.zeros(10), Lots.draw

    def watched(self, context):
        drawn = draw(self, context)
        given[context.client.id] += len(drawn)
        return drawn

    monkeypatch.setattr(Lots, "draw", watched)
    x, y = load_digits(return_X_y=True)
    parts = [np.arange(980), *np.array_split(np.arange(980, 1400), 9)]
    federation = Federation.from_arrays(x[:1400] / 16, y[:1400], parts, test=(x[1400:] / 16, y[1400:]))
    run = train(federation=federation, overrides=BINOMIAL | {"train.rounds": 2}, out=tmp_path / "run")
    assert given.sum() == pytest.approx(2800, rel=0.05)
    assert given[0] / given.sum() == pytest.approx(0.7, abs=0.03)
    assert run.summary["accuracy"] > 0.75


def test_what_sites_draw_cannot_be_drawn_again_from_the_seed():
    everybody, site = Streams(7), Streams(7, secret=b"a site's own")
    assert site(f"{PRIVATE} lots").integers(10**9) != everybody(f"{PRIVATE} lots").integers(10**9)
    assert site("shuffle").integers(10**9) == everybody("shuffle").integers(10**9)


# ---- hybrid: a model goes on, with the placeholders it was trained on ----------------------------------------------

IMAGES, DIGITS = load_digits(return_X_y=True)
IMAGES = (IMAGES / 16).astype(np.float32)
ORDER = np.random.default_rng(0).permutation(len(DIGITS))
TODAY, LATER, TEST = np.split(ORDER, [300, 1400])


def sites(rows, digits=range(10)):
    x, y = IMAGES[rows], DIGITS[rows]
    parts = [np.flatnonzero(y == digit) if digit in digits else np.zeros(0, dtype=int) for digit in range(10)]
    return Federation.from_arrays(x, y, parts, test=(IMAGES[TEST], DIGITS[TEST]))


def test_hybrid_goes_on_with_new_samples_under_masked_labels(tmp_path):
    first = train(
        method="stratify-batch", federation=sites(TODAY), overrides={"train.rounds": 10, **PRF}, out=tmp_path / "first"
    )
    going_on = {"train.rounds": 4, "train.lr": 0.03, "model.init": str(first.path / "model.safetensors"), **PRF}
    arriving = sites(LATER).moving(stream=Stream(start=0.0, until=4, window=1))
    then = train(method="stratify-single", federation=arriving, overrides=going_on, out=tmp_path / "then")
    scores = [event["accuracy"] for event in then.events() if event["event"] == "round"]
    assert min(scores) > first.summary["accuracy"] - 0.03
    assert scores[-1] > first.summary["accuracy"]
    assert any("told anew" in said for said in then.summary["privacy"]["server"])
    # Where fewer labels are left, the new placeholders have other numbers: the old ones are taken up all the same.
    few = sites(LATER, range(8))
    third = train(
        method="stratify-batch", federation=few, overrides=going_on | {"train.lr": 1e-9}, out=tmp_path / "few"
    )
    assert third.summary["accuracy"] == pytest.approx(first.summary["accuracy"], abs=0.005)
    with pytest.raises(RequestError, match="clients are the same only if"):
        train(federation=few, method="stratify-batch", overrides=going_on | {"train.seed": 5}, out=tmp_path / "other")
    fewer = train(method="stratify-batch", federation=few, overrides={"train.rounds": 1, **PRF}, out=tmp_path / "fewer")
    unknown = PRF | {"model.init": str(fewer.path / "model.safetensors")}
    with pytest.raises(RequestError, match=r"took no part|not trained on"):
        train(method="stratify-batch", federation=sites(LATER), overrides=unknown, out=tmp_path / "unknown")
