"""The schedule of labels: part A1 of the specification, from the frequencies to the last entry of an epoch."""

from __future__ import annotations

import signal
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, groupby, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import chisquare
from torch.nn.functional import cross_entropy

from fedstrata import Federation
from fedstrata.cli import main
from fedstrata.core.client_info import ClientInfo
from fedstrata.core.client_parts import Client, ClientContext, Gradient
from fedstrata.core.messages import Task
from fedstrata.core.rng import Streams
from fedstrata.core.server_parts import View
from fedstrata.core.threads import one_thread
from fedstrata.data.devices import Devices
from fedstrata.data.partitions.base import Labelled
from fedstrata.data.partitions.dirichlet import DirichletClass
from fedstrata.methods.drivers.passing import Passing
from fedstrata.methods.drivers.scheduled import ScheduleState
from fedstrata.methods.schedules.batches import Learn, Reserve, batches
from fedstrata.methods.schedules.draws import Draws
from fedstrata.methods.schedules.epoch import Epoch
from fedstrata.methods.schedules.hops import Hop, hops, select_runs
from fedstrata.methods.schedules.stratified import Stratified, arranged, scaled
from fedstrata.methods.schedules.supply import Supply
from fedstrata.methods.schedules.take import Take
from fedstrata.server.loop import play_round
from fedstrata.testing import WireEngine
from fedstrata.testing.tiny import in_process, play, same, session_of


class Shop:
    """Clients as the specification has them: a sample is given once a pass, and who was silent must be left alone."""

    def __init__(self, counts, absent=0.0, seed=0, replacement=False, deaf=()):
        self.counts, self.absent, self.replacement, self.deaf = np.array(counts), absent, replacement, set(deaf)
        self.rng, self.batch, self.used, self.held = np.random.default_rng(seed), 0, Counter(), {}
        self.silent, self.trained, self.moves = set(), [], []

    def there(self, client):
        assert client not in self.silent, f"client {client} did not answer, and is asked again"
        if client in self.deaf or self.rng.random() < self.absent:
            self.silent.add(client)
        return client not in self.silent

    def look(self, client, codes):
        """Return what a client has of what it is asked for, and what it refuses."""
        found = Counter()
        for code in codes:
            size = self.counts[client, code % self.counts.shape[1]]
            found[code] += bool(self.used[client, code] + found[code] < size or (self.replacement and size))
        self.used.update({(client, code): n for code, n in found.items()})
        return +found, list((Counter(codes) - found).elements())

    def give_back(self, client):
        self.used.subtract({(client, code): n for code, n in self.held.pop(client, {}).items()})

    def train(self, found):
        self.trained += [code % self.counts.shape[1] for code in found.elements()]

    def answer(self, move):
        if isinstance(move, Hop):
            found, refused = self.look(move.client, move.codes) if self.there(move.client) else (Counter(), None)
            self.train(found)
            return refused
        if isinstance(move, Learn):
            assert self.held == {client: Counter(codes) for client, codes in move.codes.items()}
            answers = {client: [] for client in move.codes if self.there(client)}
            for client in answers:
                self.train(self.held.pop(client))
            return answers
        for client in list(self.held) if move.batch != self.batch else ():
            self.give_back(client)
        self.batch, answers = move.batch, {}
        for client, codes in move.codes.items():
            if not self.there(client):
                self.give_back(client)
                continue
            found, answers[client] = self.look(client, codes)
            if found:
                self.held[client] = self.held.get(client, Counter()) + found
        return answers

    def serve(self, asking):
        answer = None
        with suppress(StopIteration):
            while True:
                move = asking.send(answer)
                answer = self.answer(move)
                self.moves.append((move, answer))
                assert len(self.moves) < 20_000, "the epoch does not end"
        return [move for move, _ in self.moves]

    @property
    def exposure(self):
        return np.bincount(self.trained, minlength=self.counts.shape[1]).tolist()


def begun(counts, seed=0, notes=None, **options):
    """Begin an epoch as the drivers do, for clients that are believed to hold so many samples of each label."""
    counts, told = np.array(counts), [] if notes is None else notes
    known = {"labels": counts > 0, "totals": counts.sum(0), "counts": counts}
    client_info = ClientInfo(len(counts), counts.shape[1], np.flatnonzero(counts.sum(1)), np.arange(len(counts)), known)

    def note(kind, **fields):
        told.extend([fields["stratum"]] if kind == "label_dropped" else [])

    view = View(0, 1, 1, client_info.holders, client_info, None, lambda purpose: Streams(seed)(purpose, 0), note)
    return Passing(Stratified(**options)).begin(ScheduleState(), view)


