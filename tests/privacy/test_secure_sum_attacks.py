"""Secure sums with a server that lies, members that do, and messages that were changed: honest parties refuse."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from sum_parties import (
    JOB,
    OTHER_JOB,
    entropy,
    fields_in,
    from_server,
    identity,
    key_directory,
    numbers,
    plain_sum,
    run_sum,
    world,
)

from fedstrata.privacy.frames import SERVER, Frame, RefusedError, open_frame
from fedstrata.privacy.sums.fixed_point import NARROW
from fedstrata.privacy.sums.member import SumMember
from fedstrata.privacy.sums.protocol import (
    ADVERTISE,
    AGREE,
    AGREED,
    DELIVERY,
    INPUT,
    KEYS,
    LIGHT,
    NOTHING,
    REVEAL,
    SHARES,
    SURVIVORS,
    listed,
    listing,
    magnitude,
    one_weighs_all,
    pack_fields,
)
from fedstrata.privacy.sums.shamir import UnrecoverableError


def test_second_list_is_refused():
    w = world(5)
    said = run_sum(w, numbers(5, 4), until=4).said
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
    run_sum(w, numbers(5, 4), until=3)
    lists = {i: pack_fields([0, 1, 2, 3] if i in (0, 1) else [0, 1, 2, 3, 4]) for i in range(4)}
    said = {i: w.members[i].agree(from_server(SURVIVORS, told)) for i, told in lists.items()}
    for i in range(4):
        codes = {j: code(said[j], j, to=i) for j in range(4) if j != i}
        with pytest.raises(RefusedError, match="1 neighbours agreed where 3"):
            w.members[i].reveal(from_server(AGREED, *listing(codes)))
        with pytest.raises(RefusedError, match="once, and in its turn"):
            w.members[i].reveal(from_server(AGREED, *listing(codes)))


def test_agreement_of_another_is_none():
    """A member's own code, sent back to it, or one meant for somebody else, does not count."""
    for false in ({j: (0, j) for j in (1, 2, 3)}, {1: (2, 0), 2: (3, 0), 3: (1, 0)}, {1: (1, 2), 2: (2, 3), 3: (3, 1)}):
        w = world(4)
        said = run_sum(w, numbers(4, 4), until=4).said[AGREE]
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
    run_sum(w, numbers(5, 4), until=3)
    with pytest.raises(RefusedError, match=why):
        w.members[0].agree(from_server(SURVIVORS, told))


def test_neighbour_without_shares_cannot_be_in_the_sum():
    w = world(5)
    run_sum(w, numbers(5, 4), stops={3: 1}, until=3)
    with pytest.raises(RefusedError, match="dealt no shares"):
        w.members[0].agree(from_server(SURVIVORS, pack_fields(range(5))))


def test_keys_of_the_server_are_refused():
    w = world(4)
    frames = run_sum(w, {}, until=1).said[ADVERTISE]
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
    frames = run_sum(w, {}, until=1).said[ADVERTISE]
    fields = open_frame(frames[1], w.key_directory, ADVERTISE, JOB, 1).fields
    weak = Frame(ADVERTISE, JOB, 1, (fields[0], bytes(32), *fields[2:])).sign(identity(1))
    with pytest.raises(RefusedError, match="no proper public key"):
        w.members[0].share(from_server(KEYS, *listing({1: weak, 2: frames[2]})))


@pytest.mark.parametrize("weight", [1e9, 1.0000001, -0.1, np.nan, np.inf, -np.inf])
def test_weights_outside_0_to_1_are_refused(weight):
    w = world(3)
    run_sum(w, {}, until=2)
    delivery = w.server.deliver_shares(dict.fromkeys(range(3), weight))[0]
    with pytest.raises(RefusedError, match="outside 0 to 1"):
        w.members[0].mask(delivery, np.zeros(4))
    with pytest.raises(RefusedError, match="once, and in its turn"):  # there is no second try
        w.members[0].mask(from_server(DELIVERY, struct.pack("<d", 1.0)), np.zeros(4))


ALL_ON_ONE = {0: 1.0, 1: 0.0, 2: 1e-4, 3: 0.0, 4: 1e-4}


def test_a_sum_in_which_one_weighs_all_is_not_unmasked():
    """The server takes everybody's masked words, and asks to see what is member 0's update but for a hair."""
    w, values = world(5, weights=ALL_ON_ONE), numbers(5, 4)
    run_sum(w, values, ALL_ON_ONE, until=3)
    for member in w.members.values():
        with pytest.raises(RefusedError, match="fewer than 3 clients have any weight"):
            member.agree(from_server(SURVIVORS, pack_fields(range(5))))
    with pytest.raises(UnrecoverableError, match="fewer than 3 clients have any weight"):
        w.server.name_survivors()


def test_those_who_make_a_sum_heavy_enough_must_be_in_it():
    weights = {0: 1.0, 1: 1.0, 2: 1.0, 3: 0.0, 4: 0.0}
    w = world(5, weights=weights, needed=2)
    run_sum(w, numbers(5, 4), weights, until=3)
    with pytest.raises(RefusedError, match="fewer than 3 clients have any weight"):
        w.members[0].agree(from_server(SURVIVORS, pack_fields([0, 1, 3, 4])))


