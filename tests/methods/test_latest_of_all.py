"""The mean of all clients' last models, as FedBSS' Algorithm 1 writes its line 12: by hand, and over real rounds."""

from __future__ import annotations

import pytest
import torch
from combining import Told, close, moving_work, normed_work, run_of, view_of
from quadratic import f64

from fedstrata import RequestError
from fedstrata.core.flat_model import FlatModel
from fedstrata.methods.combiners.latest_of_all import LatestOfAll
from fedstrata.testing.tiny import run_rounds, same, session_of


def next_model(part, state, view, here, models):
    """Let clients report models; give the next one."""
    told = Told([f64(*m) - here for m in models.values()], clients=list(models))
    return here + part.combine(state, view, FlatModel(here, f64()), told).total["update"]


@pytest.mark.parametrize(
    ("unseen", "expected"),
    [
        # four clients, the model starts at (1, 1). Round 1: clients 0 and 1 end at (3, 1) and (5, 3).
        # Round 2: clients 1 and 2 end at (1, 0) and (2, 8); client 0 still counts with (3, 1), and client 3 never came.
        ("out", [(4.0, 2.0), (2.0, 3.0)]),  # ((3, 1) + (5, 3)) / 2; ((3, 1) + (1, 0) + (2, 8)) / 3
        ("global", [(2.5, 1.5), (2.125, 2.625)]),  # (8 + 2, 4 + 2) / 4; ((6, 9) + (2.5, 1.5)) / 4
    ],
)
def test_two_rounds_by_hand(unseen, expected):
    part, view = LatestOfAll(unseen=unseen), view_of([1] * 4)
    state = part.init(view)
    first = next_model(part, state, view, f64(1.0, 1.0), {0: (3.0, 1.0), 1: (5.0, 3.0)})
    close(first, f64(*expected[0]))
    second = next_model(part, state, view, first, {1: (1.0, 0.0), 2: (2.0, 8.0)})
    close(second, f64(*expected[1]))
    close(state.total, f64(6.0, 9.0))


def test_a_client_counts_once_however_large_it_is_and_however_often_it_was_drawn():
    part, view = LatestOfAll(), view_of([1, 9])
    told = Told([f64(1.0, 0.0), f64(0.0, 1.0)], weights=(1.0, 5.0), samples=[1, 9])
    close(part.combine(part.init(view), view, FlatModel(f64(0.0, 0.0), f64()), told).total["update"], f64(0.5, 0.5))


def test_with_everybody_in_every_round_it_is_the_plain_mean():
    asked = {"method.name": "fedbss", "train.clients_per_round": "all"}
    plain, _ = run_rounds(session_of(asked))
    latest, _ = run_rounds(session_of({**asked, "method.combiner": "latest-of-all"}))
    close(latest.model.params, plain.model.params)


def test_fedbss_moves_less_from_round_to_round():
    """Of six clients two train: the others hold the model back."""
    asked = {"method.name": "fedbss", "train.clients_per_round": 2}

    def last_step(**combiner):
        before, after = (run_rounds(session_of({**asked, **combiner}), rounds)[0].model.params for rounds in (3, 4))
        return float((after - before).norm())

    assert last_step(**{"method.combiner": "latest-of-all"}) < last_step()


def test_norm_statistics_go_with_the_model():
    seen = run_of(normed_work({"method.combiner": "latest-of-all", "train.clients_per_round": 3}), rounds=4)
    last = torch.stack([model.read() for model in seen.state.combiner.clients.values()])
    close(torch.cat([seen.state.model.params, seen.state.model.buffers]), last.mean(0))


def test_what_corrections_send_is_still_summed():
    work = session_of({"method.name": "scaffold", "method.combiner": "latest-of-all"})
    assert run_rounds(work)[0].server_steps["scaffold"].c.abs().max() > 0


def test_a_report_that_is_not_finite_is_no_last_model():
    work = moving_work([(1.0, 0.0), (float("inf"), 0.0), (0.0, 1.0)], {"method.combiner": "latest-of-all"})
    assert sorted(run_of(work, rounds=2, weights=(0.0, 0.0)).state.combiner.clients) == [0, 2]


def test_it_resumes_with_its_models():
    asked = {"method.combiner": "latest-of-all", "train.clients_per_round": 2, "system.stragglers.rate": 0.3}
    whole, _ = run_rounds(session_of(asked), rounds=6)
    for cut in (1, 3, 5):
        assert same(whole, run_rounds(session_of(asked), rounds=6, cut=cut)[0])


def test_it_wants_models_that_were_trained_side_by_side():
    with pytest.raises(RequestError, match=r"method\.combiner does not fit this plan"):
        session_of({"method.name": "sfl", "method.combiner": "latest-of-all"})
