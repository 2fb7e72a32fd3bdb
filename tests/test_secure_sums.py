"""Sums under masks: exact, recoverable, and closed to a server that is curious, or lies, or has members on its side."""

from __future__ import annotations

import struct
from collections import defaultdict
from functools import cache, partial
from hashlib import sha256, shake_256
from itertools import combinations, combinations_with_replacement, count
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import hypergeom

from fedstrata.core.errors import RequestError
from fedstrata.privacy.frames import SERVER, Frame, RefusedError, open_frame
from fedstrata.privacy.identity import Identity, KeyDirectory
from fedstrata.privacy.masks import add_streams, stream
from fedstrata.privacy.sums import neighbours as circle
from fedstrata.privacy.sums import shamir
from fedstrata.privacy.sums.fixed_point import NARROW, WIDE, Encoding, TooLargeError
from fedstrata.privacy.sums.member import SumMember
from fedstrata.privacy.sums.neighbours import degree, fails, leaks, neighbours, threshold
from fedstrata.privacy.sums.protocol import (
    ADVERTISE,
    AGREE,
    AGREED,
    DELIVERY,
    INPUT,
    KEYS,
    REVEAL,
    SHARES,
    SURVIVORS,
    SumTask,
    listed,
    listing,
    pack_fields,
)
from fedstrata.privacy.sums.secure_sum import Parties, secure_sum
from fedstrata.privacy.sums.shamir import UnrecoverableError, recover_secret, share_secret
from fedstrata.privacy.sums.summing import Summing

JOB, OTHER_JOB = b"a job of 16 byte", b"another of these"
NEVER = 5  # steps of a member: advertise, share, masked, agree, reveal


def entropy(*key):
    """Return a seeded source of bytes."""
    calls = count()
    return lambda size: shake_256(repr((*key, next(calls))).encode()).digest(size)


@cache
def identity(party):
    return Identity.new(entropy("identity", party))


@cache
def key_directory(n):
    return KeyDirectory.of(identity(SERVER), [identity(client) for client in range(n)])


def world(n, size=4, job=JOB, encoding=NARROW, needed=None, rolled=None):
    """Return a server and n members that have not yet met."""
    keys = key_directory(rolled or n)
    task = SumTask(job, tuple(range(n)), size, keys.digest, encoding, needed)
    members = {i: SumMember(task, i, identity(i), keys, entropy("member", job, i)) for i in range(n)}
    return SimpleNamespace(task=task, server=Summing(task, identity(SERVER), keys), members=members, key_directory=keys)


def plain(act, data):
    """Hand a message over."""
    return act(data)


def play(w, values, weights=None, stops=None, until=None, hand=plain):
    """Play the steps of a sum; give everything that was sent, by kind and member, and the sum at the end.

    `stops` names the step that a member no longer takes, and `until` the first one that nobody takes.
    """
    stops, weights = stops or {}, weights or dict.fromkeys(w.members, 1.0)
    said = defaultdict(dict)

    def go(step, down, told, up, act, take):
        said[down] = told
        for i, data in told.items():
            if stops.get(i, NEVER) > step:
                said[up][i] = hand(partial(act, i), data)
                hand(partial(take, i), said[up][i])

    def masked(i, data):
        return w.members[i].masked(data, values[i])

    go(0, "", dict.fromkeys(w.members, b""), ADVERTISE, lambda i, _: w.members[i].advertise(), w.server.advertised)
    rest = (
        (KEYS, w.server.keys, SHARES, lambda i, data: w.members[i].share(data), w.server.shared),
        (DELIVERY, partial(w.server.deliveries, weights), INPUT, masked, w.server.masked),
        (SURVIVORS, w.server.survivors, AGREE, lambda i, data: w.members[i].agree(data), w.server.agreed),
        (AGREED, w.server.agreements, REVEAL, lambda i, data: w.members[i].reveal(data), w.server.revealed),
    )
    for step, (down, tell, *up) in enumerate(rest, 1):
        if until is None or step < until:
            go(step, down, tell(), *up)
    return SimpleNamespace(said=said, total=w.server.total() if until is None else None)


