"""Sums under masks: exact, recoverable, and closed to a server that is curious or has members on its side."""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from reaching import reachable
from sum_parties import (
    JOB,
    NEVER,
    OTHER_JOB,
    dealt,
    entropy,
    fields_in,
    from_server,
    identity,
    key_directory,
    looks_uniform,
    mask_between,
    numbers,
    plain_sum,
    revealed,
    run_sum,
    secrets_of,
    words_in,
    words_of,
    world,
)

from fedstrata.core.errors import RequestError
from fedstrata.privacy.agreement import Agreement
from fedstrata.privacy.frames import SERVER, RefusedError, open_frame
from fedstrata.privacy.masks import add_streams
from fedstrata.privacy.sums.fixed_point import NARROW, WIDE, TooLargeError
from fedstrata.privacy.sums.member import SumMember
from fedstrata.privacy.sums.neighbours import degree, threshold
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
    pack_fields,
)
from fedstrata.privacy.sums.secure_sum import Parties, secure_sum
from fedstrata.privacy.sums.shamir import SHARE, UnrecoverableError, recover_secret

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
    w, values = world(5, size, encoding=encoding, weights=weights), numbers(5, size, dtype=dtype)
    total = run_sum(w, values, weights).total
    assert total.dtype == np.float64
    np.testing.assert_array_equal(total, plain_sum(encoding, values, weights, 5))
    exact = sum(weights[i] * values[i].astype(np.float64) for i in values)
    assert np.abs(total - exact).max(initial=0.0) <= 2.5 * encoding.unit + 1e-12


def test_wide_numbers_need_wide_words():
    values = {i: np.array([1e5 * (i + 1), -3.0]) for i in range(3)}
    with pytest.raises(TooLargeError, match="32 bits"):
        run_sum(world(3, 2), values)
    assert run_sum(world(3, 2, encoding=WIDE), values).total.tolist() == [6e5, -9.0]


@pytest.mark.parametrize(
    ("n", "needed", "patterns"), [(3, None, 1), (4, None, 6), pytest.param(5, 2, 21, marks=pytest.mark.extended)]
)
def test_every_pattern_of_drop_outs(n, needed, patterns):
    """All mask with all, so members are alike and patterns that differ by names only need no second look."""
    values, weights = numbers(n, 3), dict.fromkeys(range(n), 0.5)
    t, worked = needed or threshold(n, n - 1), 0
    for pattern in combinations_with_replacement(range(NEVER + 1), n):
        order = np.random.default_rng(sum(pattern)).permutation(n)
        stops = {int(member): step for member, step in zip(order, pattern, strict=True)}
        w = world(n, 3, needed=needed, weights=weights)
        if sum(step == NEVER for step in pattern) >= t + 1:  # everybody who is there has t others
            aggregated = {i: values[i] for i in range(n) if stops[i] > 2}
            np.testing.assert_array_equal(
                run_sum(w, values, weights, stops).total, plain_sum(NARROW, aggregated, weights, n)
            )
            worked += 1
        else:
            with pytest.raises(UnrecoverableError):
                run_sum(w, values, weights, stops)
    assert worked == patterns


def test_more_colluders_or_more_drop_outs():
    values = numbers(6, 3)
    everybody = run_sum(world(6, 3, needed=5), values)
    np.testing.assert_array_equal(everybody.total, plain_sum(NARROW, values, dict.fromkeys(values, 1.0), 6))
    with pytest.raises(UnrecoverableError):
        run_sum(world(6, 3, needed=5), values, stops={2: 2})
    three = {i: values[i] for i in range(3)}
    total = run_sum(world(6, 3, needed=2), values, stops={3: 1, 4: 2, 5: 0}).total
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
    told = run_sum(w, values, stops=stops)
    np.testing.assert_array_equal(told.total, plain_sum(NARROW, aggregated, dict.fromkeys(values, 1.0), n))
    with pytest.raises(UnrecoverableError, match="members are there"):
        run_sum(world(n, 50), values, stops=dict.fromkeys(range(25), 2))


def test_fewer_than_three_are_not_summed():
    with pytest.raises(RequestError, match="at least 3 members, not 2"):
        world(2, rolled=5)
    with pytest.raises(UnrecoverableError, match="2 inputs arrived"):
        run_sum(world(4, needed=2), numbers(4, 4), stops={1: 2, 2: 2})
    w = world(4, needed=2)
    run_sum(w, numbers(4, 4), until=3)
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


def parties(n, seed=0):
    return Parties(identity(SERVER), {i: identity(i) for i in range(n)}, key_directory(n), lambda i: entropy(seed, i))


def test_in_one_process():
    values, weights = numbers(6, 500), dict(enumerate([1.0, 0.25, 0.5, 0.1, 0.0, 1.0]))
    told = secure_sum(values, weights, range(6), parties(6), JOB)
    np.testing.assert_array_equal(told.total, plain_sum(NARROW, values, weights, 6))
    again = secure_sum(values, weights, range(6), parties(6, seed=1), OTHER_JOB)
    np.testing.assert_array_equal(told.total, again.total)
    w = world(6, 500, weights=weights)
    said = run_sum(w, values, weights).said
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