def epoch(play, counts, size=5, shop=None, seed=0, notes=None, **options):
    now, shop = begun(counts, seed, notes, **options), shop or Shop(counts)
    return shop.serve(play(now.epoch, now.pools, now.until, size)), now, shop


travelled, batched = partial(epoch, hops), partial(epoch, batches)  # `size` is that of a chunk, or of a batch
both_ways = pytest.mark.parametrize("way", [travelled, batched], ids=["hops", "batches"])


def by_chance(seen, weights=None):
    """Say whether counts are what chance gives; seeds are fixed, so this holds always or never."""
    return chisquare(seen, None if weights is None else np.array(weights) * np.sum(seen) / np.sum(weights))[1] > 1e-3


# ---- how often each label stands in a schedule, and where -----------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "totals", "f"),
    [
        ({"each": 4}, (50, 20, 10), (4, 4, 4)),
        ({}, (50, 20, 10), (27, 27, 27)),
        ({"frequency": "capped", "cap": 20}, (50, 20, 10), (20, 20, 10)),
        ({"frequency": "capped", "cap": 20, "length": 12}, (50, 20, 10), (5, 5, 2)),
        ({"frequency": "capped"}, (50, 20, 10), (50, 20, 10)),
        ({"length": 10}, (50, 20, 10), (4, 3, 3)),
        ({"length": 2}, (50, 20, 10), (1, 1, 0)),
        ({"each": 3}, (5, 0, 1), (3, 0, 3)),
        ({"length": 7}, (5, 0, 1), (4, 0, 3)),
        ({"frequency": "capped", "cap": 2}, (5, 0, 1), (2, 0, 1)),
    ],
)
def test_frequencies(options, totals, f):
    assert Stratified(**options).frequencies(np.array(totals)).tolist() == list(f)


@given(hnp.arrays(np.int64, st.integers(1, 10), elements=st.integers(0, 60)), st.integers(1, 200))
@example(np.array([1, 4, 7]), 4)
def test_scaling_is_by_largest_remainders_and_ties_go_to_the_smaller_label(f, length):
    assume(f.sum())
    whole, rest = np.divmod(f * length, f.sum())
    whole[sorted(range(len(f)), key=lambda label: (-rest[label], label))[: length - whole.sum()]] += 1
    assert scaled(f, length).tolist() == whole.tolist()


def test_every_order_of_a_schedule_is_equally_likely():
    rng = np.random.default_rng(1)
    seen = Counter(tuple(arranged(np.array([2, 1, 1]), "shuffled", rng)[0].tolist()) for _ in range(6_000))
    assert len(seen) == 12
    assert by_chance(list(seen.values()))


def test_spread_leaves_no_stretch_unbalanced():
    def worst(order):
        labels, _ = arranged(np.full(5, 100), order, np.random.default_rng(2))
        ahead = np.cumsum(np.eye(5)[labels] - 0.2, axis=0)
        return np.ptp(np.vstack([np.zeros(5), ahead]), axis=0).max()

    assert worst("spread") <= 4
    assert worst("shuffled") > 8


def test_an_entry_that_comes_back_finds_any_position_among_those_still_to_come():
    first, second, rng = Counter(), Counter(), np.random.default_rng(3)
    draws = Draws(rng)
    for _ in range(4_000):
        epoch = Epoch(0, 8, *arranged(np.array([8, 0, 0]), "shuffled", rng), Supply.of([[0]] * 3))
        epoch.take(3)
        epoch.put_back(1, draws)
        early = epoch.take(2)
        epoch.put_back(2, draws)
        late = epoch.take(99)
        first[(early + [stratum for stratum in late if stratum != 2]).index(1)] += 1
        second[late.index(2)] += 1
        assert epoch.left == 0
    assert by_chance([first[place] for place in range(6)])
    assert by_chance([second[place] for place in range(5)])


# ---- who is asked ---------------------------------------------------------------------------------------------------


