"""Studies run in a small size and say what they are there to say."""

from __future__ import annotations

import pytest

from fedstrata import Stratified
from studies import client_choice, transfers
from studies._looks import LARGEST, looks


@pytest.mark.parametrize("mode", ["single", "batch"])
def test_clients_in_even_turns_give_steadier_gradients_and_nobody_rules_the_end(mode):
    def measured(clients, **options):
        schedule = Stratified(frequency="capped", order="spread", clients=clients, **options)
        return client_choice.measure(looks(), schedule, mode, epochs=3)

    (parts, errors), (_, drawn), (ruled, _) = (measured(clients) for clients in ("spread", "weighted", "uniform"))
    assert errors.mean() < 0.8 * drawn.mean()
    assert abs(parts[3] - LARGEST) < 0.12
    assert ruled[3] > 0.98
    if mode == "single":
        parts, _ = measured("spread", chunk=1)
        assert abs(parts - LARGEST).max() < 0.02


def test_the_frontier_of_transfers():
    settings = [{"chunk": 1}, {"chunk": 5}, {"chunk": 50, "slack": 2}]
    rows = list(transfers.frontier("labels", "weighted", seeds=1, epochs=1, settings=settings))
    saved = [1 - each / rows[0][1] for _, each, _ in rows]
    assert 0.25 < saved[1] < 0.45
    assert saved[2] > 0.7
    assert all(accuracies[0] > 0.8 for *_, accuracies in rows)
