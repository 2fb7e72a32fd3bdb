"""The parties of a secure sum, and messages of theirs that a test may read and change."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cache, partial
from hashlib import shake_256
from itertools import count
from types import SimpleNamespace

import numpy as np

from fedstrata.privacy.agreement import Agreement, unwrap
from fedstrata.privacy.frames import SERVER, Frame, join, open_frame
from fedstrata.privacy.identity import Identity, KeyDirectory
from fedstrata.privacy.sums.fixed_point import NARROW
from fedstrata.privacy.sums.member import SumMember
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
    magnitude,
)
from fedstrata.privacy.sums.shamir import share_secret
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


def world(n, size=4, job=JOB, encoding=NARROW, needed=None, rolled=None, weights=None):
    """Return a server and n members that have not yet met."""
    keys = key_directory(rolled or n)
    magnitudes = tuple(magnitude((weights or {}).get(i, 1.0)) for i in range(n))
    task = SumTask(job, tuple(range(n)), size, keys.digest, encoding, needed, magnitudes)
    members = {i: SumMember(task, i, identity(i), keys, entropy("member", job, i)) for i in range(n)}
    return SimpleNamespace(task=task, server=Summing(task, identity(SERVER), keys), members=members, key_directory=keys)


def plain(act, data):
    """Hand a message over."""
    return act(data)


def run_sum(w, values, weights=None, stops=None, until=None, hand=plain):
    """Run the steps of a sum; give everything that was sent, by kind and member, and the sum at the end.

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
        return w.members[i].mask(data, values[i])

    go(0, "", dict.fromkeys(w.members, b""), ADVERTISE, lambda i, _: w.members[i].advertise(), w.server.take_keys)
    rest = (
        (KEYS, w.server.pass_keys, SHARES, lambda i, data: w.members[i].share(data), w.server.take_shares),
        (DELIVERY, partial(w.server.deliver_shares, weights), INPUT, masked, w.server.add_words),
        (SURVIVORS, w.server.name_survivors, AGREE, lambda i, data: w.members[i].agree(data), w.server.take_agreement),
        (AGREED, w.server.pass_agreements, REVEAL, lambda i, data: w.members[i].reveal(data), w.server.take_reveal),
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


@dataclass(frozen=True)
class Secrets:
    """What a member of a sum drew, worked out anew from the bytes it drew from."""

    mask: Agreement
    wrap: Agreement
    seed: bytes
    told: tuple[bytes, ...]  # what it advertises of all that
    seed_shares: dict[int, bytes]  # by holder
    key_shares: dict[int, bytes]

    @property
    def key(self):
        """The secret behind its pairwise masks."""
        return self.mask.private.private_bytes_raw()


def secrets_of(w, i):
    """Return what a member drew, where all of its neighbours were there."""
    draw = entropy("member", w.task.job, i)
    mask, wrap, seed = Agreement.new(i, draw), Agreement.new(i, draw), draw(32)
    told = (w.task.digest, mask.public, wrap.public, w.task.commitment(seed))
    near, needed = w.task.neighbours[i], w.task.threshold
    seed_shares = share_secret(seed, needed, near, draw)
    return Secrets(
        mask, wrap, seed, told, seed_shares, share_secret(mask.private.private_bytes_raw(), needed, near, draw)
    )


def mask_between(w, half, its, other, others):
    """Return the mask of two members from the half of one, and from what both advertised."""
    return half.pair(other, others[1], w.task.between(half.me, join(its), other, join(others))).mask


def fields_in(w, said, kind, i):
    """Read what a member sent."""
    return open_frame(said[kind][i], w.key_directory, kind, w.task.job, i).fields


def dealt(w, said, sender, holder):
    """Open what a member dealt to another: a share of its seed, then one of its key."""
    own, its = secrets_of(w, holder), fields_in(w, said, ADVERTISE, sender)
    bound_to = w.task.between(holder, join(own.told), sender, join(its))
    box = listed(fields_in(w, said, SHARES, sender), w.task.members)[holder]
    return unwrap(own.wrap.pair(sender, its[2], bound_to).wrap, sender, holder, box, bound_to)


def revealed(w, said, member):
    """Return the shares of a member's secret that the server was given, by holder."""
    given = {i: listed(fields_in(w, said, REVEAL, i), w.task.members) for i in said[REVEAL]}
    return [(i, shares[member]) for i, shares in given.items() if member in shares]