def test_run_selection_oracle_and_short_chunks():
    pools = {"a": [0, 1], "b": [1, 2], "c": [2]}
    assert select_runs("abbca", pools, min) == [(1, 3), (2, 1), (0, 1)]
    assert select_runs("cb", pools, min) == [(2, 2)]
    assert select_runs("a", pools, min) == [(0, 1)]
    assert select_runs("", pools, min) == []


@given(st.data(), st.lists(st.integers(0, 3), min_size=1, max_size=9))
def test_a_run_is_the_longest_that_a_client_of_the_pool_can_serve(data, chunk):
    pools = {p: data.draw(st.lists(st.integers(0, 3), min_size=1, unique=True)) for p in range(4)}
    ties, i = [], 0
    for client, length in select_runs(chunk, pools, lambda tied: ties.append(set(tied)) or tied[-1]):
        reach = dict.fromkeys(pools[chunk[i]], 0)
        for c in reach:
            while i + reach[c] < len(chunk) and c in pools[chunk[i + reach[c]]]:
                reach[c] += 1
        assert length == max(reach.values())
        assert ties.pop(0) == {c for c in reach if reach[c] == length} >= {client}
        i += length
    assert i == len(chunk)


def test_equal_neighbours_are_one_task_across_chunk_borders_and_the_last_chunk_may_be_short():
    moves, now, _ = travelled([[7, 0], [0, 6]], 5, frequency="capped")
    runs = [(label, len(list(run))) for label, run in groupby(now.epoch.strata.tolist())]
    assert [(move.client, len(move.codes)) for move in moves] == runs
    assert [move.next for move in moves] == [client for client, _ in runs[1:]] + [None]
    assert travelled([[12, 0], [0, 0]], 5, frequency="capped")[0] == [Hop(0, [0] * 12, None)]


@pytest.mark.parametrize("chunk", [1, 2, 5, 50])
def test_neighbouring_hops_are_different_clients_and_the_next_one_is_named(chunk):
    moves, _, _ = travelled(np.random.default_rng(4).integers(0, 9, (6, 4)), chunk)
    assert all(a.next in (b.client, None) and a.next != a.client for a, b in pairwise(moves))
    assert moves[-1].next is None


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({}, {1: 1, 2: 2, 7: 2, 10: 2, 14: 4, 18: 4, 20: 5}),
        ({"pool_min": 3}, {2: 2, 10: 3, 20: 5}),
        ({"pool": 0.0, "pool_min": 1}, {1: 1, 10: 1}),
        ({"pool": 1.0}, {1: 1, 7: 7}),
    ],
)
def test_pool_sizes(options, sizes):
    for clients, size in sizes.items():
        pools = begun(np.ones((clients, 1), int), **options).pools
        assert {len(set(pools.some(0))) for _ in range(40)} == {size}


@pytest.mark.parametrize(
    ("clients", "weights"), [("uniform", (1, 1, 1, 1)), ("weighted", (1, 2, 5, 8)), ("remaining", (1, 2, 2, 8))]
)
def test_clients_are_drawn_uniformly_or_by_their_counts_or_by_what_is_left(clients, weights):
    pools, w = begun([[1], [2], [5], [8]], clients=clients).pools, np.array(weights)
    pools.one(0), pools.some(0)  # what was worked out for later draws must not outlive the grant
    pools.grant(2, [0, 0, 0], [])
    assert by_chance(np.bincount([pools.one(0) for _ in range(8_000)]), w)
    seen, pairs = Counter(tuple(sorted(pools.some(0))) for _ in range(8_000)), list(combinations(range(4), 2))
    without_replacement = [w[list(p)].prod() * (1 / (w.sum() - w[list(p)])).sum() for p in pairs]
    assert by_chance([seen[p] for p in pairs], without_replacement)


def test_a_pool_drawn_after_somebody_left_is_as_good_as_any():
    seen = Counter()
    for seed in range(3_000):
        pools = begun(np.ones((4, 1), int), seed).pools
        pools.some(0)
        pools.grant(3, [0], [0])
        seen[tuple(sorted(pools.some(0)))] += 1
    assert sorted(seen) == [(0, 1), (0, 2), (1, 2)]
    assert by_chance(list(seen.values()))