@pytest.mark.parametrize("value", [0.0, 100.0])
def test_masked_input_looks_uniform(value):
    size = 60_000
    w = world(4, size)
    said = run_sum(w, {i: np.full(size, value) for i in range(4)}).said
    assert all(looks_uniform(words_in(w, said, i)) for i in range(4))
    assert not looks_uniform(NARROW.words(np.full(size, value), 4))


def test_server_and_all_but_two_members_learn_the_sum_of_the_two():
    n, size, a, b = 6, 60_000, 1, 4
    w, values = world(n, size, needed=n - 1), numbers(n, size)
    said = run_sum(w, values).said
    colluders = [i for i in range(n) if i not in (a, b)]
    stripped = {}
    for honest in (a, b):
        words = words_in(w, said, honest)
        masks = dict(zip(colluders, (masks_of(w, i)[honest] for i in colluders), strict=True))
        seed = recover_secret(revealed(w, said, honest), w.task.threshold)  # the server was given the shares of it
        add_streams(
            words,
            [mask for i, mask in masks.items() if i < honest],
            [mask for i, mask in masks.items() if i > honest] + [w.task.own_mask(seed)],
        )
        assert looks_uniform(words)  # the mask of the two is left
        stripped[honest] = words
    both = sum(NARROW.words(values[i], n) for i in (a, b))
    np.testing.assert_array_equal(stripped[a] + stripped[b], both)


def masks_of(w, i):
    """Return the masks that a member shares with each other one."""
    own, others = secrets_of(w, i), {other: secrets_of(w, other) for other in w.task.neighbours[i]}
    return {other: mask_between(w, own.mask, own.told, other, theirs.told) for other, theirs in others.items()}


def test_colluders_shares_are_too_few():
    """What n - 2 members hold of an honest one's key, they hold of any other key as well."""
    n = 6
    w = world(n, needed=n - 1)
    said = run_sum(w, numbers(n, 4), until=3).said
    shares = {i: dealt(w, said, 1, i)[SHARE:] for i in range(n) if i != 1}
    held = [(i, shares[i]) for i in range(n) if i not in (1, 4)]
    with pytest.raises(UnrecoverableError, match="4 shares were given where 5"):
        recover_secret(held, w.task.threshold)
    assert recover_secret([*held, (4, shares[4])], n - 1) == secrets_of(w, 1).key


def test_server_never_holds_a_secret():
    w = world(5)
    run_sum(w, numbers(5, 4), stops={3: 2})
    seen = b"".join(x for x in reachable(w.server).values() if isinstance(x, bytes))
    for i in w.members:
        own = secrets_of(w, i)
        assert len(own.mask.public) == 32
        assert own.mask.public in seen
        for secret in (own.seed, own.key, own.wrap.private.private_bytes_raw()):
            assert secret not in seen


def test_late_input_stays_masked():
    """A member that is declared missing, and whose pairwise masks are known, is still under the mask of its own."""
    size = 60_000
    w, values = world(5, size), numbers(5, size)
    told = run_sum(w, values, stops={3: 2})
    late = w.members[3].mask(told.said[DELIVERY][3], values[3])
    with pytest.raises(RefusedError, match="not what comes next"):
        w.server.add_words(3, late)
    words = words_of(open_frame(late, w.key_directory, INPUT, JOB, 3).fields[0])
    key = recover_secret(revealed(w, told.said, 3), w.task.threshold)
    half = Agreement(3, X25519PrivateKey.from_private_bytes(key))
    advertised = {i: fields_in(w, told.said, ADVERTISE, i) for i in range(5)}
    for other in (0, 1, 2, 4):
        mask = mask_between(w, half, advertised[3], other, advertised[other])
        add_streams(words, [mask] if other < 3 else [], [mask] if other > 3 else [])
    assert looks_uniform(words)
    add_streams(words, [], [w.task.own_mask(secrets_of(w, 3).seed)])  # that is all that is left
    np.testing.assert_array_equal(words, NARROW.words(values[3], 5))
    assert w.task.commitment(key) != advertised[3][3]  # the shares that were given are those of the other secret


def test_reveals_are_one_share_of_each_neighbour():
    w = world(5)
    said = run_sum(w, numbers(5, 4), stops={3: 2}).said
    assert sorted(said[REVEAL]) == [0, 1, 2, 4]
    for i in said[REVEAL]:
        given = listed(fields_in(w, said, REVEAL, i), range(5))
        assert set(given) == set(range(5)) - {i}
        for other, share in given.items():
            dealt = secrets_of(w, other)
            assert share == (dealt.key_shares if other == 3 else dealt.seed_shares)[i]
