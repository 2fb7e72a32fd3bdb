"""Krum, multi-Krum and the geometric median, against numbers worked out by hand."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
import torch
from combining import Told, close, model_of, view_of
from quadratic import f64

from fedstrata.core.messages import Report
from fedstrata.methods.combiners import distances
from fedstrata.methods.combiners.distances import squared_distances
from fedstrata.methods.combiners.geometric_median import GeometricMedian
from fedstrata.methods.combiners.krum import Krum, MultiKrum

# Five clients on a line, of which one may lie: each is scored by its two nearest neighbours.
#   0: 1 + 9 = 10    1: 1 + 4 = 5    3: 4 + 9 = 13    6: 9 + 25 = 34    100: 94^2 + 97^2
LINE = (0.0, 1.0, 3.0, 6.0, 100.0)


def combined(combiner, points, note=lambda *_, **__: None, **told):
    updates = [f64(*np.atleast_1d(point)) for point in points]
    return combiner.combine(None, view_of([1] * len(points), note=note), model_of(), Told(updates, **told))


@pytest.mark.parametrize(
    ("combiner", "found"),
    [
        (Krum(), 1.0),
        (MultiKrum(), 2.5),  # all but one: (0 + 1 + 3 + 6) / 4
        (MultiKrum(keep=1), 1.0),
        (MultiKrum(keep=2), 0.5),
        (MultiKrum(keep=3), 4 / 3),
        (MultiKrum(keep=9), 22.0),
    ],
)
def test_five_clients_on_a_line(combiner, found):
    close(combined(combiner, LINE).total["update"], f64(found))


def test_two_attackers_of_seven_are_not_taken_though_they_agree():
    """7 - 2 - 2 = 3 neighbours: the two have one close friend each, and the others have three.

    0: 1 + 4 + 9 = 14    1: 1 + 1 + 4 = 6    2: 1 + 1 + 4 = 6    3: 1 + 4 + 4 = 9    5: 4 + 9 + 16 = 29
    """
    points = (50.0, 50.0, 0.0, 1.0, 2.0, 3.0, 5.0)
    close(combined(Krum(attackers=0.3), points).total["update"], f64(1.0))  # the first of two with score 6
    close(combined(MultiKrum(attackers=0.3), points).total["update"], f64(11 / 5))


def test_what_clients_send_beside_the_update_follows_the_choice_and_decides_it():
    controls = [f64(float(i)) for i in range(5)]
    sums = combined(Krum(), LINE, others={"scaffold/dc": controls})
    close(sums.mean("scaffold/dc"), f64(1.0))
    statistics = [f64(0.0), f64(1e6), f64(0.0), f64(0.0), f64(0.0)]  # of the client that was chosen above
    close(combined(Krum(), LINE, others={"buffers": statistics}).total["update"], f64(3.0))  # 9 + 9; 0 and 6: 9 + 36


@pytest.mark.parametrize(("clients", "asked", "possible"), [(3, 1, 0), (4, 1, 0), (6, 2, 1)])
def test_more_attackers_than_krum_can_bear_are_an_event(clients, asked, possible):
    notes = []
    combined(Krum(attackers=asked / clients), LINE[:clients] + (2.0,) * (clients - 5), lambda *a, **k: notes.append(k))
    (note,) = notes
    assert note["used"] == f"{possible} attackers"
    assert note["why"] == f"{asked} among {clients} clients are too many"


@pytest.mark.parametrize("clients", [5, 7, 20])
def test_as_many_as_it_can_bear_are_none(clients):
    notes = []
    combined(Krum(attackers=(clients - 3) // 2 / clients), range(clients), lambda *a, **k: notes.append(k))
    assert not notes


def test_how_often_a_client_counts_is_kept():
    sums = combined(MultiKrum(keep=2), LINE, weights=[3, 1, 1, 1, 1])
    close(sums.total["update"], f64(0.25))


@pytest.mark.parametrize("cells", [1, 40, 2**21])
def test_distances_are_those_of_numpy(cells, monkeypatch):
    monkeypatch.setattr(distances, "CELLS", cells)
    rng = np.random.default_rng(0)
    flat = rng.normal(size=(6, 23)).astype(np.float32)
    reports = [
        Report(i, 1, aggregated={"update": torch.from_numpy(u[:20]), "part/x": torch.from_numpy(u[20:])})
        for i, u in enumerate(flat)
    ]
    found = squared_distances(reports)
    assert found == pytest.approx(((flat[:, None].astype(float) - flat[None]) ** 2).sum(2), abs=1e-5)
    assert (found == found.T).all()
    assert (np.diag(found) == 0).all()


# ---- the geometric median


FERMAT = (3 - sqrt(3)) / 6  # all sides of a right isosceles triangle are seen at 120 degrees from there


@pytest.mark.parametrize(
    ("points", "found"),
    [
        ([(0, 0), (1, 0), (0, 1)], (FERMAT, FERMAT)),
        ([(0, 0), (1, 0), (0, 1), (1, 1)], (0.5, 0.5)),  # where the diagonals cross
        ([(0, 0), (4, 0), (0, 1), (1, 1)], (0.8, 0.8)),  # the same: y = x, and x + 4y = 4
        ([(0, 0), (1, 0), (7, 0)], (1, 0)),  # on a line it is the median
        ([(0, 0), (0, 0), (0, 0), (9, 9)], (0, 0)),  # and where most agree it is there
        ([(2, 0), (-1, sqrt(3)), (-1, -sqrt(3))], (0, 0)),
    ],
)
def test_the_geometric_median_of_points_in_the_plane(points, found):
    update = combined(GeometricMedian(), points).total["update"]
    assert update.tolist() == pytest.approx(found, abs=1e-4)


def test_a_client_far_out_moves_it_no_farther_than_one_a_little_farther_out():
    near, far = (combined(GeometricMedian(), [(0, 0), (1, 0), (0, 1), (0, x)]).total["update"] for x in (1e2, 1e8))
    assert (near - far).abs().max() < 1e-3


def test_one_iteration_weighs_by_one_over_the_distance_from_the_mean():
    """Of 0, 0 and 3 the mean is 1; distances are 1, 1 and 2, weights 2/5, 2/5 and 1/5."""
    close(combined(GeometricMedian(iterations=1), (0.0, 0.0, 3.0)).total["update"], f64(0.6))


def test_distances_below_the_smoothing_count_as_it():
    """Distances 1, 1 and 2 with a smoothing of 1.5: weights 2/3, 2/3 and 1/2, of 11/6."""
    close(combined(GeometricMedian(iterations=1, smoothing=1.5), (0.0, 0.0, 3.0)).total["update"], f64(9 / 11))


def test_it_counts_clients_as_often_as_the_selector_says():
    update = combined(GeometricMedian(), (0.0, 1.0, 7.0), weights=[1, 1, 5]).total["update"]
    assert float(update) == pytest.approx(7.0, abs=1e-4)
