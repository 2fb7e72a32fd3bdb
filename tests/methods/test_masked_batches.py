"""Global batches whose sums are masked: enough clients in each of them, and no entry lost while enough are left."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedstrata import Federation, RequestError, train
from fedstrata.methods.schedules.batches import Learn, Reserve, batches
from fedstrata.methods.schedules.draws import Draws
from fedstrata.methods.schedules.epoch import Epoch
from fedstrata.methods.schedules.stratified import arrange
from fedstrata.methods.schedules.supply import Pools, Supply
from fedstrata.methods.schedules.take import Take

MASKED = {"privacy.aggregate": "masked"}


class Clients:
    """Clients that answer as `Take` does: by stratum, which pass they are in and how much of it is used."""

    def __init__(self, counts):
        self.counts, self.strata = counts, len(counts[0])
        self.used = [{} for _ in counts]
        self.held = [{} for _ in counts]
        self.batch, self.gone, self.given = None, set(), Counter()

    def reserve(self, move):
        answers = {}
        if move.batch != self.batch:
            self.batch, self.held = move.batch, [{} for _ in self.counts]
        for client, codes in move.codes.items():
            if client in self.gone:
                continue
            answers[client] = []
            for code in codes:
                turn, stratum = divmod(code, self.strata)
                pass_, n = self.held[client].get(stratum, self.used[client].get(stratum, (0, 0)))
                pass_, n = (turn, 0) if turn > pass_ else (pass_, n)
                if turn < pass_ or n >= self.counts[client][stratum]:
                    answers[client].append(code)
                else:
                    self.held[client][stratum] = pass_, n + 1
        return answers

    def learn(self, move):
        for client, codes in move.codes.items():
            self.used[client] |= self.held[client]
            self.given.update((client, code % self.strata) for code in codes)
        return {client: [] for client in move.codes}


def run_epoch(counts, f, size, seed=0, fewest=3, least=1, gone=(), spoil=lambda n: False):
    """Go through an epoch; gives what was learnt in each batch, the epoch, the clients and what was noted."""
    counts, rng = np.array(counts), np.random.default_rng(seed)
    strata, places = arrange(np.array(f), "shuffled", rng)
    holders = [np.flatnonzero(counts[:, p]).tolist() for p in range(counts.shape[1])]
    epoch, notes = Epoch(0, len(strata), strata, places, Supply.of(holders)), []
    pools = Pools(epoch.supply, Draws(rng), lambda kind, **fields: notes.append((kind, fields)))
    clients, learnt, answer = Clients(counts), [], None
    clients.gone = set(gone)
    moves = batches(epoch, pools, epoch.length, size, least, fewest)
    while True:
        try:
            move = moves.send(answer)
        except StopIteration:
            return learnt, epoch, clients, notes
        assert isinstance(move, Reserve | Learn)
        if isinstance(move, Reserve):
            answer = clients.reserve(move)
        elif spoil(len(learnt)):
            answer, learnt = {}, [*learnt, None]
        else:
            answer, learnt = clients.learn(move), [*learnt, dict(move.codes)]


CASES = {
    "one client holds most": ([[98] * 10] + [[5] * 10] * 9, [140] * 10, 64),
    "one label a client, small batches": (np.diag([30] * 10), [30] * 10, 4),
    "a short last batch": ([[20, 20]] * 4, [33, 32], 64),
    "rare labels start over": ([[50, 1], [50, 1], [50, 1]], [75, 75], 10),
    "two alone hold all but one label": ([[90, 0], [90, 0], [0, 3], [0, 3]], [180, 6], 30),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(3))
def test_every_batch_has_three_clients_and_no_entry_is_lost(name, seed):
    counts, f, size = CASES[name]
    learnt, epoch, clients, notes = run_epoch(counts, f, size, seed)
    assert min(len(codes) for codes in learnt) >= 3
    assert epoch.over == epoch.length == sum(f)
    assert epoch.lost == 0
    assert not notes
    seen = Counter()
    for (_, stratum), samples in clients.given.items():
        seen[stratum] += samples
    beside = sum(seen.values()) - sum(f)  # what kept others company: at most two a batch
    assert 0 <= beside <= 2 * len(learnt)
    assert all(seen[p] >= f[p] for p in range(len(f)))
    if "two alone" not in name and "small" not in name and "short" not in name:
        assert beside == 0


def test_samples_are_used_twice_only_to_keep_others_company():
    """The large client goes on with its own samples; the small ones start over, each for few entries a batch."""
    counts, f, size = CASES["one client holds most"]
    learnt, _, clients, _ = run_epoch(counts, f, size)
    large = sum(samples for (client, _), samples in clients.given.items() if client == 0)
    assert large >= 0.9 * 980  # nearly all it has; starting everybody over would give it a tenth of the entries
    alone = [codes for codes in learnt if len(codes.get(0, ())) > 60]
    assert all(len(codes) == 3 for codes in alone)
    assert alone


def test_with_too_few_clients_there_a_batch_is_left_out_and_said_so():
    learnt, epoch, _, notes = run_epoch([[30, 30]] * 4, [60, 60], 20, gone=(2, 3))
    assert learnt == []
    assert epoch.over == epoch.length
    assert epoch.lost == 120
    assert {kind for kind, _ in notes} == {"batch_left_out"}
    assert "fewer than 3 clients are left" in notes[0][1]["why"]


def test_a_sum_that_came_to_nothing_is_tried_again_and_nobody_is_blamed():
    learnt, epoch, _, notes = run_epoch([[30, 30]] * 4, [60, 60], 20, spoil=lambda n: n in (1, 2))
    assert learnt.count(None) == 2
    assert epoch.lost == 0
    assert not epoch.supply.gone
    assert sum(len(c) for codes in learnt if codes for c in codes.values()) == 120
    learnt, epoch, _, notes = run_epoch([[30, 30]] * 4, [60, 60], 20, spoil=lambda n: True)
    assert epoch.lost > 0  # it ends
    assert "again and again" in notes[-1][1]["why"]


def uneven(share=0.7, clients=10, samples=1400):
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    rows, test = np.split(order, [samples])
    x, large = (x / 16).astype(np.float32), round(share * samples)
    parts = [np.arange(large), *np.array_split(np.arange(large, samples), clients - 1)]
    return Federation.from_arrays(x[rows], y[rows], parts, test=(x[test], y[test]))


def test_masked_sums_lose_nothing_where_one_of_ten_clients_holds_most(tmp_path):
    """640 of 1,400 entries were trained on, and the accuracy was .69 against .90."""
    asked = {"method.name": "stratify-batch", "train.rounds": 2}
    plain = train(federation=uneven(), overrides=asked, out=tmp_path / "open")
    masked = train(federation=uneven(), overrides=asked | MASKED, out=tmp_path / "masked")
    for event in masked.events():
        if event["event"] == "schedule":
            assert event["entries"] == sum(event["exposure"]) == 1400
            assert event["lost"] == 0
    assert masked.summary["accuracy"] > plain.summary["accuracy"] - 0.03
    assert masked.summary["remarks"] == []


def test_what_is_lost_is_a_remark(tmp_path):
    asked = {"method.name": "stratify-batch", "train.rounds": 2, "train.batch_size": 40, "train.seed": 0}
    asked |= {"system.availability.kind": "independent", "system.availability.rate": 0.6}
    run = train(federation=uneven(0.4, 4, 400), overrides=asked | MASKED, out=tmp_path / "run")
    first, event = [event for event in run.events() if event["event"] == "schedule"]
    assert first["lost"] == 0  # in the second round two are there
    assert event["lost"] == event["entries"] == 400
    (remark,) = [remark for remark in run.summary["remarks"] if "scheduled samples" in remark]
    assert "400 of 800 scheduled samples (50.0%)" in remark
    assert "fewer than 3 clients are left" in remark


def test_batches_that_three_clients_cannot_fill_are_refused(tmp_path):
    asked = {"method.name": "stratify-batch", "train.batch_size": 2} | MASKED
    with pytest.raises(RequestError, match=r"train\.batch_size = 2"):
        train(overrides=asked, out=tmp_path / "batch")
    with pytest.raises(RequestError, match="at least 3 clients; there are 2"):
        train(federation=uneven(0.5, 2), overrides={"method.name": "stratify-batch"} | MASKED, out=tmp_path / "two")


def test_a_client_starts_over_on_its_own():
    """What `newcomers.py` relies on: a pass ahead of everybody's is given, and no sample of it twice."""
    from test_scheduled_runs import Desk  # noqa: PLC0415

    desk = Desk()
    assert isinstance(desk.take, Take)
    assert desk.reserve([0, 0, 0], batch=1) == ()
    desk.gradient()
    assert desk.reserve([0], batch=2) == (0,)
    assert desk.reserve([2], batch=3) == ()  # stratum 0 of 2, the second pass
    desk.gradient()
    first = desk.trained[-1]
    assert desk.reserve([2, 2, 2], batch=4) == (2,)  # everybody starts over: it has two left
    desk.gradient()
    assert first not in desk.trained[-2:]