def numbers(n, size, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    return {i: rng.normal(0, 2, size).astype(dtype) for i in range(n)}


def plain_sum(encoding, values, weights, n):
    """Return the sum of the encoded numbers, in Python's own integers."""
    total = [0] * len(next(iter(values.values())))
    for i, array in values.items():
        scaled = [round(float(v) * weights[i] * 2**encoding.fraction) for v in array]
        total = [a + b for a, b in zip(total, scaled, strict=True)]
    return np.array(total, dtype=np.float64) / 2**encoding.fraction


def from_server(kind, *fields, job=JOB, by=SERVER):
    """Return a message that is signed by the server, whatever it says."""
    return Frame(kind, job, SERVER, fields).sign(identity(by))


def words_of(data):
    return np.frombuffer(data, "<u4").copy()


def words_in(w, said, i):
    """Read a member's masked words."""
    return words_of(open_frame(said[INPUT][i], w.key_directory, INPUT, w.task.job, i).fields[0])


def looks_uniform(words):
    """Compare the bytes with evenly spread ones: chi-square within six deviations, at every place of a word."""
    spread = []
    for place in words.view(np.uint8).reshape(-1, words.itemsize).T:
        found, expected = np.bincount(place, minlength=256), len(place) / 256
        spread.append(((found - expected) ** 2 / expected).sum())
    return all(abs(chi - 255) < 6 * np.sqrt(2 * 255) for chi in spread)


# ---- fixed point -----------------------------------------------------------------------------------------------------
def test_words_by_hand():
    quarters = Encoding(32, 2)
    words = quarters.words(np.array([1.25, -0.5, 0.1, 0.375, 0.0]), n=3)
    assert words.tolist() == [5, 2**32 - 2, 0, 2, 0]  # 1.5 quarters are rounded to the even one
    assert quarters.numbers(words).tolist() == [1.25, -0.5, 0.0, 0.5, 0.0]
    assert quarters.words(np.array([3.0]), n=3, weight=0.5).tolist() == [6]
    assert Encoding(64, 1).words(np.array([-0.5]), n=1).tolist() == [2**64 - 1]
    assert quarters.numbers(words + quarters.words(np.full(5, -1.25), n=3)).tolist() == [
        0.0,
        -1.75,
        -1.25,
        -0.75,
        -1.25,
    ]


@pytest.mark.parametrize("encoding", [NARROW, WIDE, Encoding(32, 0), Encoding(64, 62)])
@pytest.mark.parametrize("n", [1, 3, 10, 1000])
def test_largest_numbers_do_not_wrap_around_and_larger_ones_are_refused(encoding, n):
    most = encoding.most(n)
    assert most <= 2.0 ** (encoding.bits - 1 - encoding.fraction) / n
    for value in (most, -most):
        words = encoding.words(np.array([value]), n)
        total = np.zeros(1, words.dtype)
        for _ in range(n):
            total += words
        assert encoding.numbers(total)[0] == pytest.approx(n * value, rel=1e-15)
    for value in (most + encoding.unit, -2 * most, 2.0 ** (encoding.bits - 1 - encoding.fraction) / n, 1e250):
        if value != most:  # a float that is large has no neighbour one unit away
            with pytest.raises(TooLargeError, match="at most"):
                encoding.words(np.array([0.0, value]), n)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_what_is_not_finite_is_refused(value, weight):
    for size in (1, 40_000):
        array = np.zeros(size, np.float32)
        array[-1] = value
        with pytest.raises(TooLargeError, match="not finite"):
            NARROW.words(array, 3, weight)


def test_error_of_a_sum_is_at_most_half_a_unit_each():
    arrays = [np.random.default_rng(i).uniform(-10, 10, 40_000) for i in range(7)]
    total = sum(NARROW.words(array, 7).astype(np.uint32) for array in arrays)
    error = np.abs(NARROW.numbers(total) - sum(arrays)) / NARROW.unit
    assert 1.5 < error.max() <= 3.5 + 1e-6


def test_tensors_and_bad_encodings():
    array = np.linspace(-1, 1, 5, dtype=np.float32)
    np.testing.assert_array_equal(NARROW.words(torch.tensor(array, requires_grad=True), 3), NARROW.words(array, 3))
    with pytest.raises(RequestError, match="flat"):
        NARROW.words(array[None], 3)
    with pytest.raises(RequestError, match="bits = 16"):
        Encoding(16, 2)
    with pytest.raises(RequestError, match="fraction = 31"):
        Encoding(32, 31)


# ---- sharing ---------------------------------------------------------------------------------------------------------
def test_shares_by_hand():
    seven = lambda size: (7).to_bytes(size, "little")  # noqa: E731
    five = (5).to_bytes(32, "little")
    shares = share_secret(five, 2, [0, 2, 9], seven)  # 5 + 7 x at 1, 3 and 10
    assert [int.from_bytes(share, "little") for share in shares.values()] == [12, 26, 75]
    assert recover_secret([(9, shares[9]), (0, shares[0])], 2) == five
    assert recover_secret([(0, shares[0]), (2, shares[2]), (9, bytes(33))], 2) == five  # two are enough


def test_prime_is_one():
    odd, twos = shamir.PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in range(2, 42):  # Miller and Rabin
        powers = [pow(base, odd << i, shamir.PRIME) for i in range(twos)]
        assert powers[0] == 1 or shamir.PRIME - 1 in powers
    assert 2**256 < shamir.PRIME < 2**257


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32, sha256(b"any").digest()])
def test_any_so_many_shares_recover_and_fewer_do_not(secret):
    shares = list(share_secret(secret, 3, [0, 3, 4, 11, 70_000], entropy("shamir")).items())
    for some in combinations(shares, 3):
        assert recover_secret(some, 3) == secret
    for some in combinations(shares, 2):
        with pytest.raises(UnrecoverableError, match="2 shares were given where 3"):
            recover_secret(some, 3)
    with pytest.raises(UnrecoverableError, match="two shares of one party"):
        recover_secret([*shares[:3], shares[0]], 3)