def test_with_chunks_of_one_the_model_passes_to_any_holder():
    shop, entries = Shop([[1]] * 4, replacement=True), Counter()
    for hop in travelled(shop.counts, 1, shop, each=4_000, replacement=True)[0]:
        entries[hop.client] += len(hop.codes)
    assert by_chance([entries[client] for client in range(4)])


def test_batches_draw_with_replacement():
    assert batched([[9, 0], [0, 1]], 20, frequency="capped")[0][0].codes == {0: [0] * 9, 1: [1]}
    seen = Counter(len(batched([[3], [3]], 3, seed=seed, each=3)[0][0].codes.get(0, [])) for seed in range(2_000))
    assert by_chance([seen[k] for k in range(4)], [1, 3, 3, 1])


@pytest.mark.parametrize(
    ("options", "spared"), [({"pool_min": 2}, (0.27, 0.31, 0.33)), ({"pool_min": 3}, (0.45, 0.52, 0.53))]
)
def test_larger_chunks_spare_the_transfers_that_the_specification_simulated(options, spared):
    labels, client_updates, exhausting = np.repeat(np.arange(10), 300), np.zeros(4), np.zeros(2)
    for seed in range(3):
        parts = DirichletClass(alpha=0.5).deal(Labelled(labels), Labelled(labels[:0]), 10, Streams(seed)("p")).train
        counts = np.array([np.bincount(labels[part], minlength=10) for part in parts])
        asked = {"seed": seed, "replacement": True, **options}
        client_updates += [
            len(travelled(counts, n, Shop(counts, replacement=True), **asked)[0]) for n in (1, 5, 50, 150)
        ]
        exhausting += [len(travelled(counts, n, seed=seed, **options)[0]) for n in (1, 5)]
    assert (1 - client_updates[1:] / client_updates[0]).tolist() == pytest.approx(spared, abs=0.04)
    assert exhausting[1] < 0.85 * exhausting[0]


# ---- when samples or clients run out --------------------------------------------------------------------------------

RARE = [[5, 1], [4, 0], [4, 2]]  # 13 and 3 of 16: uniform asks for 8 of each


@both_ways
@pytest.mark.parametrize(
    ("options", "seen", "passes"),
    [
        ({}, [8, 8], [0, 2]),
        ({"on_empty": "drop"}, [8, 3], [0, 0]),
        ({"replacement": True}, [8, 8], [0, 0]),
        ({"frequency": "capped"}, [13, 3], [0, 0]),
    ],
)
def test_a_rare_label_starts_over_or_is_dropped(way, options, seen, passes):
    notes, shop = [], Shop(RARE, replacement="replacement" in options)
    _, now, _ = way(RARE, shop=shop, notes=notes, **options)
    assert shop.exposure == seen
    assert now.epoch.supply.passes == passes
    assert now.epoch.over == now.epoch.length == 16
    assert notes == ([1] if "on_empty" in options else [])
    if "frequency" in options:
        assert +shop.used == {(c, label): n for c, own in enumerate(RARE) for label, n in enumerate(own) if n}


