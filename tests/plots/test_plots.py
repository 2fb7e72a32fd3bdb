"""Figures for notebooks: of a run, of a comparison, of their folders."""

from __future__ import annotations

import doctest

import pytest

from fedstrata import RequestError, compare, plots, train
from fedstrata.testing import tiny_federation

SMALL = {"train.rounds": 4, "train.epochs": 1, "train.clients_per_round": 3, "model.hidden": (5,)}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A finished run of six clients and three labels."""
    return train(overrides=SMALL, federation=tiny_federation(), out=tmp_path_factory.mktemp("small") / "run")


def test_a_run_is_drawn_from_what_it_wrote(small):
    for plot in ("accuracy", "labels", "clients", "balance", "participation", "client_accuracy", "update_norm"):
        assert getattr(plots, plot)(small).data, plot
    assert plots.labels(str(small.path)) == plots.labels(small)  # a folder is as good
    assert plots.metric(small, "worst10").data[-1].y[-1] == pytest.approx(small.summary["worst10"], rel=1e-6)
    assert len(repr(small)) < 200  # which a notebook shows above its figures


def test_what_a_run_does_not_have_is_refused(small):
    with pytest.raises(RequestError, match="does not have a fault"):
        plots.faults(small)
    with pytest.raises(RequestError, match=r'no round has "worst" \(did you mean "worst10"\?\); there are accuracy, '):
        plots.metric(small, "worst")


def test_several_runs_are_drawn_together(small, tmp_path):
    other = train(
        method="fedprox", overrides=SMALL, federation=tiny_federation(), out=tmp_path / "other", progress=False
    )
    both = plots.accuracy([small, other])
    assert {line.name for line in both.data} >= {"fedavg", "fedprox"}
    assert plots.accuracy([str(small.path), other]) == both
    assert plots.metric([small, other], "worst10").data
    assert plots.labels([small, other]).data
    assert plots.clients((small, other)).data
    for again in (other, str(other.path)):
        with pytest.raises(RequestError, match=r"is no axis; several runs are given as a list, \[a, b\]"):
            plots.accuracy(small, again)
    with pytest.raises(RequestError, match="3 cannot be drawn; allowed: a run"):
        plots.accuracy([small, 3])
    with pytest.raises(RequestError, match="holds 2; give one of them"):
        plots.participation([small, other])


def test_figures_of_one_run_refuse_a_comparison(tmp_path):
    options = SMALL | {"train.rounds": 1}
    compared = compare(
        methods=["fedavg", "fedprox"], overrides=options, federation=tiny_federation(), out=tmp_path / "c"
    )
    assert plots.clients(compared).data
    with pytest.raises(RequestError, match="holds 2; give one of them"):
        plots.participation(compared)


def test_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # they train into runs/
    done = doctest.testmod(plots)
    assert done.failed == 0 < done.attempted