def test_share_serves_its_holder_only():
    shares = share_secret((5).to_bytes(32, "little"), 2, [0, 2], lambda size: (7).to_bytes(size, "little"))
    with pytest.raises(UnrecoverableError, match="do not fit"):  # 12 at 2 and 26 at 3 make -16 at 0
        recover_secret([(1, shares[0]), (2, shares[2])], 2)


# ---- neighbours ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("n", [3, 25, 26, 100, 301])
def test_neighbours_are_mutual_and_equally_many(n):
    members = list(range(5, 5 + 2 * n, 2))
    near = neighbours(members, bytes(32))
    assert near == neighbours(members, bytes(32))
    assert set(near) == set(members)
    assert {len(row) for row in near.values()} == {degree(n)}
    assert all(member in near[other] and other != member for member in members for other in near[member])
    assert all(list(row) == sorted(set(row)) for row in near.values())
    if n <= 25:
        assert degree(n) == n - 1
    else:
        assert degree(n) < n - 1
        assert near != neighbours(members, b"\x01" * 32)


@pytest.mark.parametrize("n", [26, 100, 1000])
def test_degree_is_the_smallest_that_keeps_what_is_promised(n):
    k = degree(n)
    assert leaks(n, k) <= 2**-40
    assert fails(n, k) <= 2**-20
    assert max(leaks(n, k - 2) / 2**-40, fails(n, k - 2) / 2**-20) > 1
    assert fails(n, k) == pytest.approx(n * hypergeom.sf(k - threshold(n, k), n - 1, int(0.2 * n + 0.99), k), abs=1e-12)


def test_circle_falls_apart_where_two_runs_are_missing(monkeypatch):
    monkeypatch.setattr(circle, "degree", lambda n: 6)
    near = neighbours(range(20), bytes(32))
    order = np.argsort(stream(bytes(32), 20), kind="stable").tolist()
    rng, seen = np.random.default_rng(0), set()
    for _ in range(2000):
        gone = set(rng.choice(20, 10, replace=False).tolist())
        here = [order.index(member) for member in order if member not in gone]
        gaps = np.diff([*here, here[0] + 20]) - 1
        whole = _reached(near, gone) == set(range(20)) - gone
        assert whole == ((gaps >= 3).sum() < 2)
        seen.add(whole)
    assert seen == {True, False}


def _reached(near, gone):
    todo = [next(member for member in near if member not in gone)]
    found = set(todo)
    while todo:
        new = set(near[todo.pop()]) - gone - found
        found |= new
        todo += new
    return found


@pytest.mark.parametrize("n", range(3, 26))
def test_two_majorities_among_all_share_an_honest_member(n):
    k = n - 1
    colluding = (k - 1) // 3  # fewer than a third
    assert 2 * threshold(n, k) > k + colluding


# ---- masks -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
@pytest.mark.parametrize("size", [0, 1, 16_384, 40_001])
def test_streams_in_chunks_are_the_whole_streams(dtype, size):
    a, b = b"a" * 32, b"b" * 32
    to = np.arange(size, dtype=dtype)
    add_streams(to, [a, a], [b])
    whole = stream(a, size, dtype) * dtype(2) - stream(b, size, dtype)
    np.testing.assert_array_equal(to, whole + np.arange(size, dtype=dtype))
    add_streams(to, [b], [a, a])
    np.testing.assert_array_equal(to, np.arange(size, dtype=dtype))


def test_stream_is_chacha20_of_rfc_8439():
    """Appendix A.1, test vector 1: key, nonce and counter 0."""
    assert stream(bytes(32), 2).tobytes().hex() == "76b8e0ada0f13d90405d6ae55386bd28"


