"""What the server of label masking sees, and what it can reach: no label, no single count, no key."""

from __future__ import annotations

from hashlib import sha256

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from label_parties import HELD, REFUSED, PrfWorld, mask
from reaching import reachable

from fedstrata.privacy.agreement import Agreement
from fedstrata.privacy.frames import SERVER
from fedstrata.privacy.labels import prf
from fedstrata.privacy.labels.encoding import encode
from fedstrata.privacy.labels.masking import Transcript
from fedstrata.privacy.labels.parties import WORD
from fedstrata.privacy.labels.prf import PrfClient
from fedstrata.privacy.masks import stream

NAMED = [{f"particular-label-{i}-{j}": 0x0102030405060000 + 256 * i + j for j in (0, i)} for i in range(1, 6)]


def test_the_server_never_sees_a_label_a_count_or_a_secret():
    world, seen = PrfWorld(NAMED), []
    server = world.talk(world.server(), meddle=lambda data, _: seen.append(data))
    transcript = b"\n".join(seen)
    for client, labels in enumerate(NAMED):
        own = world.secrets(server, client)
        assert all(own.token(encode(label)) in transcript for label in labels)  # these are the secrets that were used
        secrets = [own.group, own.contribution, *own.masks.values(), *own.wraps.values(), *world.drawn[client]]
        secrets += [
            word for label in labels for word in (label.encode(), encode(label), sha256(encode(label)).digest())
        ]
        secrets += [n.to_bytes(8, "little") for n in labels.values()] + [n.to_bytes(8, "big") for n in labels.values()]
        assert not [secret for secret in secrets if secret in transcript]
    assert len(server.totals) == 10
    open_words = Transcript()
    mask("none", NAMED, transcript=open_words)
    assert b"particular-label-3-0" in open_words.bytes  # the search can find what is there


def test_the_server_sees_tokens_the_graph_and_masked_words():
    transcript = Transcript()
    known = mask("prf", HELD, transcript=transcript)
    sizes = {}
    for m in transcript.messages:
        if m.receiver == SERVER:
            sizes.setdefault(m.step, {})[m.sender] = len(m.data)
    assert set(sizes) == set(prf.STEPS) - {"distribution"}
    assert all(set(by) == set(range(5)) for by in sizes.values())
    for client, labels in enumerate(HELD):  # a token is 16 bytes a label; what else is sent does not depend on them
        assert sizes["tokens"][client] - sizes["tokens"][3] == 16 * (len(labels) - 1)
    for step in ("key", "contributions", "confirm", "agree", "counts"):
        assert len(set(sizes[step].values())) == 1
    assert (known.holds.sum(1) == [len(labels) for labels in HELD]).all()


def test_tokens_of_two_jobs_have_nothing_in_common():
    world, tokens = PrfWorld(HELD), []
    for _ in range(2):
        server = world.talk(world.server(), until="tokens")
        for i, ask in server.asks().items():
            [sent] = world.told(server, "tokens", i, world.clients[i].answer("tokens", ask))
            tokens += [sent[at : at + prf.TOKEN] for at in range(0, len(sent), prf.TOKEN)]
    assert len(tokens) == 2 * sum(map(len, HELD))
    assert len(set(tokens)) == 2 * len({label for held in HELD for label in held})


@pytest.mark.parametrize("step", [*prf.STEPS, None])
def test_no_key_of_a_client_can_be_reached_from_the_server(step):
    world = PrfWorld(HELD, open_counts=True)
    server = world.talk(world.server(distributions=True), until=step)
    found = list(reachable(server).values())
    assert not [x for x in found if isinstance(x, X25519PrivateKey | PrfClient | Agreement)]
    keys = [x for x in found if isinstance(x, Ed25519PrivateKey)]
    assert [key.private_bytes_raw() for key in keys] == [world.identity.private.private_bytes_raw()]
    secrets = [own for drawn in world.drawn for own in drawn]
    if step not in ("key", "contributions"):
        secrets.append(world.secrets(server, 0).group)
    held = b"\n".join(x for x in found if isinstance(x, bytes))
    assert len(held) > 100
    assert not [secret for secret in secrets if secret in held]


def test_one_clients_masked_counts_are_no_sum():
    """What opens a single contribution is the masks of all others: a server that has it alone has random words."""
    world, alone = PrfWorld(HELD), {}
    server = world.talk(world.server(), until="counts")
    for i, ask in server.asks().items():
        alone[i] = world.clients[i].answer("counts", ask)
        with REFUSED():
            world.clients[i].answer("counts", ask)  # nor can it be asked again
    for i, data in alone.items():
        words = words_of(world, server, i, data)
        assert not set(words.tolist()) & set(HELD[i].values())
        assert (words > 1 << 32).any()
        server.take(i, data)
    assert server.totals.sum() == sum(sum(held.values()) for held in HELD)


def words_of(world, server, client, data):
    """Read the masked counts that a client sends."""
    return np.frombuffer(world.told(server, "counts", client, data)[0], WORD).copy()


def test_all_but_two_clients_and_the_server_learn_the_sum_of_the_two():
    labels = range(500)
    held = [{label: 1 + (label * (i + 3)) % 97 for label in labels} for i in range(6)]
    world = PrfWorld(held)
    server, clients = world.talk(world.server(), until="counts"), world.clients
    seen = {i: words_of(world, server, i, clients[i].answer("counts", ask)) for i, ask in server.asks().items()}
    for i in (0, 1):  # the colluders 2..5 strip the masks they share with the honest two
        for colluder in range(2, 6):
            seen[i] -= stream(world.secrets(server, colluder).stream_key(i), len(labels))
    truth = [np.zeros(len(labels), dtype=WORD) for _ in range(2)]
    for i in (0, 1):
        for label, at in clients[i].own.items():
            truth[i][at] = held[i][label]
    assert (seen[0] + seen[1] == truth[0] + truth[1]).all()  # the sum, and ...
    left = seen[0] - truth[0]
    assert (left == truth[1] - seen[1]).all()  # ... one mask, which only the two have, on both
    assert (left == stream(world.secrets(server, 0).stream_key(1), len(labels))).all()
    assert len(np.unique(left)) == len(labels)
    ones = np.unpackbits(left.view(np.uint8)).mean()
    assert abs(ones - 0.5) < 5 * 0.5 / np.sqrt(64 * len(labels))  # uniform words: any two counts of this sum fit them
    bits = np.unpackbits(left.view(np.uint8).reshape(-1, 8), axis=1).mean(0)
    assert (abs(bits - 0.5) < 5.5 * 0.5 / np.sqrt(len(labels))).all()