def test_weights_other_than_all_were_told_are_refused():
    """Everybody is told that all weigh alike; but to whom is this so?"""
    w = world(5)
    run_sum(w, {}, until=2)
    deliveries = w.server.deliver_shares(ALL_ON_ONE)
    for member in range(1, 5):
        with pytest.raises(RefusedError, match="another one than all members were told of"):
            w.members[member].mask(deliveries[member], np.zeros(4))


def test_members_that_are_told_different_weights_share_no_keys():
    w = world(5)
    frames = run_sum(w, {}, until=1).said[ADVERTISE]
    victim = world(5, weights=ALL_ON_ONE).members[1]
    victim.advertise()
    with pytest.raises(RefusedError, match="another task"):
        victim.share(from_server(KEYS, *listing({i: frames[i] for i in (0, 2, 3, 4)})))


def test_magnitudes_tell_weights_to_a_factor_of_two():
    weights = np.random.default_rng(0).uniform(0, 1, 200)
    assert all(2.0 ** (magnitude(w) - 1) <= w < 2.0 ** magnitude(w) for w in weights.tolist())
    assert magnitude(0.0) == magnitude(5e-324) == NOTHING
    assert all(one_weighs_all(few) for few in ([], [NOTHING] * 9, [1, 1], [1, 1 - LIGHT, -LIGHT]))
    assert not one_weighs_all([1, 1 - LIGHT, 1 - LIGHT, NOTHING])


def test_shares_that_were_exchanged_are_refused():
    w = world(4)
    said = run_sum(w, {}, until=2).said
    boxes = {i: listed(fields_in(w, said, SHARES, i), range(4)) for i in range(4)}
    false = {1: boxes[1][2], 2: boxes[2][0], 3: boxes[3][0]}  # of 1, the one for 2
    with pytest.raises(RefusedError, match="changed on the way"):
        w.members[0].mask(from_server(DELIVERY, struct.pack("<d", 1.0), *listing(false)), np.zeros(4))


def test_second_input_is_refused():
    w, values = world(3), numbers(3, 4)
    said = run_sum(w, values, until=3).said
    with pytest.raises(RefusedError, match="once, and in its turn"):
        w.members[0].mask(said[DELIVERY][0], values[0])


def test_messages_of_another_job_are_refused():
    values = numbers(4, 4)
    old = run_sum(world(4), values).said
    downs = [(KEYS, "share"), (DELIVERY, "mask"), (SURVIVORS, "agree"), (AGREED, "reveal")]
    for step, (kind, act) in enumerate(downs, 1):
        new = world(4, job=OTHER_JOB)
        run_sum(new, values, until=step)
        more = [values[0]] if kind == DELIVERY else []
        with pytest.raises(RefusedError, match="job"):
            getattr(new.members[0], act)(old[kind][0], *more)
    takes = ("take_keys", "take_shares", "add_words", "take_agreement", "take_reveal")
    ups = list(zip((ADVERTISE, SHARES, INPUT, AGREE, REVEAL), takes, strict=True))
    for step, (kind, take) in enumerate(ups):
        new = world(4, job=OTHER_JOB)
        run_sum(new, values, stops={0: step}, until=step + 1)
        with pytest.raises(RefusedError, match="job"):
            getattr(new.server, take)(0, old[kind][0])


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

    total = run_sum(world(3, 2), values, hand=hand).total
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

    run_sum(world(3), numbers(3, 4), hand=hand)
    assert len(again) == 15


def test_messages_before_their_time_are_refused():
    w, said = world(3), run_sum(world(3), numbers(3, 4)).said
    for take, kind in ((w.server.take_shares, SHARES), (w.server.add_words, INPUT), (w.server.take_agreement, AGREE)):
        with pytest.raises(RefusedError):
            take(0, said[kind][0])
    for act in (w.server.name_survivors, w.server.pass_agreements, w.server.total):
        with pytest.raises((RefusedError, UnrecoverableError)):
            act()
    with pytest.raises(RefusedError, match="in its turn"):
        w.members[0].share(said[KEYS][0])


@pytest.mark.parametrize("byte", [5, 20, 32])  # not the first: X25519 ignores the lowest bits of a key
@pytest.mark.parametrize("missing", [False, True])
def test_member_that_gives_false_shares_is_found_out(missing, byte):
    w = world(4)

    def hand(act, data):
        if act.args != (0,) or act.func != w.server.take_reveal:
            return act(data)
        shares = listed(open_frame(data, w.key_directory, REVEAL, JOB, 0).fields, range(4))
        false = bytearray(shares[1])
        false[byte] ^= 1
        return act(Frame(REVEAL, JOB, 0, listing(shares | {1: bytes(false)})).sign(identity(0)))

    with pytest.raises(UnrecoverableError, match="member 1's key" if missing else "member 1's own mask"):
        run_sum(w, numbers(4, 4), stops={1: 2} if missing else {}, hand=hand)