@both_ways
def test_a_label_starts_over_only_when_every_sample_of_it_was_used(way):
    rng = np.random.default_rng(5)
    for seed in range(300):
        counts, each = rng.integers(1, 4, rng.integers(1, 4, 2)), int(rng.integers(1, 12))
        _, now, _ = way(counts, int(rng.integers(2, 10)), seed=seed, each=each)
        assert now.epoch.supply.passes == ((each - 1) // counts.sum(0)).tolist()


@both_ways
@pytest.mark.parametrize("seed", range(5))
def test_who_is_exhausted_is_not_asked_again_and_what_was_refused_comes_back(way, seed):
    counts, exhausted = np.random.default_rng(seed).integers(0, 6, (5, 3)), set()
    *_, shop = way(counts, 1 if way is travelled else 7, seed=seed, frequency="capped")
    for move, answer in shop.moves:
        if isinstance(move, Hop):
            move, answer = Reserve({move.client: move.codes}, 0), {move.client: answer}  # noqa: PLW2901
        if isinstance(move, Reserve):
            assert not exhausted & {(client, code) for client, codes in move.codes.items() for code in codes}
            exhausted |= {(client, code) for client, codes in answer.items() for code in codes}
    assert shop.exposure == counts.sum(0).tolist()


def test_only_refused_entries_are_drawn_again():
    *_, shop = batched([[1], [20]], 10, frequency="capped")
    for (asked, answer), (again, _) in pairwise(shop.moves):
        if isinstance(asked, Reserve) and isinstance(again, Reserve):
            assert sum(map(len, again.codes.values())) == sum(map(len, answer.values())) > 0
    assert [sum(map(len, m.codes.values())) for m, _ in shop.moves if isinstance(m, Learn)] == [10, 10, 1]


@both_ways
def test_entries_of_a_silent_client_go_to_other_holders_and_labels_without_one_are_dropped(way):
    counts, notes = [[4, 4, 0], [4, 0, 0], [3, 4, 9]], []
    _, now, shop = way(counts, shop=Shop(counts, deaf={2}), each=6, notes=notes)
    assert shop.exposure == [6, 6, 0]
    assert now.epoch.supply.gone == {2}
    assert notes == [2]
    _, now, shop = way(counts, shop=Shop(counts, deaf={0, 1, 2}), each=6)
    assert shop.trained == []
    assert now.epoch.over == now.epoch.length


@both_ways
@pytest.mark.parametrize("options", [{}, {"replacement": True}, {"clients": "remaining"}, {"on_empty": "drop"}])
def test_a_stock_that_is_not_there_is_given_up(way, options):
    shop = Shop([[5, 0], [0, 0]], replacement="replacement" in options)
    _, now, _ = way([[5, 5], [5, 5]], shop=shop, **options)
    assert shop.exposure == [5 if "on_empty" in options else 10, 0]
    assert now.epoch.supply.dropped == ({0, 1} if "on_empty" in options else {1})


def test_a_client_that_is_lost_after_its_label_started_over_takes_nothing_with_it():
    for seed in range(60):
        shop = Shop([[1], [1], [1]], absent=0.3, seed=seed)
        _, now, _ = batched(shop.counts, 4, shop, seed, each=4)
        assert now.pools.trained == shop.exposure


def test_nothing_that_was_planned_for_a_silent_client_is_sent_to_it():
    for seed in range(60):
        shop = Shop([[9, 0], [0, 9]], absent=0.2, seed=seed)
        _, now, _ = travelled(shop.counts, 9, shop, seed)
        assert now.pools.trained == shop.exposure


@both_ways
@settings(max_examples=200, deadline=None)
@given(
    counts=hnp.arrays(np.int64, st.tuples(st.integers(1, 5), st.integers(1, 4)), elements=st.integers(0, 5)),
    options=st.fixed_dictionaries(
        {
            "frequency": st.sampled_from(["uniform", "capped"]),
            "clients": st.sampled_from(["uniform", "weighted", "remaining"]),
            "order": st.sampled_from(["shuffled", "spread"]),
            "on_empty": st.sampled_from(["refill", "drop"]),
            "replacement": st.booleans(),
            "pool": st.sampled_from([0.0, 0.25, 1.0]),
            "pool_min": st.integers(1, 3),
            "length": st.none() | st.integers(1, 40),
        }
    ),
    absent=st.sampled_from([0.0, 0.02, 0.1, 0.5]),
    lies=st.booleans(),
    seed=st.integers(0, 9),
    size=st.integers(1, 9),
)
def test_every_epoch_ends_and_accounts_for_every_entry(way, counts, options, absent, lies, seed, size):
    assume(counts.sum())
    really = counts * np.random.default_rng(seed).integers(0, 2, counts.shape) if lies else counts
    shop, notes = Shop(really, absent, seed, options["replacement"]), []
    _, now, _ = way(counts, size, shop, seed, notes, **options)
    seen, f = np.array(shop.exposure), np.bincount(now.epoch.strata, minlength=counts.shape[1])
    lost = now.epoch.supply.dropped
    assert now.epoch.left == 0
    assert now.epoch.over == now.epoch.length == f.sum()
    assert now.pools.trained == seen.tolist()
    assert all(seen[label] == f[label] or (seen[label] < f[label] and label in lost) for label in range(len(f)))
    assert sorted(notes) == sorted(lost)
    assert now.epoch.supply.gone == shop.silent
    if not (absent or lies):
        used_up = options["on_empty"] == "drop" and not options["replacement"]
        assert seen.tolist() == (np.minimum(f, counts.sum(0)) if used_up else f).tolist()


# ---- at the client --------------------------------------------------------------------------------------------------


class Desk:
    """One client with 3 samples of label 0 and 2 of label 1, all of whose reports are accepted."""

    labels = np.array([0, 1, 0, 1, 0])

    def __init__(self, **options):
        self.take, self.client_state, self.trained = Take(**options), {}, []

    def context(self, labels=(), epoch=0, batch=1):
        config = {"labels": tuple(labels), "epoch": epoch, "batch": batch}
        client, streams = Client(0, np.arange(5), self.labels, 2), Streams(0)
        rng = lambda purpose, **where: streams(purpose, **({"round": epoch, "client": 0} | where))  # noqa: E731
        return ClientContext(
            client, Task(0, epoch, 0, config=config), self.client_state, {}, 1, 4, 0.1, rng, None, self.learn, None
        )

    def learn(self, positions):
        self.trained += positions.tolist()
        return Gradient(torch.ones(2) * len(positions), torch.tensor(1.0))

    def kept(self, done):
        self.client_state = {**self.client_state, **done.client_state}
        return done

    def reserve(self, *where, **rest):
        return self.kept(self.take.reserve(self.run_task(*where, **rest))).metrics["refused"]

    def gradient(self):
        return self.kept(self.take.gradient(self.run_task()))

    def plan(self, *where):
        order = self.kept(self.take.plan(self.run_task(*where)))
        return order.epochs[0].tolist(), order.metrics


def test_two_reservations_for_a_batch_are_trained_on_together():
    desk = Desk()
    assert desk.reserve([0, 1]) == desk.reserve([0]) == ()
    assert desk.gradient().samples == len(set(desk.trained)) == 3
    assert desk.labels[desk.trained].tolist() == [0, 1, 0]


def test_a_sample_reserved_for_a_batch_that_never_came_is_given_next():
    desk = Desk()
    desk.reserve([0, 0, 1], batch=1)
    first, _, last = desk.client_state["held"].tolist()
    desk.reserve([0, 1], batch=2)
    desk.gradient()
    assert desk.trained == [first, last]
    assert desk.reserve([0, 0, 0, 1, 1], batch=3) == (0, 1)
    desk.gradient()
    assert sorted(desk.trained) == [0, 1, 2, 3, 4]


def test_a_new_epoch_starts_at_the_front_in_a_new_order_and_forgets_reservations():
    desk, orders = Desk(), set()
    for epoch in range(12):
        assert desk.reserve([0, 0, 0, 1, 1], epoch) == ()
        orders.add(tuple(desk.client_state["held"].tolist()))
    assert all(sorted(order) == [0, 1, 2, 3, 4] for order in orders)
    assert len(orders) > 4


def test_what_is_used_up_is_refused_and_named_exhausted_until_a_new_pass():
    desk = Desk()
    positions, metrics = desk.plan([1, 0, 1, 1, 0, 1])
    assert desk.labels[positions].tolist() == [1, 0, 1, 0]
    assert metrics == {"refused": (1, 1), "exhausted": (1,)}
    assert sorted(positions + desk.plan([0, 0, 1])[0]) == [0, 1, 2, 3, 4]
    assert sorted(desk.plan([0, 0, 0], 1)[0]) == [0, 2, 4]
    passes = {tuple(desk.plan([2 * turn] * 3, 2)[0]) for turn in range(12)}
    assert {tuple(sorted(order)) for order in passes} == {(0, 2, 4)}
    assert len(passes) > 2
    desk = Desk(replacement=True)
    positions = desk.plan([0] * 5)[0] + desk.plan([0] * 4)[0]
    assert all(sorted(positions[i : i + 3]) == [0, 2, 4] for i in (0, 3, 6))


# ---- whole runs -----------------------------------------------------------------------------------------------------

DRIVERS = pytest.mark.parametrize("driver", ["chain", "sync"])
EXECUTIONS = pytest.mark.parametrize("execution", ["messages", "fused"])


def stratified(driver, execution="messages", federation=None, **options):
    schedule = {"kind": "stratified", **options}
    return session_of({"method.driver": driver, "method.schedule": schedule, "engine.execution": execution}, federation)


def played(work, count=2, engine=in_process):
    """Play rounds: the last state, what was noted by kind, and who was asked in each round."""
    notes, asked, state, at = {}, [], work.initial_state(), engine(work)
    client_info = work.client_info if at.can_fuse else work.client_info.without_ground_truth()
    for r in range(count):
        view = work.plan.view(client_info, r, lambda kind, **fields: notes.setdefault(kind, []).append(fields))
        with one_thread():
            outcomes = play_round(work.plan, state, view, at)
        asked.append(Counter(ask.client for outcome in outcomes for ask in outcome.step.asks))
    return state, notes, asked


@pytest.fixture
def rows(monkeypatch):
    """Record which rows of the data are given, by epoch, in order."""
    rows, really = {}, Take._take

    def recorded(take, context, cursor):
        positions, refused = really(take, context, cursor)
        rows.setdefault(context.task.config["epoch"], []).extend(context.client.rows[positions].tolist())
        return positions, refused

    monkeypatch.setattr(Take, "_take", recorded)
    return rows


@DRIVERS
@EXECUTIONS
@pytest.mark.parametrize("parts", [1, 3])
def test_capped_uses_every_sample_exactly_once_an_epoch(driver, execution, parts, rows):
    work = stratified(driver, execution, frequency="capped", rounds_per_epoch=parts)
    _, notes, _ = played(work, 2 * parts)
    everything = list(range(len(work.federation.train)))
    assert [sorted(own) for own in rows.values()] == [everything, everything]
    assert [event["epoch"] for event in notes["schedule"]] == [1] * parts + [2] * parts


@DRIVERS
@EXECUTIONS
def test_uniform_without_refill_uses_no_sample_twice(driver, execution, rows):
    work = stratified(driver, execution, on_empty="drop")
    _, notes, _ = played(work)
    totals, labels = work.federation.counts.sum(0), work.federation.labels
    for own, event in zip(rows.values(), notes["schedule"], strict=True):
        assert len(set(own)) == len(own)
        assert np.bincount(labels[own]).tolist() == event["exposure"]
        assert event["exposure"] == np.minimum(totals, np.ceil(totals.sum() / 3)).tolist()


@DRIVERS
def test_an_epoch_in_several_rounds_plays_the_same_schedule(driver, rows):
    seen = []
    for parts in (1, 4):
        rows.clear()
        work = stratified(driver, replacement=True, rounds_per_epoch=parts)
        entries = [event["entries"] for event in played(work, parts)[1]["schedule"]]
        assert max(entries) - min(entries) <= (1 if driver == "chain" else 4)
        labels = work.federation.labels[rows[0]]
        seen.append([sorted(labels[i : i + 4]) for i in range(0, len(labels), 4)])  # one batch comes client by client
    assert seen[0] == seen[1]


@DRIVERS
def test_an_epoch_is_resumed_in_its_middle(driver):
    whole, outcomes = play(stratified(driver, clients="remaining", rounds_per_epoch=4), 6)
    again, seen = play(stratified(driver, clients="remaining", rounds_per_epoch=4), 6, cut=3)
    assert same(whole, again)
    assert outcomes == seen
    assert (whole.driver.epochs, whole.driver.rounds) == (2, 2)


@EXECUTIONS
def test_a_batch_larger_than_the_schedule_is_one_exact_gradient_step(execution):
    work = stratified("sync", execution, frequency="capped")
    work.plan = replace(work.plan, local=replace(work.plan.local, batch_size=500))
    local, data = work.plan.local, work.federation.train
    module = local.build().to(local.dtype)
    gradients = torch.autograd.grad(cross_entropy(module(data.x.to(local.dtype)), data.y), list(module.parameters()))
    by_hand = work.initial_state().model.params - 0.1 * torch.cat([g.flatten() for g in gradients])
    torch.testing.assert_close(played(work, 1)[0].model.params, by_hand, rtol=0, atol=1e-12)


def deaf(*clients, until=99):
    class Deaf(WireEngine):
        def ask(self, step, tasks):
            return super().ask(step, [t for t in tasks if t.client not in clients or t.round >= until])

    return lambda work: Deaf(work.plan.local, work.federation)


@DRIVERS
def test_a_silent_client_is_skipped_until_the_next_epoch(driver):
    _, notes, asked = played(stratified(driver, each=6), 2, deaf(3, until=1))
    assert [(event["gone"], event["exposure"]) for event in notes["schedule"]] == [([3], [6, 6, 6]), ([], [6, 6, 6])]
    assert asked[0][3] == 1 <= asked[1][3]


@DRIVERS
def test_a_label_whose_holders_are_silent_is_dropped_and_with_nobody_there_the_model_stays(driver):
    x, y = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32), np.repeat([0, 1, 2], 10)
    federation = Federation.from_arrays(x, y, [range(15), range(15, 20), range(20, 30)], test=(x, y))
    _, notes, _ = played(stratified(driver, federation=federation), 1, deaf(2))
    assert [event["stratum"] for event in notes["label_dropped"]] == [2]
    assert [(event["exposure"], event["entries"]) for event in notes["schedule"]] == [([10, 10, 0], 30)]
    work = stratified(driver, federation=federation)
    state, notes, _ = played(work, 2, deaf(0, 1, 2))
    assert same(state, work.initial_state())
    assert [event["dropped"] for event in notes["schedule"]] == [[0, 1, 2]] * 2