# ---- sums ------------------------------------------------------------------------------------------------------------
SIZES = (10, 600, 33, 512, 100)
WEIGHTS = {
    "size": {i: size / max(SIZES) for i, size in enumerate(SIZES)},
    "soft": dict(enumerate((np.exp(SIZES / np.max(SIZES)) / np.exp(SIZES / np.max(SIZES)).sum()).tolist())),
    "unit": dict.fromkeys(range(5), 1.0),
}


@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS)
@pytest.mark.parametrize("size", [0, 1, 7, 20_000])
@pytest.mark.parametrize(("encoding", "dtype"), [(NARROW, np.float32), (WIDE, np.float64)])
def test_sum_is_that_of_the_encoded_numbers(weights, size, encoding, dtype):
    w, values = world(5, size, encoding=encoding), numbers(5, size, dtype=dtype)
    total = play(w, values, weights).total
    assert total.dtype == np.float64
    np.testing.assert_array_equal(total, plain_sum(encoding, values, weights, 5))
    exact = sum(weights[i] * values[i].astype(np.float64) for i in values)
    assert np.abs(total - exact).max(initial=0.0) <= 2.5 * encoding.unit + 1e-12


def test_wide_numbers_need_wide_words():
    values = {i: np.array([1e5 * (i + 1), -3.0]) for i in range(3)}
    with pytest.raises(TooLargeError, match="32 bits"):
        play(world(3, 2), values)
    assert play(world(3, 2, encoding=WIDE), values).total.tolist() == [6e5, -9.0]


@pytest.mark.parametrize(("n", "needed", "patterns"), [(3, None, 1), (4, None, 6), (5, 2, 21)])
def test_every_pattern_of_drop_outs(n, needed, patterns):
    """All mask with all, so members are alike and patterns that differ by names only need no second look."""
    values, weights = numbers(n, 3), dict.fromkeys(range(n), 0.5)
    t, worked = needed or threshold(n, n - 1), 0
    for pattern in combinations_with_replacement(range(NEVER + 1), n):
        order = np.random.default_rng(sum(pattern)).permutation(n)
        stops = {int(member): step for member, step in zip(order, pattern, strict=True)}
        w = world(n, 3, needed=needed)
        if sum(step == NEVER for step in pattern) >= t + 1:  # everybody who is there has t others
            aggregated = {i: values[i] for i in range(n) if stops[i] > 2}
            np.testing.assert_array_equal(
                play(w, values, weights, stops).total, plain_sum(NARROW, aggregated, weights, n)
            )
            worked += 1
        else:
            with pytest.raises(UnrecoverableError):
                play(w, values, weights, stops)
    assert worked == patterns


def test_more_colluders_or_more_drop_outs():
    values = numbers(6, 3)
    everybody = play(world(6, 3, needed=5), values)
    np.testing.assert_array_equal(everybody.total, plain_sum(NARROW, values, dict.fromkeys(values, 1.0), 6))
    with pytest.raises(UnrecoverableError):
        play(world(6, 3, needed=5), values, stops={2: 2})
    three = {i: values[i] for i in range(3)}
    total = play(world(6, 3, needed=2), values, stops={3: 1, 4: 2, 5: 0}).total
    np.testing.assert_array_equal(total, plain_sum(NARROW, three, dict.fromkeys(values, 1.0), 6))
    for needed in (1, 6):
        with pytest.raises(RequestError, match=f"needed = {needed}"):
            world(6, needed=needed)


def test_sparse_sum_with_drop_outs_at_every_step():
    n, values = 40, numbers(40, 50)
    stops = {3: 0, 8: 1, 13: 2, 14: 2, 20: 3, 30: 4}
    w = world(n, 50)
    assert degree(n) < n - 1
    aggregated = {i: values[i] for i in range(n) if stops.get(i, NEVER) > 2}
    told = play(w, values, stops=stops)
    np.testing.assert_array_equal(told.total, plain_sum(NARROW, aggregated, dict.fromkeys(values, 1.0), n))
    with pytest.raises(UnrecoverableError, match="members are there"):
        play(world(n, 50), values, stops=dict.fromkeys(range(25), 2))


def test_fewer_than_three_are_not_summed():
    with pytest.raises(RequestError, match="at least 3 members, not 2"):
        world(2, rolled=5)
    with pytest.raises(UnrecoverableError, match="2 inputs arrived"):
        play(world(4, needed=2), numbers(4, 4), stops={1: 2, 2: 2})
    w = world(4, needed=2)
    play(w, numbers(4, 4), until=3)
    with pytest.raises(RefusedError, match="fewer than 3"):
        w.members[0].agree(from_server(SURVIVORS, pack_fields([0, 3])))


