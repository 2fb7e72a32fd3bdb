"""What secure sums are made of: shares of secrets, neighbours on a circle, streams of masks."""

from __future__ import annotations

from hashlib import sha256
from itertools import combinations

import numpy as np
import pytest
from scipy.stats import hypergeom
from sum_parties import entropy

from fedstrata.privacy.masks import add_streams, stream
from fedstrata.privacy.sums import neighbours as circle
from fedstrata.privacy.sums import shamir
from fedstrata.privacy.sums.neighbours import degree, fails, leaks, neighbours, threshold
from fedstrata.privacy.sums.shamir import UnrecoverableError, recover_secret, share_secret


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