@DRIVERS
@EXECUTIONS
def test_a_run_on_false_beliefs_ends(driver, execution):
    work = stratified(driver, execution)
    known = {"labels": np.ones((6, 3), bool), "totals": np.array([9, 9, 90])}
    work.client_info = replace(work.client_info, _known={**work.client_info._known, **known})
    assert [event["exposure"] for event in played(work)[1]["schedule"]] == [[36, 36, 36]] * 2


@dataclass(frozen=True)
class AwayLater(Devices):
    """Client 4 cannot be asked from the second round on."""

    def find_available(self, view):
        return view.eligible[view.eligible != 4] if view.round else view.eligible


@DRIVERS
def test_who_goes_away_in_the_middle_of_an_epoch_is_not_asked(driver):
    work = stratified(driver, rounds_per_epoch=3)
    work.plan = replace(work.plan, system=AwayLater())
    _, notes, asked = played(work, 3)
    assert [4 in clients for clients in asked] == [True, False, False]
    assert sum(event["entries"] for event in notes["schedule"]) == len(work.federation.train)


def test_one_label_overall_is_said():
    x, y = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32), np.arange(9) % 2
    federation = Federation.from_arrays(x, y, [np.flatnonzero(y), []], test=(x, y))
    _, notes, _ = played(stratified("chain", federation=federation), 1)
    assert [event["what"] for event in notes["warning"]] == ["method.schedule"]
    assert notes["schedule"][0]["exposure"] == [0, 4]