def test_members_are_told_once_and_in_order():
    for members in ((0, 2, 1), (0, 1, 1, 2)):
        with pytest.raises(RequestError, match="ascending"):
            SumTask(JOB, members, 1, key_directory(3).digest)
    with pytest.raises(RequestError, match="no member"):
        SumMember(SumTask(JOB, (0, 1, 2), 1, key_directory(5).digest), 4, identity(4), key_directory(5), entropy(0))
    with pytest.raises(RequestError, match="another roll"):
        SumMember(SumTask(JOB, (0, 1, 2), 1, key_directory(4).digest), 1, identity(1), key_directory(5), entropy(0))


def test_keys_are_bound_to_all_that_was_advertised():
    task, more = world(4).task, world(4, size=5).task
    bound = [task.between(0, b"a", 1, b"b"), task.between(0, b"a", 1, b"c"), task.between(0, b"a", 2, b"b")]
    assert len({*bound, more.between(0, b"a", 1, b"b")}) == 4
    assert task.between(1, b"b", 0, b"a") == bound[0]
    assert len({task.own_mask(bytes(32)), task.commitment(bytes(32)), more.own_mask(bytes(32))}) == 3


# ---- in one process --------------------------------------------------------------------------------------------------
def parties(n, seed=0):
    return Parties(identity(SERVER), {i: identity(i) for i in range(n)}, key_directory(n), lambda i: entropy(seed, i))


def test_in_one_process():
    values, weights = numbers(6, 500), dict(enumerate([1.0, 0.25, 0.5, 0.1, 0.0, 1.0]))
    told = secure_sum(values, weights, range(6), parties(6), JOB)
    np.testing.assert_array_equal(told.total, plain_sum(NARROW, values, weights, 6))
    again = secure_sum(values, weights, range(6), parties(6, seed=1), OTHER_JOB)
    np.testing.assert_array_equal(told.total, again.total)
    w = world(6, 500)
    said = play(w, values, weights).said
    for i in range(6):
        assert told.up[i] == sum(len(said[kind][i]) for kind in (ADVERTISE, SHARES, INPUT, AGREE, REVEAL))
        assert told.down[i] == sum(len(said[kind][i]) for kind in (KEYS, DELIVERY, SURVIVORS, AGREED))


def test_clients_without_an_array_are_drop_outs():
    values, weights = numbers(6, 9), dict.fromkeys(range(6), 0.5)
    some = {i: torch.from_numpy(values[i]) for i in (0, 2, 3, 5, 4)}
    total = secure_sum(some, weights, [5, 4, 3, 2, 1, 0], parties(6), JOB).total
    np.testing.assert_array_equal(total, plain_sum(NARROW, {i: values[i] for i in some}, weights, 6))
    with pytest.raises(UnrecoverableError):
        secure_sum({i: values[i] for i in range(4)}, weights, range(6), parties(6), JOB)
    with pytest.raises(RequestError, match="at least of some"):
        secure_sum({}, weights, range(6), parties(6), JOB)
    with pytest.raises(RequestError, match="arrays of 9 numbers, not of 8"):
        secure_sum(values | {3: values[3][:8]}, weights, range(6), parties(6), JOB)
    with pytest.raises(RefusedError, match=r"weight of 600.0 is outside"):
        secure_sum(values, dict.fromkeys(range(6), 600.0), range(6), parties(6), JOB)


# ---- what the server sees --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("value", [0.0, 100.0])
def test_masked_input_looks_uniform(value):
    size = 60_000
    w = world(4, size)
    said = play(w, {i: np.full(size, value) for i in range(4)}).said
    assert all(looks_uniform(words_in(w, said, i)) for i in range(4))
    assert not looks_uniform(NARROW.words(np.full(size, value), 4))


def test_server_and_all_but_two_members_learn_the_sum_of_the_two():
    n, size, a, b = 6, 60_000, 1, 4
    w, values = world(n, size, needed=n - 1), numbers(n, size)
    said = play(w, values).said
    colluders = [i for i in range(n) if i not in (a, b)]
    stripped = {}
    for honest in (a, b):
        words = words_in(w, said, honest)
        masks = [w.members[i]._pairs[honest].mask for i in colluders]
        add_streams(
            words,
            [mask for i, mask in zip(colluders, masks, strict=True) if i < honest],
            [mask for i, mask in zip(colluders, masks, strict=True) if i > honest]
            + [w.task.own_mask(w.server._seed(honest))],
        )
        assert looks_uniform(words)  # the mask of the two is left
        stripped[honest] = words
    both = sum(NARROW.words(values[i], n) for i in (a, b))
    np.testing.assert_array_equal(stripped[a] + stripped[b], both)


