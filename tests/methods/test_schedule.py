"""The schedule of labels: part A1 of the specification, from the frequencies to the last entry of an epoch."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from functools import partial
from itertools import groupby, pairwise

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import chisquare

from fedstrata.core.client_info import ClientInfo
from fedstrata.core.rng import Streams
from fedstrata.core.steps import View
from fedstrata.data.partitions.base import Labelled
from fedstrata.data.partitions.dirichlet import DirichletClass
from fedstrata.methods.drivers.passing import Passing
from fedstrata.methods.drivers.scheduled import ScheduleState
from fedstrata.methods.schedules.batches import Learn, Reserve, batches
from fedstrata.methods.schedules.draws import Draws
from fedstrata.methods.schedules.epoch import Epoch
from fedstrata.methods.schedules.hops import Hop, hops, select_runs
from fedstrata.methods.schedules.stratified import Stratified, arrange, scale_frequencies
from fedstrata.methods.schedules.supply import Supply


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


def epoch(follow, counts, size=5, shop=None, seed=0, notes=None, **options):
    now, shop = begun(counts, seed, notes, **options), shop or Shop(counts)
    return shop.serve(follow(now.epoch, now.pools, now.until, size)), now, shop


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
    assert scale_frequencies(f, length).tolist() == whole.tolist()


def test_every_order_of_a_schedule_is_equally_likely():
    rng = np.random.default_rng(1)
    seen = Counter(tuple(arrange(np.array([2, 1, 1]), "shuffled", rng)[0].tolist()) for _ in range(6_000))
    assert len(seen) == 12
    assert by_chance(list(seen.values()))


def test_spread_leaves_no_stretch_unbalanced():
    def worst(order):
        labels, _ = arrange(np.full(5, 100), order, np.random.default_rng(2))
        ahead = np.cumsum(np.eye(5)[labels] - 0.2, axis=0)
        return np.ptp(np.vstack([np.zeros(5), ahead]), axis=0).max()

    assert worst("spread") <= 4
    assert worst("shuffled") > 8


def test_an_entry_that_comes_back_finds_any_position_among_those_still_to_come():
    first, second, rng = Counter(), Counter(), np.random.default_rng(3)
    draws = Draws(rng)
    for _ in range(4_000):
        epoch = Epoch(0, 8, *arrange(np.array([8, 0, 0]), "shuffled", rng), Supply.of([[0]] * 3))
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


def selected(chunk, pools, select=select_runs, **options):
    """Select runs from pools that draw nobody anew."""
    pools = {stratum: list(own) for stratum, own in pools.items()}
    return list(select(chunk, pools, lambda stratum, client: pools[stratum].remove(client), **options))


def test_run_selection_oracle_and_short_chunks():
    pools = {"a": [0, 1], "b": [1, 1, 2], "c": [2]}  # 1 was drawn twice for b, and serves it twice
    assert selected("abbca", pools) == [(1, ["a", "b", "b"]), (2, ["c"]), (0, ["a"])]
    assert selected("abb", {**pools, "b": [1, 2, 2]}) == [(1, ["a", "b"]), (2, ["b"])]
    assert selected("cb", pools) == [(2, ["c", "b"])]
    assert selected("b", {"b": [2, 1]}) == [(2, ["b"])]  # of equals the one drawn first
    assert selected("", pools) == []


@given(st.data(), st.lists(st.integers(0, 3), min_size=1, max_size=9))
def test_a_run_is_the_longest_that_a_client_of_the_pool_can_serve(data, chunk):
    pools = {p: data.draw(st.lists(st.integers(0, 3), min_size=9, max_size=12)) for p in range(4)}
    left, at = {p: list(own) for p, own in pools.items()}, 0

    def reach(client):
        end = at
        while end < len(chunk) and not Counter(chunk[at : end + 1]) - Counter(
            {p: own.count(client) for p, own in left.items()}
        ):
            end += 1
        return end - at

    for client, run in selected(chunk, pools):
        reaches = {c: reach(c) for c in left[chunk[at]]}
        assert run == chunk[at : at + max(reaches.values())]
        assert client == next(c for c in left[chunk[at]] if reaches[c] == len(run))
        for stratum in run:
            left[stratum].remove(client)
        at += len(run)
    assert at == len(chunk)


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


@pytest.mark.parametrize("holders", [1, 3, 40])
@pytest.mark.parametrize("clients", ["uniform", "weighted", "remaining", "spread"])
def test_a_pool_is_as_large_whatever_the_number_of_holders_and_refills(holders, clients):
    pools = begun(np.full((holders, 1), 99), clients=clients, pool=4).pools
    for _ in range(40):
        first, *others = pools.pool(0)
        assert len(others) == 3
        pools.use(0, first)
        assert pools.pool(0)[:3] == others


def test_a_pool_takes_no_more_than_there_is_left():
    pools = begun([[1], [1], [3]], clients="remaining", pool=9).pools
    assert sorted(pools.pool(0)) == [0, 1, 2, 2, 2]
    pools.exhaust(0, 2)
    assert sorted(pools.pool(0)) == [0, 1]


@pytest.mark.parametrize("clients", ["uniform", "weighted", "remaining", "spread"])
def test_whoever_is_used_up_leaves_the_pool(clients):
    pools = begun(np.full((3, 1), 50), clients=clients).pools
    while 1 not in pools.pool(0):
        pools.use(0, pools.pool(0)[0])
    pools.grant(1, [0], [0])
    assert {pools.one(0) for _ in range(30)} | set(pools.pool(0)) == {0, 2}


def test_with_chunks_of_one_the_model_passes_to_any_holder():
    shop, entries = Shop([[1]] * 4, replacement=True), Counter()
    for hop in travelled(shop.counts, 1, shop, each=4_000, replacement=True)[0]:
        entries[hop.client] += len(hop.codes)
    assert by_chance([entries[client] for client in range(4)])


def test_batches_draw_with_replacement():
    assert batched([[9, 0], [0, 1]], 20, frequency="capped")[0][0].codes == {0: [0] * 9, 1: [1]}
    seen = Counter(len(batched([[3], [3]], 3, seed=seed, each=3)[0][0].codes.get(0, [])) for seed in range(2_000))
    assert by_chance([seen[k] for k in range(4)], [1, 3, 3, 1])


@pytest.mark.parametrize(("clients", "spared"), [("uniform", (0.33, 0.36, 0.36)), ("weighted", (0.37, 0.40, 0.40))])
def test_larger_chunks_spare_about_as_many_transfers_as_the_paper_says(clients, spared):
    """Section V-F: around 35 % with chunks of 5, a few per cent more with larger ones. Dirichlet(0.5), 10 clients."""
    labels, client_updates = np.repeat(np.arange(10), 300), np.zeros(4)
    for seed in range(5):
        parts = DirichletClass(alpha=0.5).deal(Labelled(labels), Labelled(labels[:0]), 10, Streams(seed)("p")).train
        counts = np.array([np.bincount(labels[part], minlength=10) for part in parts])
        client_updates += [len(travelled(counts, n, seed=seed, clients=clients)[0]) for n in (1, 5, 50, 150)]
    assert (1 - client_updates[1:] / client_updates[0]).tolist() == pytest.approx(spared, abs=0.01)


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
            "clients": st.sampled_from(["uniform", "weighted", "remaining", "spread"]),
            "order": st.sampled_from(["shuffled", "spread"]),
            "on_empty": st.sampled_from(["refill", "drop"]),
            "replacement": st.booleans(),
            "pool": st.integers(1, 8),
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
