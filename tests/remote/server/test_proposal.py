"""A run is proposed to sites: one that cannot take part is left out by name where enough others are there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from in_process_sites import SITES, SMALL, Here, hosts

from fedstrata.config.experiment import Experiment
from fedstrata.core.errors import RequestError
from fedstrata.remote.introduction import Introduction
from fedstrata.remote.protocol import PendingError, build_refusal
from fedstrata.remote.server.orders import OperatorOrder, RunControl, StoppedError, give_order
from fedstrata.remote.server.proposal import odd_ones
from fedstrata.remote.server.session import run_at_sites

FULL = "it cannot write down what leaves it, and so nothing does: is its disk full?"


def train(transport, folder, sites, **how):
    return run_at_sites(transport, Experiment.of(None, **SMALL), folder, sites, **how)


def refusals(run):
    return [(e["site"], e["why"]) for e in run.events() if e["event"] == "site_refused"]


@pytest.mark.parametrize("kind", ["introduce", "begin"])
def test_a_site_whose_disk_is_full_is_left_out_where_enough_others_are_there(tmp_path, kind):
    def full(name, asked, reply):
        return build_refusal(FULL) if (name, asked) == ("bonn", kind) else reply

    run = train(Here(hosts(SMALL), full), tmp_path / "run", 2)
    assert {*refusals(run)} == {("bonn", FULL)}
    assert run.summary["rounds"] == 3
    with pytest.raises(RequestError, match=r"site bonn: it cannot write down .*: is its disk full\?"):
        train(Here(hosts(SMALL), full), tmp_path / "few", 3)


def test_a_site_that_introduces_itself_wrongly_is_left_out(tmp_path):
    def lying(name, kind, reply):
        return reply.replace(b'"site": "bonn"', b'"site": "oslo"') if kind == "introduce" else reply

    assert refusals(train(Here(hosts(SMALL), lying), tmp_path / "run", 2)) == [
        ("bonn", "it introduces itself by another name")
    ]


def test_a_site_that_could_not_come_is_named_and_is_no_client(tmp_path):
    made = hosts(SMALL)
    del made["bonn"]
    run = train(Here(made), tmp_path / "run", 2, absent={"bonn": "its disk is full", "aachen": "it came after all"})
    assert refusals(run) == [("bonn", "its disk is full")]


FITS = Introduction((8, 8), "float32", ("x", "y"), 5, 1, 1.0, None, None, "x")
OTHER, SHOUTING = replace(FITS, shape=(4,)), replace(FITS, classes=("X",))


@pytest.mark.parametrize(
    ("shapes", "least", "odd"),
    [
        ({"a": FITS, "b": OTHER, "c": FITS}, 2, {"b": "it has samples with shape"}),
        ({"a": OTHER, "b": FITS, "c": FITS}, 2, {"a": "it has samples with shape"}),
        ({"a": FITS, "b": FITS, "c": SHOUTING}, 2, {"c": "it has a label 'X', site a has 'x'"}),
        ({"a": FITS, "b": OTHER, "c": FITS}, 3, {}),
        ({"a": FITS, "b": OTHER, "c": FITS, "d": OTHER}, 2, {}),
        ({"a": FITS, "b": FITS}, 1, {}),
    ],
    ids=["one of three", "the first", "labels", "all are wanted", "nobody knows who is wrong", "all fit"],
)
def test_sites_whose_data_do_not_fit_those_of_most(shapes, least, odd):
    found = {name: str(error) for name, error in odd_ones(shapes, least).items()}
    assert found.keys() == odd.keys()
    assert all(why in found[name] for name, why in odd.items())


def test_a_run_that_waits_for_an_owner_says_so_and_hears_its_operator(tmp_path):
    def pending(name, kind, reply):
        return build_refusal(PendingError("its owner has to approve it")) if name == "bonn" else reply

    control, missed = RunControl(tmp_path / "orders.jsonl", "1", lambda: None), []

    def miss(sites):
        missed.append(sorted(sites))
        give_order(control.path, OperatorOrder.of("stop", "1", "ann", None))

    with pytest.raises(StoppedError, match="operator ann stopped the run before it began"):
        train(Here(hosts(SMALL), pending), tmp_path / "run", len(SITES), control=control, miss=miss)
    assert missed == [["bonn"], []]