def test_colluders_shares_are_too_few():
    """What n - 2 members hold of an honest one's key, they hold of any other key as well."""
    n = 6
    w = world(n, needed=n - 1)
    play(w, numbers(n, 4), until=3)
    held = [(i, w.members[i]._held[1][shamir.SHARE :]) for i in range(n) if i not in (1, 4)]
    with pytest.raises(UnrecoverableError, match="4 shares were given where 5"):
        recover_secret(held, w.task.threshold)
    true = w.members[1]._mask.private.private_bytes_raw()
    assert recover_secret([*held, (4, w.members[4]._held[1][shamir.SHARE :])], n - 1) == true


def test_server_never_holds_a_secret():
    w = world(5)
    play(w, numbers(5, 4), stops={3: 2})
    seen = b"".join(_bytes_in(vars(w.server)))
    for member in w.members.values():
        assert len(member._told[1]) == 32
        assert member._told[1] in seen
        for secret in (
            member._seed,
            member._mask.private.private_bytes_raw(),
            member._wrap.private.private_bytes_raw(),
        ):
            assert secret not in seen


def _bytes_in(thing):
    if isinstance(thing, bytes):
        yield thing
    elif isinstance(thing, dict):
        for value in thing.values():
            yield from _bytes_in(value)
    elif isinstance(thing, list | tuple):
        for value in thing:
            yield from _bytes_in(value)


def test_late_input_stays_masked():
    """A member that is declared missing, and whose pairwise masks are known, is still under the mask of its own."""
    size = 60_000
    w, values = world(5, size), numbers(5, size)
    told = play(w, values, stops={3: 2})
    late = w.members[3].masked(told.said[DELIVERY][3], values[3])
    with pytest.raises(RefusedError, match="not what comes next"):
        w.server.masked(3, late)
    words, half = words_of(open_frame(late, w.key_directory, INPUT, JOB, 3).fields[0]), w.server._half(3)
    for other in (0, 1, 2, 4):
        add_streams(
            words,
            [w.server._mask(half, other)] if other < 3 else [],
            [w.server._mask(half, other)] if other > 3 else [],
        )
    assert looks_uniform(words)
    add_streams(words, [], [w.task.own_mask(w.members[3]._seed)])  # that is all that is left
    np.testing.assert_array_equal(words, NARROW.words(values[3], 5))
    with pytest.raises(UnrecoverableError, match="own mask"):
        w.server._seed(3)  # the shares that were given are those of the other secret


def test_reveals_are_one_share_of_each_neighbour():
    w = world(5)
    held = {i: dict(member._held) for i, member in w.members.items()}
    said = play(w, numbers(5, 4), stops={3: 2}, hand=lambda act, data: (held.update(_held(w)), act(data))[1]).said
    for i, data in said[REVEAL].items():
        given = listed(open_frame(data, w.key_directory, REVEAL, JOB, i).fields, range(5))
        assert set(given) == set(range(5)) - {i}
        for other, share in given.items():
            seed, key = held[i][other][: shamir.SHARE], held[i][other][shamir.SHARE :]
            assert share == (key if other == 3 else seed)


def _held(w):
    return {i: dict(member._held) for i, member in w.members.items() if member._held}


# ---- a server that lies ----------------------------------------------------------------------------------------------
def test_second_list_is_refused():
    w = world(5)
    said = play(w, numbers(5, 4), until=4).said
    for members in ([0, 1, 2, 4], [0, 1, 2, 3, 4]):
        with pytest.raises(RefusedError, match="once, and in its turn"):
            w.members[0].agree(from_server(SURVIVORS, pack_fields(members)))
    agreed = from_server(AGREED, *listing({i: code(said[AGREE][i], i, to=0) for i in (1, 2, 3, 4)}))
    w.members[0].reveal(agreed)
    with pytest.raises(RefusedError, match="once, and in its turn"):
        w.members[0].reveal(agreed)


