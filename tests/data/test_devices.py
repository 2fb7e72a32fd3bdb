"""Devices and network on a virtual clock: latencies, availability, deadlines, stragglers. Nobody sleeps."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from light import LIGHT

from fedstrata import RequestError, train
from fedstrata.cli import main
from fedstrata.data.federation import Federation
from fedstrata.server.metrics import label_divergence
from fedstrata.testing import tiny_federation
from fedstrata.testing.tiny import run_rounds, session_of

ALL = {"train.clients_per_round": "all", "train.epochs": 2}


def with_devices(speeds=None, bandwidths=None):
    return replace(tiny_federation(), speeds=speeds, bandwidths=bandwidths)


def seconds(overrides, federation=None, rounds=1):
    _, outcomes = run_rounds(session_of({**ALL, **overrides}, federation), rounds=rounds)
    return {r.client: r.seconds for o in outcomes[0] for r in o.reports}, outcomes


def test_a_latency_is_work_by_speed_and_bytes_by_bandwidth():
    speeds, bandwidths = np.array([1.0, 2.0, 0.5, 1.0, 1.0, 4.0]), np.full(6, 1000.0)
    federation = with_devices(speeds, bandwidths)
    took, ((step,),) = seconds({"system.seconds_per_sample": 0.1}, federation)
    parameters = session_of(ALL).plan.space.P
    for client, size in enumerate(federation.train_split.sizes):
        work = 2 * size * 0.1 / speeds[client]
        assert took[client] == pytest.approx(work + 2 * 8 * parameters / 1000)
    assert {r.client for r in step.reports} == set(range(6))


def test_without_bandwidths_messages_take_no_time_and_equal_devices_differ_by_their_samples():
    took, _ = seconds({"system.seconds_per_sample": 0.5})
    sizes = tiny_federation().train_split.sizes
    assert took == pytest.approx({i: 2 * 0.5 * n for i, n in enumerate(sizes)})


def test_a_round_takes_as_long_as_its_slowest_client_and_time_only_grows(tmp_path):
    asked = {**LIGHT, "train.epochs": 2, "train.rounds": 4, "train.clients_per_round": "all"}
    run = train(overrides=asked, out=tmp_path / "run")
    times = run.curve("time")
    sizes = np.array(next(e for e in run.events() if e["event"] == "clients")["counts"]).sum(1)
    assert np.diff([0.0, *times]) == pytest.approx(2 * 0.001 * sizes.max())
    assert run.summary["time"] == times[-1]


def test_the_time_to_a_target_is_that_of_the_first_round_that_reaches_it(tmp_path):
    asked = {"train.rounds": 30, "train.stop.target": 0.6, "engine.vmap": "never"}
    run = train(overrides=asked, out=tmp_path / "run")
    times, accuracies = run.curve("time"), run.curve("accuracy")
    first = next(i for i, a in enumerate(accuracies) if a >= 0.6)
    assert run.summary["time_to_target"] == times[first]
    assert run.summary["rounds_to_target"] == first + 1


@pytest.mark.parametrize("kind", ["lognormal", "tiers"])
def test_speeds_are_drawn_once_from_the_seed(kind):
    asked = {**ALL, "system.speed.kind": kind, "system.speed.sigma": 1.0}
    one, again, other = (session_of({**asked, "train.seed": seed}).federation.speeds for seed in (0, 0, 1))
    assert one.tolist() == again.tolist() != other.tolist()
    if kind == "tiers":
        assert {round(1 / s, 6) for s in one} == {1.0, 1.5, 2.0, 3.0, 5.0}


def test_given_speeds_are_kept():
    federation = with_devices(np.arange(1.0, 7.0))
    assert session_of({"system.speed.kind": "lognormal"}, federation).federation.speeds.tolist() == [1, 2, 3, 4, 5, 6]


def lost(overrides, federation=None, rounds=4):
    return [
        outcome.missing for (outcome,) in run_rounds(session_of({**ALL, **overrides}, federation), rounds=rounds)[1]
    ]


def test_the_slowest_are_late():
    sizes = tiny_federation().train_split.sizes
    slowest = tuple(sorted(np.argsort(-sizes, kind="stable")[:2].tolist()))
    assert lost({"system.stragglers": {"rate": 0.34, "mode": "slowest"}}) == [slowest] * 4


def test_sticky_stragglers_are_the_same_in_every_round():
    missing = lost({"system.stragglers": {"rate": 0.4, "mode": "sticky"}})
    assert len(set(missing)) == 1
    assert missing[0]


def test_partial_work_arrives_and_is_less():
    asked = {"train.epochs": 5, "system.stragglers": {"rate": 0.5, "mode": "partial"}}
    full, _ = seconds({"train.epochs": 5})
    took, ((step,),) = seconds(asked)
    assert step.missing == ()
    assert sum(took[c] < full[c] for c in took) in (1, 2, 3)
    assert all(took[c] <= full[c] for c in took)


def test_a_deadline_loses_who_is_slower_and_is_how_long_the_round_takes():
    sizes = tiny_federation().train_split.sizes
    work = session_of({**ALL, "system.seconds_per_sample": 1.0, "system.deadline": 20.0})
    state, ((outcome,),) = run_rounds(work, rounds=1)
    assert outcome.missing == tuple(np.flatnonzero(2 * sizes > 20).tolist())
    assert state.clock == 20.0


def test_the_server_may_wait_for_a_share_only():
    sizes = tiny_federation().train_split.sizes
    work = session_of({**ALL, "system.seconds_per_sample": 1.0, "system.wait_for": 0.5})
    state, ((outcome,),) = run_rounds(work, rounds=1)
    assert sorted(r.client for r in outcome.reports) == sorted(np.argsort(sizes, kind="stable")[:3].tolist())
    assert state.clock == 2 * np.sort(sizes)[2]


def test_more_clients_are_asked_than_are_waited_for():
    _, outcomes = run_rounds(session_of({"train.clients_per_round": 3, "system.over_select": 1.5}))
    assert all(len(o.step.asks) == 5 and len(o.reports) == 3 for (o,) in outcomes)
    _, outcomes = run_rounds(session_of({"train.clients_per_round": "all", "system.over_select": 1.5}))
    assert all(len(o.step.asks) == len(o.reports) == 6 for (o,) in outcomes)  # nobody is in reserve


# ---- who is there ----


def asked(overrides, rounds=4, federation=None):
    _, outcomes = run_rounds(session_of({**ALL, **overrides}, federation), rounds=rounds)
    return [sorted(a.client for o in steps for a in o.step.asks) for steps in outcomes]


def test_clients_are_there_by_chance():
    here = asked({"system.availability": {"kind": "independent", "rate": 0.5}}, rounds=4)
    assert len({tuple(h) for h in here}) > 1
    assert 0 < sum(map(len, here)) < 24


def test_clients_with_the_same_label_sleep_at_the_same_time():
    x = np.zeros((60, 4), np.float32)
    y = np.arange(60) // 20
    federation = Federation.from_arrays(x, y, np.arange(60) // 10, test=(x, y))
    here = asked({"system.availability": {"kind": "labels", "rate": 0.3, "period": 3}}, 3, federation)
    assert here == [[0, 1], [4, 5], [2, 3]]


def test_a_trace_says_who_is_there(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("client,first,last\n0,1,2\n1,2,2\n# nobody in round 3\n5,4,9\n")
    here = asked({"system.availability": {"kind": "trace", "trace": str(path)}})
    assert here == [[0], [0, 1], [], [5]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0,1,2\n77,1,2\n", "names client 77; there are clients 0 to 5"),
        ("0,1\n", "three numbers"),
        ("a,b,c\n", "cannot be read"),
        ("", "three numbers"),
        (None, "cannot be read"),
    ],
)
def test_a_bad_trace_is_refused(tmp_path, text, said):
    path = tmp_path / "trace.csv"
    if text is not None:
        path.write_text(text)
    with pytest.raises(RequestError, match=said):
        session_of({"system.availability": {"kind": "trace", "trace": str(path)}})


def test_a_bad_system_ends_with_code_2(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["fedstrata", "run", "--set", "system.over_select=0.5"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert "system.over_select" in capsys.readouterr().err


# ---- the balance of a round ----


def test_label_divergence_by_hand():
    mix = np.array([0.5, 0.25, 0.25])
    assert label_divergence(np.array([4, 2, 2]), mix) == 0
    assert label_divergence(np.array([8, 0, 0]), mix) == pytest.approx(np.log(2))
    assert label_divergence(np.zeros(3), mix) is None


def test_every_round_has_the_divergence_of_its_labels(tmp_path):
    few = train(overrides={**LIGHT, "train.rounds": 3, "train.clients_per_round": 1}, out=tmp_path / "few")
    everybody = train(overrides={**LIGHT, "train.rounds": 3, "train.clients_per_round": "all"}, out=tmp_path / "all")
    assert everybody.curve("label_divergence") == pytest.approx([0.0] * 3, abs=1e-12)
    assert min(few.curve("label_divergence")) > 0.1
    json.dumps(few.events())


# ---- steps run as one ----


@pytest.mark.parametrize("method", ["stratify-single", "stratify-batch"])
def test_steps_run_as_one_take_as_long_as_the_single_ones(method):
    speeds = np.array([1.0, 2.0, 0.5, 1.0, 3.0, 4.0])
    clocks = []
    for way in ("fused", "messages"):
        work = session_of({"method.name": method, "engine.execution": way}, with_devices(speeds, np.full(6, 1e4)))
        clocks.append(run_rounds(work)[0].clock)
    assert clocks[0] == pytest.approx(clocks[1], rel=1e-9)
    assert clocks[0] > 0


def test_sticky_stragglers_are_never_everybody():
    _, outcomes = run_rounds(
        session_of({"train.clients_per_round": 1, "system.stragglers": {"rate": 0.9, "mode": "sticky"}})
    )
    assert all(outcome.reports for (outcome,) in outcomes)


def test_probes_are_late_too_and_cost_time():
    asked = {"method.selector": "power-of-choice", "train.clients_per_round": 2, "system.seconds_per_sample": 1.0}
    _, rounds = run_rounds(session_of(asked))
    assert all(outcomes[0].seconds > 0 for outcomes in rounds)
    _, rounds = run_rounds(session_of({**asked, "system.deadline": 3.0}))
    assert any(outcomes[0].missing for outcomes in rounds)


def test_fewer_clients_than_wanted_is_an_event(tmp_path):
    asked = {
        "train.rounds": 4,
        "train.clients_per_round": 15,
        "system.availability": {"kind": "independent", "rate": 0.3},
        **LIGHT,
    }
    run = train(overrides=asked, out=tmp_path / "run")
    assert [e["wanted"] for e in run.events() if e["event"] == "fewer_clients"] == [15] * 4
