"""A comparison that has so many minutes stops between rounds, begins nothing it cannot end, and goes on later."""

from types import SimpleNamespace

import pytest

import fedstrata
from fedstrata.core.errors import RequestError
from fedstrata.runs.compare import pool, queue, ray_cells

SMALL = {"train.rounds": 3, "data.clients": 5, "train.clients_per_round": 2, "engine.workers": 1}


class Clock:
    """Each look at it is a second later."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1.0
        return self.now


def compare(out, **more):
    return fedstrata.compare(methods=["fedavg", "fedprox"], overrides=SMALL, out=out, jobs=1, **more)


def test_it_stops_between_rounds_and_goes_on_to_the_same_figures(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(queue, "monotonic", Clock())
        cut = compare(tmp_path / "cut", minutes=4 / 60)  # the clock is past it in a round of the first cell
    assert [cell.state for cell in cut.cells] == ["stopped", "waiting"]
    done, whole = compare(tmp_path / "cut"), compare(tmp_path / "whole")
    assert [cell.state for cell in done.cells] == ["finished", "finished"]
    assert [row["accuracy"] for row in done.rows] == [row["accuracy"] for row in whole.rows]


def test_no_cell_is_begun_that_would_not_end_in_time(tmp_path, monkeypatch):
    monkeypatch.setattr(queue, "monotonic", Clock())
    done = compare(tmp_path / "cut", minutes=12 / 60)  # a cell takes about six looks at the clock: not two
    assert [cell.state for cell in done.cells] == ["finished", "waiting"]


def test_a_shorter_cell_is_begun_where_a_longer_one_would_not_end(monkeypatch):
    clock = iter([0.0, 1.0, 31.0, 50.0, 50.0])  # 60 s from 0; the first cell, guessed at 10 s, takes 30
    monkeypatch.setattr(queue, "monotonic", lambda: next(clock))
    deadline = queue.Deadline(1)
    watch = deadline.watching(lambda *_: None)
    short, middle, long = (SimpleNamespace(guess=guess) for guess in (3.0, 10.0, 30.0))
    watch(middle, {"event": "begin"})
    watch(middle, {"event": "finished"})
    assert deadline.may_begin(short)  # 9 of the 10 s that are left
    assert not deadline.may_begin(long)


def test_those_behind_a_long_cell_do_not_wait_for_it(monkeypatch):
    monkeypatch.setattr(pool.CellRunner, "run", lambda *_: {"event": "finished"})
    cells = [
        SimpleNamespace(path=name, method="fedavg", experiment=SimpleNamespace(model="mlp"))
        for name in ("first", "long", "last")
    ]
    ended = []
    whole = pool.in_turn(cells, None, None, lambda cell, _: ended.append(cell.path), lambda cell: cell.path != "long")
    assert (whole, ended) == (False, ["first", "last"])


def test_those_behind_a_long_cell_do_not_wait_for_it_on_a_cluster_either():
    cells = [SimpleNamespace(name=name) for name in ("first", "long", "last")]
    ended, queue = [], object.__new__(ray_cells.CellQueue)
    queue._running, queue._room = {}, lambda _: 1
    queue._post = SimpleNamespace(
        listen=SimpleNamespace(remote=lambda: "heard"), drain=SimpleNamespace(remote=lambda: "drained")
    )
    queue._ray = SimpleNamespace(wait=lambda refs, **_: (refs[1:], refs[:1]), get=lambda _: [])
    queue._submit, queue._end = lambda number, cell: number, lambda cell, ref, tell: ended.append(cell.name)
    whole = queue.run(cells, lambda *_: None, lambda cell: cell.name != "long", lambda: None)
    assert (whole, ended) == (False, ["first", "last"])


def test_a_cell_that_shares_a_device_with_fewer_is_done_sooner(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(queue, "monotonic", lambda: now[0])
    deadline = queue.Deadline(130 / 60)
    watch = deadline.watching(lambda *_: None, shared=True)
    cells = [SimpleNamespace(guess=10.0) for _ in range(5)]
    for cell in cells[:4]:
        watch(cell, {"event": "begin"})
    now[0] = 80.0
    watch(cells[0], {"event": "finished"})  # it had the device for a fourth of 80 s
    assert not deadline.may_begin(cells[4])  # another four: 80 s, and 50 are left
    watch(cells[1], {"event": "finished"})
    watch(cells[2], {"event": "failed", "why": ""})
    assert deadline.may_begin(cells[4])  # with one other: 40 s
    now[0] = 91.0
    assert not deadline.may_begin(cells[4])


@pytest.mark.parametrize("minutes", [0, -1])
def test_minutes_are_above_0(tmp_path, minutes):
    with pytest.raises(RequestError, match="minutes"):
        compare(tmp_path / "none", minutes=minutes)
    assert not (tmp_path / "none").exists()


def test_cells_of_a_method_and_a_network_are_alike_and_shared_among_processes():
    def cell(path, method, network):
        return SimpleNamespace(path=path, method=method, experiment=SimpleNamespace(model=network))

    cells = [cell(seed, "fedavg", "lenet5") for seed in range(5)]
    cells += [cell(5, "flips", "lenet5"), cell(6, "fedavg", "resnet9")]
    assert pool.count_alike(cells, 1) == {**dict.fromkeys(range(5), 5), 5: 1, 6: 1}
    assert pool.count_alike(cells, 2) == {**dict.fromkeys(range(5), 3), 5: 1, 6: 1}