def test_two_lists_at_once_are_refused():
    """The server tells half of them that member 4 is missing: nobody reveals anything."""
    w = world(5)
    play(w, numbers(5, 4), until=3)
    lists = {i: pack_fields([0, 1, 2, 3] if i in (0, 1) else [0, 1, 2, 3, 4]) for i in range(4)}
    said = {i: w.members[i].agree(from_server(SURVIVORS, told)) for i, told in lists.items()}
    for i in range(4):
        codes = {j: code(said[j], j, to=i) for j in range(4) if j != i}
        with pytest.raises(RefusedError, match="1 neighbours agreed where 3"):
            w.members[i].reveal(from_server(AGREED, *listing(codes)))
        assert w.members[i]._held
        with pytest.raises(RefusedError, match="once, and in its turn"):
            w.members[i].reveal(from_server(AGREED, *listing(codes)))


def test_agreement_of_another_is_none():
    """A member's own code, sent back to it, or one meant for somebody else, does not count."""
    for false in ({j: (0, j) for j in (1, 2, 3)}, {1: (2, 0), 2: (3, 0), 3: (1, 0)}, {1: (1, 2), 2: (2, 3), 3: (3, 1)}):
        w = world(4)
        said = play(w, numbers(4, 4), until=4).said[AGREE]
        codes = {j: code(said[sender], sender, to) for j, (sender, to) in false.items()}
        with pytest.raises(RefusedError, match="0 neighbours agreed where 2"):
            w.members[0].reveal(from_server(AGREED, *listing(codes)))


def code(data, sender, to):
    """Read what a member tells another one, in AGREE."""
    return listed(open_frame(data, key_directory(9), AGREE, JOB, sender).fields[1:], range(9))[to]


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (pack_fields([0, 1, 2]), "too few neighbours"),
        (pack_fields([1, 2, 3, 4]), "without me"),
        (pack_fields([0, 1, 2, 3, 3]), "twice"),
        (pack_fields([0, 2, 1, 3]), "do not belong there"),
        (pack_fields([0, 1, 2, 3, 9]), "do not belong there"),
        (pack_fields([0, 1, 2, 3])[:-1], "cut off"),
    ],
    ids=["few", "without", "twice", "disorder", "stranger", "cut"],
)
def test_bad_lists_are_refused(told, why):
    w = world(5)
    play(w, numbers(5, 4), until=3)
    with pytest.raises(RefusedError, match=why):
        w.members[0].agree(from_server(SURVIVORS, told))


def test_neighbour_without_shares_cannot_be_in_the_sum():
    w = world(5)
    play(w, numbers(5, 4), stops={3: 1}, until=3)
    with pytest.raises(RefusedError, match="dealt no shares"):
        w.members[0].agree(from_server(SURVIVORS, pack_fields(range(5))))


def test_keys_of_the_server_are_refused():
    w = world(4)
    frames = play(w, {}, until=1).said[ADVERTISE]
    fields = open_frame(frames[1], w.key_directory, ADVERTISE, JOB, 1).fields
    false = Frame(ADVERTISE, JOB, 1, (fields[0], b"\x09" + bytes(31), *fields[2:])).sign(identity(SERVER))
    other = world(4, job=OTHER_JOB).members[1].advertise()
    more = world(4, size=5).members[1].advertise()
    cases = {"not signed": false, "job": other, "sender": frames[2], "another task": more}
    for why, frame in cases.items():
        member = SumMember(w.task, 0, identity(0), w.key_directory, entropy("again", why))
        member.advertise()
        with pytest.raises(RefusedError, match=why):
            member.share(from_server(KEYS, *listing({1: frame, 2: frames[2], 3: frames[3]})))
    for some in ({0: frames[0], 1: frames[1], 2: frames[2]}, {1: frames[1]}):  # itself, or too few
        member = SumMember(w.task, 0, identity(0), w.key_directory, entropy("again", len(some)))
        member.advertise()
        with pytest.raises(RefusedError):
            member.share(from_server(KEYS, *listing(some)))


def test_point_of_low_order_is_refused():
    w = world(3)
    frames = play(w, {}, until=1).said[ADVERTISE]
    fields = open_frame(frames[1], w.key_directory, ADVERTISE, JOB, 1).fields
    weak = Frame(ADVERTISE, JOB, 1, (fields[0], bytes(32), *fields[2:])).sign(identity(1))
    with pytest.raises(RefusedError, match="no proper public key"):
        w.members[0].share(from_server(KEYS, *listing({1: weak, 2: frames[2]})))


@pytest.mark.parametrize("weight", [1e9, 1.0000001, -0.1, np.nan, np.inf, -np.inf])
def test_weights_outside_0_to_1_are_refused(weight):
    w = world(3)
    play(w, {}, until=2)
    delivery = w.server.deliveries(dict.fromkeys(range(3), weight))[0]
    with pytest.raises(RefusedError, match="outside 0 to 1"):
        w.members[0].masked(delivery, np.zeros(4))
    with pytest.raises(RefusedError, match="once, and in its turn"):  # there is no second try
        w.members[0].masked(from_server(DELIVERY, struct.pack("<d", 1.0)), np.zeros(4))