# ---- requests that are refused --------------------------------------------------------------------------------------

SINGLE, BATCH = "method.name=stratify-single", "method.name=stratify-batch"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ((SINGLE, "method.schedule.chunk=0"), "method.schedule.chunk = 0 is not valid"),
        ((SINGLE, "method.schedule.chunks=3"), 'method.schedule.chunks is not an option (did you mean "chunk"?)'),
        ((SINGLE, "method.schedule.frequency=often"), 'method.schedule.frequency = "often" is not valid'),
        (("method.driver=sync",), "method.schedule"),
        (("method.schedule=stratified",), "method.driver"),
        ((SINGLE, "method.selector=size"), "method.selector"),
        ((BATCH, "method.sampler=full-batch"), "method.sampler"),
        ((SINGLE, "model.norm=batch"), "batch statistics"),
        ((SINGLE, "train.optimizer.momentum=0.9"), "train.optimizer.state"),
        ((SINGLE, "method.server_step.lr=0.5"), "method.server_step"),
        ((BATCH, "method.schedule.rounds_per_epoch=2", "data.stream.start=0.2"), "method.schedule.rounds_per_epoch"),
        ((SINGLE, "method.schedule.rounds_per_epoch=2", "data.drift.at=[2]"), "method.schedule.rounds_per_epoch"),
    ],
)
def test_a_wrong_request_ends_with_code_2_and_names_the_key(asked, said, capsys, monkeypatch):
    settings = [word for pair in (*asked, "train.rounds=2") for word in ("--set", pair)]
    monkeypatch.setattr(sys, "argv", ["fedstrata", "run", "-q", *settings])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert said in err
    assert not Path("runs").exists()
