"""A server of label masking that asks for too much or lies, and clients that do: honest parties refuse."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from label_parties import HELD, REFUSED, PrfWorld

from fedstrata.core.rng import Streams
from fedstrata.privacy.agreement import Agreement
from fedstrata.privacy.frames import Frame, RefusedError
from fedstrata.privacy.identity import KeyDirectory
from fedstrata.privacy.labels import prf
from fedstrata.privacy.labels.directory import Directory, check_paths
from fedstrata.privacy.labels.parties import INDEX, name_reply
from fedstrata.privacy.labels.prf import PrfClient
from fedstrata.privacy.labels.served import Served
from fedstrata.privacy.simulated import secrets


def test_jobs_and_sets_a_client_does_not_serve():
    world = PrfWorld([*HELD, *HELD])
    clients, key_directory = world.clients, world.key_directory.digest
    with REFUSED(match="at least 3"):
        world.talk(world.server(members=(0, 1)))
    for named in ((0, 1, 2), (2, 1, 9), (1, 1, 9), (1, 9, 10)):
        with REFUSED(match="not on the roll, or not this one"):
            clients[9].answer(
                "key", world.lie(world.server(), "key", 9, key_directory, np.array(named, dtype=INDEX).tobytes())
            )
    server = world.talk(world.server())
    with REFUSED(match="repeats the id"):
        clients[0].answer("key", world.lie(server, "key", 0, key_directory, np.arange(10, dtype=INDEX).tobytes()))
    world.talk(world.server())  # the same clients once more: the same sums
    for others in (range(9), range(8), range(3), (*range(6), 9, 8)):  # too near, too near, less than half, too near
        with REFUSED(match="subtracted"):
            world.talk(world.server(members=others))
    world.talk(world.server(members=range(7)))
    with REFUSED(match="subtracted"):  # back to all: the difference would be three, but the chain only goes down
        world.talk(world.server())
    with REFUSED(match="subtracted"):  # a half of seven, but less than half of the first ten
        world.talk(world.server(members=range(4)))


def test_a_job_that_ended_before_counts_were_sent_does_not_bind():
    world = PrfWorld(HELD)
    world.talk(world.server(), until="counts")
    assert all(client.served.last is None for client in world.clients)
    world.talk(world.server(members=(0, 1, 2, 3)))
    assert all(client.served.last == set(world.key_directory.clients[:4]) for client in world.clients[:4])


def test_one_client_between_two_that_were_summed_apart_stays_hidden():
    x, a, b = 0, tuple(range(1, 7)), tuple(range(7, 13))
    memory = [Served() for _ in range(13)]
    for client in (x, *a, *b):
        memory[client].sent((x, *a, *b))
    for part in (a, b):  # far from the whole, and from each other; but the whole less both is x
        with REFUSED():
            memory[part[0]].sent(part)


def test_sets_that_are_never_completed_do_not_open_the_way_to_small_ones():
    """Seven of thirteen may be asked; if only four of them get to send, a half of seven must not do next."""
    memory = [Served() for _ in range(13)]
    for client in range(13):
        memory[client].sent(range(13))
    for at in (1, 5, 9):  # with all three of these sums, client 0 would be what is left of the whole
        four = range(at, at + 4)
        seven = {*four, 0, *[client for client in range(1, 13) if client not in four][:2]}
        for client in four:
            memory[client].sent(seven)
        with REFUSED(match="half of the first"):
            memory[at].sent(four)


@pytest.mark.parametrize("seed", range(40))
def test_no_sums_a_server_can_collect_isolate_fewer_than_three(seed):
    """A server asks for random sets and completes some of them; what it gets is searched for thin differences."""
    rng, clients = np.random.default_rng(seed), 13
    memory, aggregated, asked_for = [Served() for _ in range(clients)], [], [tuple(range(clients))]
    for _ in range(120):
        within = asked_for[rng.integers(len(asked_for))]
        some = tuple(sorted(rng.choice(within, rng.integers(3, len(within) + 1), replace=False).tolist()))
        sends = rng.random(len(some)) < rng.choice([1.0, 0.6])  # the server need not ask all of them for their counts
        complete = True
        for client, asked_now in zip(some, sends, strict=True):
            try:
                if asked_now:
                    memory[client].sent(some)
                    asked_for.append(some)
                complete &= bool(asked_now)
            except RefusedError:
                complete = False
        if complete:
            aggregated.append(np.isin(np.arange(clients), some))
    sums = np.unique(np.array(aggregated, dtype=float).reshape(-1, clients), axis=0)
    rank = np.linalg.matrix_rank(sums) if len(sums) else 0
    for few in combinations(range(clients), 2):  # a combination that lives on these two alone would lower the rank
        assert rank == 0 or np.linalg.matrix_rank(np.delete(sums, few, axis=1)) == rank


def test_every_message_with_a_changed_bit_or_a_missing_part_is_refused():
    world = PrfWorld(HELD[:3], open_counts=True)
    rng, met = np.random.default_rng(0), Counter()

    def meddle(data, deliver):
        bits = [*rng.choice(8 * len(data), 40, replace=False).tolist(), 0, 8 * len(data) - 1]
        for bit in bits:
            changed = bytearray(data)
            changed[bit // 8] ^= 1 << bit % 8
            with REFUSED():
                deliver(bytes(changed))
        for cut in (0, 1, 8, 64, 100, len(data) - 1):
            with REFUSED():
                deliver(data[:cut])
        with REFUSED():
            deliver(data + b"\0")
        met["messages"] += 1

    server = world.talk(world.server(distributions=True), meddle=meddle)
    assert met["messages"] == 2 * 3 * len(prf.STEPS)  # and all of them were accepted in the end as they were
    assert sorted(server.totals.tolist()) == sorted([22, 18, 32, 23])


def test_every_message_that_comes_twice_too_early_or_from_another_job_is_refused():
    world, script = PrfWorld(HELD[:3], open_counts=True), []  # all messages of a job
    world.talk(world.server(distributions=True), meddle=lambda data, _: script.append(data))
    world = PrfWorld(HELD[:3], open_counts=True)  # the same secrets again: the same messages
    clients, server, had = world.clients, world.server(distributions=True), []
    while asks := server.asks():
        step = server.step
        for i, ask in asks.items():
            assert ask in script
            for other in script[script.index(ask) + 1 :: 7] + had:
                if other != ask:
                    for claimed in prf.STEPS:
                        with REFUSED():
                            clients[i].answer(claimed, other)
            reply = clients[i].answer(step, ask)
            with REFUSED():
                clients[i].answer(step, ask)
            for other in script[script.index(reply) + 1 :: 7] + had:
                with REFUSED():
                    server.take(i, other)
            server.take(i, reply)
            with REFUSED():
                server.take(i, reply)
            had += [ask, reply]
    second = world.server(distributions=True)
    for step in prf.STEPS:  # and none of it helps in the next job
        for data in had[::5]:
            with REFUSED():
                clients[0].answer(step, data)
            with REFUSED():
                second.take(0, data)


def test_steps_cannot_be_skipped():
    world = PrfWorld(HELD)
    server = world.talk(world.server(), until="tokens")
    for step in ("agree", "counts"):
        with REFUSED(match="order"):
            world.clients[0].answer(step, world.lie(server, step, 0, number=prf.STEPS.index("tokens")))


def test_keys_that_are_not_on_the_roll():
    world, strange = PrfWorld(HELD), PrfWorld(HELD, seed=9)
    source = secrets(Streams(3), "labels", 0)
    with REFUSED(match="not signed by its sender"):  # a client that has another roll, with another server's key
        strange.clients[0].answer("key", world.server().asks()[0])
    mixed = KeyDirectory(
        world.key_directory.server, (*world.key_directory.clients[:4], strange.key_directory.clients[4])
    )
    misled = PrfClient(1, world.identities[1], mixed, HELD[1], source)
    with REFUSED(match="another roll"):
        misled.answer("key", world.server().asks()[1])
    impostor = PrfClient(2, strange.identities[2], world.key_directory, HELD[2], source)
    server = world.server()
    reply = impostor.answer("key", server.asks()[2])
    with REFUSED(match="not signed by its sender"):
        server.take(2, reply)
    server = world.server()
    reply = world.clients[0].answer("key", server.asks()[0])
    with REFUSED(match="sender"):
        server.take(3, reply)


def test_substituted_public_keys_are_refused():
    world, mine = PrfWorld(HELD), Agreement.new(2, secrets(Streams(5), "mallory", 0))
    server = world.server()

    def substitute(step, i, ask):
        if step != "contributions":
            return ask
        keys = list(world.said(server, step, i, ask))
        keys[2] = Frame(name_reply(prf.DOMAIN, "key", 0), server.job, 2, (mine.public,)).sign(world.identity)
        return world.lie(server, step, i, *keys)

    with REFUSED(match="not signed by its sender 2"):
        world.talk(server, change=substitute)


def test_clients_that_were_shown_different_keys_do_not_go_on():
    """Client 2 signs two keys (it conspires), and the server shows the second one to client 0 only."""
    world, other = PrfWorld(HELD), Agreement.new(2, secrets(Streams(5), "second", 0))
    server = world.server()

    def two_faces(step, i, ask):
        if step != "contributions" or i != 0:
            return ask
        keys = list(world.said(server, step, i, ask))
        keys[2] = world.tell(server, "key", 2, other.public)
        return world.lie(server, step, i, *keys)

    with REFUSED(match="changed on the way"):
        world.talk(server, change=two_faces)


def test_a_client_that_contributes_differently_to_others_is_found_out():
    world = PrfWorld(HELD)
    server, asks = world.server(), {}

    def note(step, i, ask):
        asks[step, i] = ask
        return ask

    def two_faced(step, i, reply):
        if step != "contributions" or i != 3:
            return reply
        draws = iter([world.drawn[3][1], b"another contribution of 32 bytes"])  # of a twin: the same key
        twin = PrfClient(3, world.identities[3], world.key_directory, HELD[3], lambda size: next(draws))
        twin.answer("key", asks["key", 3])
        second = world.told(server, step, 3, twin.answer(step, asks[step, 3]))
        return world.tell(server, step, 3, *world.told(server, step, 3, reply)[:2], *second[2:])

    with REFUSED(match="another group key"):
        world.talk(server, change=note, reword=two_faced)


def test_a_server_cannot_give_the_holders_of_a_label_different_placeholders():
    """It would read single counts off the sums. One tree cannot hold a token twice, and two trees have two roots."""
    same = [{"x": 5}, {"x": 7}, {"x": 9}]

    def apart(world, proven):
        server, tokens = world.server(), {}

        def listen(step, i, reply):
            if step == "tokens":
                [tokens[i]] = world.told(server, step, i, reply)
            return reply

        def split(step, i, ask):
            if step != "agree":
                return ask
            _, seen, _, path = world.said(server, step, i, ask)
            if proven:
                own = Directory({tokens[i]: i}, bytes([i]))
                seen, path = own.root, own.path(tokens[i])
            places = np.array([3], INDEX).tobytes(), seen, np.array([i], INDEX).tobytes(), path
            return world.lie(server, step, i, *places)

        world.talk(server, change=split, reword=listen)

    with REFUSED(match="not in the assignment"):
        apart(PrfWorld(same), proven=False)
    world = PrfWorld(same)
    with REFUSED(match="another assignment"):
        apart(world, proven=True)
    assert all(client.served.last is None for client in world.clients)  # no counts were sent


def test_paths_prove_one_placeholder_and_nothing_of_others():
    rng = np.random.default_rng(0)
    placed = {rng.bytes(16): at for at in range(50)}
    directory = Directory(placed, b"blank")
    token = list(placed)[7]
    check_paths(directory.root, [token], [7], directory.path(token))
    for other in (6, 8, 50):
        with REFUSED():
            check_paths(directory.root, [token], [other], directory.path(token))
    with REFUSED():
        check_paths(directory.root, [rng.bytes(16)], [7], directory.path(token))
    assert len(directory.path(token)) == len(
        Directory({token: 7}, b"x").path(token)
    )  # as long for one token as for many
    with REFUSED(match="begin alike"):
        Directory({token: 1, token[:8] + bytes(8): 2}, b"x")