def test_shares_that_were_exchanged_are_refused():
    w = world(4)
    play(w, {}, until=2)
    boxes = dict(w.server._boxes)
    false = {1: boxes[1][2], 2: boxes[2][0], 3: boxes[3][0]}  # of 1, the one for 2
    with pytest.raises(RefusedError, match="changed on the way"):
        w.members[0].masked(from_server(DELIVERY, struct.pack("<d", 1.0), *listing(false)), np.zeros(4))


def test_second_input_is_refused():
    w, values = world(3), numbers(3, 4)
    said = play(w, values, until=3).said
    with pytest.raises(RefusedError, match="once, and in its turn"):
        w.members[0].masked(said[DELIVERY][0], values[0])


def test_messages_of_another_job_are_refused():
    values = numbers(4, 4)
    old = play(world(4), values).said
    downs = [(KEYS, "share"), (DELIVERY, "masked"), (SURVIVORS, "agree"), (AGREED, "reveal")]
    for step, (kind, act) in enumerate(downs, 1):
        new = world(4, job=OTHER_JOB)
        play(new, values, until=step)
        more = [values[0]] if kind == DELIVERY else []
        with pytest.raises(RefusedError, match="job"):
            getattr(new.members[0], act)(old[kind][0], *more)
    ups = [(ADVERTISE, "advertised"), (SHARES, "shared"), (INPUT, "masked"), (AGREE, "agreed"), (REVEAL, "revealed")]
    for step, (kind, take) in enumerate(ups):
        new = world(4, job=OTHER_JOB)
        play(new, values, stops={0: step}, until=step + 1)
        with pytest.raises(RefusedError, match="job"):
            getattr(new.server, take)(0, old[kind][0])


# ---- messages that were changed, cut off, repeated -------------------------------------------------------------------
def test_every_changed_message_is_refused():
    """One bit of every byte of every message, and no harm done: the sum is right in the end."""
    values, rng, tried = numbers(3, 2), np.random.default_rng(0), []

    def hand(act, data):
        if data and act.args[0] == 0:
            for at, bit in enumerate(rng.integers(0, 8, len(data))):
                changed = bytearray(data)
                changed[at] ^= 1 << int(bit)
                with pytest.raises(RefusedError):
                    act(bytes(changed))
            for cut in (b"", data[:9], data[:40], data[:-1], data[1:], data + b"\0", data + data):
                with pytest.raises(RefusedError):
                    act(cut)
            tried.append(len(data))
        return act(data)

    total = play(world(3, 2), values, hand=hand).total
    np.testing.assert_array_equal(total, plain_sum(NARROW, values, dict.fromkeys(values, 1.0), 3))
    assert len(tried) == 9  # kinds of messages


def test_repeated_messages_are_refused_by_the_server():
    again = []

    def hand(act, data):
        told = act(data)
        if told is None:  # the server took it
            with pytest.raises(RefusedError, match="twice"):
                act(data)
            again.append(data)
        return told

    play(world(3), numbers(3, 4), hand=hand)
    assert len(again) == 15


def test_messages_before_their_time_are_refused():
    w, said = world(3), play(world(3), numbers(3, 4)).said
    for take, kind in ((w.server.shared, SHARES), (w.server.masked, INPUT), (w.server.agreed, AGREE)):
        with pytest.raises(RefusedError):
            take(0, said[kind][0])
    for act in (w.server.survivors, w.server.agreements, w.server.total):
        with pytest.raises((RefusedError, UnrecoverableError)):
            act()
    with pytest.raises(RefusedError, match="in its turn"):
        w.members[0].share(said[KEYS][0])


@pytest.mark.parametrize("byte", [5, 20, 32])  # not the first: X25519 ignores the lowest bits of a key
@pytest.mark.parametrize("missing", [False, True])
def test_member_that_gives_false_shares_is_found_out(missing, byte):
    w = world(4)
    at = byte + (shamir.SHARE if missing else 0)

    def hand(act, data):
        told = act(data)
        held = w.members[0]._held
        if held and not hand.done:
            both = bytearray(held[1])
            both[at] ^= 1
            held[1], hand.done = bytes(both), True
        return told

    hand.done = False
    with pytest.raises(UnrecoverableError, match="member 1"):
        play(w, numbers(4, 4), stops={1: 2} if missing else {}, hand=hand)
