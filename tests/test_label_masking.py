"""Labels become placeholders: all modes agree, the server sees what it may, and honest parties refuse the rest."""

from __future__ import annotations

import hmac
import struct
from collections import Counter
from functools import partial
from hashlib import sha256
from itertools import combinations
from types import GeneratorType

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstrata.core.errors import FedstrataError, RequestError
from fedstrata.core.rng import Streams
from fedstrata.privacy.agreement import Agreement, derive
from fedstrata.privacy.frames import SERVER, Frame, RefusedError, open_frame
from fedstrata.privacy.identity import Identity, KeyDirectory
from fedstrata.privacy.labels import ckks_paper, prf
from fedstrata.privacy.labels.directory import Directory, check_paths
from fedstrata.privacy.labels.encoding import encode
from fedstrata.privacy.labels.masking import MODES, Transcript, mask_labels
from fedstrata.privacy.labels.parties import INDEX, WORD, asked, replied
from fedstrata.privacy.labels.prf import PrfClient, PrfServer
from fedstrata.privacy.labels.served import Served
from fedstrata.privacy.masks import stream
from fedstrata.privacy.simulated import secrets

HELD = [{"cat": 5, "dog": 7}, {"dog": 11, "hen": 13}, {"cat": 17, "hen": 19, "pig": 23}, {"pig": 29}, {"cat": 31}]
REFUSED = partial(pytest.raises, RefusedError)


def mask(mode, held, seed=0, **more):
    """Mask labels with secrets that come from a seed."""
    return mask_labels(
        mode,
        held,
        rng=np.random.default_rng(seed),
        entropy=lambda party: secrets(Streams(seed), "labels", party),
        **more,
    )


def check(known, held):
    """Say that what the parties know is true of what the clients that took part hold."""
    assert sorted(known.clients + known.left_out) == list(range(len(held)))
    placeholder, totals = {}, Counter()
    for client, labels in enumerate(held):
        there = client in known.clients
        assert known.own[client].keys() == (labels.keys() if there else set())
        for label, at in known.own[client].items():
            assert placeholder.setdefault((type(label), label), at) == at
            totals[at] += labels[label]
        assert set(np.flatnonzero(known.holds[client])) == set(known.own[client].values())
    assert sorted(placeholder.values()) == list(range(known.placeholders))
    assert known.totals.dtype == np.int64
    assert known.totals.tolist() == [totals[at] for at in range(known.placeholders)]


class Spy(PrfClient):
    """A client that keeps what it should forget, so that tests can look for it, and colluders can use it."""

    def _masked_counts(self, proofs):
        self.kept = (dict(self._pairs), self._tr, self._group, self._contribution)
        return super()._masked_counts(proofs)


def parties(held, seed=0, members=None, kind=Spy, **more):
    """Make the parties of a prf job."""
    sources = [secrets(Streams(seed), "labels", party) for party in range(len(held))]
    identities = [Identity.new(source) for source in sources]
    of_server = secrets(Streams(seed), "labels", SERVER)
    server = Identity.new(of_server)
    key_directory = KeyDirectory.of(server, identities)
    clients = [kind(i, identities[i], key_directory, held[i], sources[i], **more) for i in range(len(held))]

    def new_server(members=members, distributions=False):
        who = range(len(held)) if members is None else members
        rng = np.random.default_rng(seed)
        return PrfServer(server, key_directory, who, of_server, rng, distributions=distributions)

    return new_server, clients


def talk(server, clients, until=None, meddle=None, change=None):
    """Carry messages until a step; `meddle` sees each one and its receiver before it arrives, `change` replaces it."""
    while (asks := server.asks()) and server.step != until:
        step = server.step
        for i, told in asks.items():
            ask = told if change is None else change(step, i, told)
            if meddle is not None:
                meddle(ask, partial(clients[i].answer, step))
            reply = clients[i].answer(step, ask)
            if meddle is not None:
                meddle(reply, partial(server.take, i))
            server.take(i, reply)
    return server


def lie(server, step, client, *fields):
    """Write what a server says that does not keep to the protocol."""
    number = prf.STEPS.index(step) - (step == "counts" and server.counts is None)
    return Frame(asked(prf.DOMAIN, step, number, client), server.job, SERVER, fields).sign(server._identity)


def said(server, step, client, data, key_directory):
    """Read the fields of one of the server's messages."""
    number = prf.STEPS.index(step) - (step == "counts" and server.counts is None)
    return open_frame(data, key_directory, asked(prf.DOMAIN, step, number, client), server.job, SERVER).fields


# ---- encoding --------------------------------------------------------------------------------------------------------

KNOWN = [
    (False, "3f000000000000000100"),
    (True, "3f000000000000000101"),
    (0, "69000000000000000100"),
    (7, "69000000000000000107"),
    (-1, "690000000000000001ff"),
    (127, "6900000000000000017f"),
    (128, "6900000000000000020080"),
    (-128, "69000000000000000180"),
    (-129, "690000000000000002ff7f"),
    (2**64, "690000000000000009010000000000000000"),
    (7.0, "660000000000000008401c000000000000"),
    (0.0, "6600000000000000080000000000000000"),
    (-0.0, "6600000000000000080000000000000000"),
    (float("-inf"), "660000000000000008fff0000000000000"),
    ("7", "73000000000000000137"),
    ("", "730000000000000000"),
    ("é", "730000000000000002c3a9"),
    (b"7", "62000000000000000137"),
]


def by_the_book(label):
    """Encode a label by another formula than the library's: bits written out as text."""
    if isinstance(label, bool):
        tag, value = "?", ["00", "01"][label]
    elif isinstance(label, int):
        size = next(n for n in range(1, 99) if -(1 << 8 * n - 1) <= label < 1 << 8 * n - 1)
        tag, value = "i", f"{label % (1 << 8 * size):0{2 * size}x}"
    elif isinstance(label, float):
        [bits] = struct.unpack("<Q", struct.pack("<d", 0.0 if label == 0 else label))
        tag, value = "f", f"{bits:016x}"
    elif isinstance(label, str):
        tag, value = "s", label.encode().hex()
    else:
        tag, value = "b", label.hex()
    return f"{ord(tag):02x}{len(value) // 2:016x}{value}"


@pytest.mark.parametrize(("label", "hexed"), KNOWN, ids=lambda x: repr(x)[:12])
def test_known_encodings(label, hexed):
    assert encode(label).hex() == hexed == by_the_book(label)


LABELS = st.one_of(
    st.booleans(),
    st.integers(),
    st.integers(-3, 3),
    st.floats(allow_nan=False),
    st.text(max_size=3),
    st.binary(max_size=3),
)


@given(LABELS, LABELS)
def test_labels_are_written_alike_only_if_they_are_the_same(a, b):
    assert encode(a).hex() == by_the_book(a)
    assert (encode(a) == encode(b)) == (type(a) is type(b) and a == b)
    assert encode(a) == encode(b) or not encode(b).startswith(encode(a))


@pytest.mark.parametrize(
    ("scalar", "plain"),
    [
        (np.int8(7), 7),
        (np.uint64(2**63), 2**63),
        (np.bool_(True), True),
        (np.float32(0.5), 0.5),
        (np.float64(7), 7.0),
        (np.str_("7"), "7"),
        (np.bytes_(b"7"), b"7"),
    ],
)
def test_numpy_scalars_are_read_as_the_plain_type(scalar, plain):
    assert encode(scalar) == encode(plain)


@pytest.mark.parametrize("label", [float("nan"), np.float32("nan"), None, (1, 2), 1j, np.datetime64("2020"), "\ud800"])
def test_what_is_no_label_is_refused(label):
    with pytest.raises(RequestError, match="allowed"):
        encode(label)


# ---- primitives ------------------------------------------------------------------------------------------------------


def hkdf(secret, salt, info, size):
    """RFC 5869, written out."""
    key, out, block = hmac.digest(salt or bytes(32), secret, "sha256"), b"", b""
    while len(out) < size:
        block = hmac.digest(key, block + info + bytes([len(out) // 32 + 1]), "sha256")
        out += block
    return out[:size]


@pytest.mark.parametrize(
    ("secret", "salt", "info", "okm"),
    [
        (
            b"\x0b" * 22,
            bytes(range(13)),
            bytes(range(0xF0, 0xFA)),
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
        ),
        (
            b"\x0b" * 22,
            b"",
            b"",
            "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8",
        ),
    ],
)
def test_derived_keys_are_those_of_rfc_5869(secret, salt, info, okm):
    assert derive(secret, salt, info, 42).hex() == hkdf(secret, salt, info, 42).hex() == okm


def test_agreement_is_that_of_rfc_7748():
    a = Agreement(3, _x25519("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"))
    b = Agreement(1, _x25519("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"))
    assert a.public.hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    assert b.public.hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    shared = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
    pair = a.pair(1, b.public, b"tr")
    assert pair == b.pair(3, a.public, b"tr")
    assert pair.mask + pair.wrap == hkdf(shared, b"tr", b"pair|1|3", 64)


def _x25519(hexed):
    return X25519PrivateKey.from_private_bytes(bytes.fromhex(hexed))


@pytest.mark.parametrize("point", [bytes(32), b"\1" + bytes(31)])
def test_a_public_key_that_gives_everybody_the_same_secret_is_refused(point):
    with REFUSED(match="no proper public key"):
        Agreement.new(0, secrets(Streams(0), "x", 0)).pair(1, point, b"")


# ---- all modes agree -------------------------------------------------------------------------------------------------


def structure(known, held):
    """Return what is known, without the order of the placeholders."""
    columns = [(tuple(known.holds[:, p].tolist()), int(known.totals[p])) for p in range(known.placeholders)]
    return sorted(columns), known.clients, [sorted(map(repr, own)) for own in known.own]


HELDS = st.lists(
    st.dictionaries(
        st.one_of(st.integers(-2, 9), st.sampled_from("ab"), st.booleans()), st.integers(1, 2**40), max_size=5
    ),
    min_size=3,
    max_size=6,
)


@settings(max_examples=25, deadline=None)
@given(HELDS, st.integers(0, 2**31))
def test_prf_and_none_give_the_same(held, seed):
    found = [mask(mode, held, seed) for mode in ("prf", "none")]
    for known in found:
        check(known, held)
    assert structure(found[0], held) == structure(found[1], held)


@pytest.mark.filterwarnings("ignore::fedstrata.privacy.labels.ckks_paper.PrivacyWarning")
@pytest.mark.parametrize(
    "held",
    [
        HELD,
        [{3: 2, 1: 9}, {1: 4, -5: 1}, {}, {3: 1}],
        [{7: 1, "7": 2}, {7.0: 3, b"7": 4}, {True: 5, 2**70: 6}, {1: 7}],
        [{}, {}, {}],
    ],
)
def test_ckks_gives_the_same_too(held):
    found = [mask(mode, held) for mode in MODES]
    for known in found:
        check(known, held)
        assert structure(known, held) == structure(found[0], held)


def test_the_server_draws_the_order_of_the_placeholders():
    held = [dict.fromkeys(range(6), 1)] * 3
    orders = {tuple(mask("none", held, seed).own[0].values()) for seed in range(20)}
    assert len(orders) > 10


@pytest.mark.parametrize("mode", ["prf", "none"])
def test_a_seed_gives_the_same_messages_again(mode):
    first, second, other = Transcript(), Transcript(), Transcript()
    mask(mode, HELD, 1, transcript=first)
    mask(mode, HELD, 1, transcript=second)
    mask(mode, HELD, 2, transcript=other)
    assert first == second != other


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.filterwarnings("ignore::fedstrata.privacy.labels.ckks_paper.PrivacyWarning")
def test_bytes_are_those_of_the_messages(mode):
    transcript = Transcript()
    known = mask(mode, HELD[:3], transcript=transcript)
    for client in range(3):
        up = sum(len(m.data) for m in transcript.messages if m.sender == client)
        down = sum(len(m.data) for m in transcript.messages if m.receiver == client)
        assert (known.bytes_up[client], known.bytes_down[client]) == (up, down)
        assert up > 0 < down


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.filterwarnings("ignore::fedstrata.privacy.labels.ckks_paper.PrivacyWarning")
def test_clients_tell_their_distributions_where_asked(mode):
    held = HELD[:3]
    known = mask(mode, held, distributions=True)
    for client, labels in enumerate(held):
        told = dict(enumerate(known.counts[client].tolist()))
        assert {label: told[at] for label, at in known.own[client].items()} == labels
    assert (known.counts.sum(0) == known.totals).all()
    assert mask("none", held).counts is None


def test_a_client_tells_its_distribution_only_if_it_was_told_to():
    new_server, clients = parties(HELD, open_counts=False)
    with REFUSED(match="open counts"):
        talk(new_server(distributions=True), clients)


# ---- what the server saw ---------------------------------------------------------------------------------------------

NAMED = [{f"particular-label-{i}-{j}": 0x0102030405060000 + 256 * i + j for j in (0, i)} for i in range(1, 6)]


def test_the_server_never_sees_a_label_a_count_or_a_secret():
    new_server, clients = parties(NAMED)
    seen = []
    server = talk(new_server(), clients, meddle=lambda data, _: seen.append(data))
    transcript = b"\n".join(seen)
    for client, labels in zip(clients, NAMED, strict=True):
        pairs, _, group, contribution = client.kept
        secrets = [group, contribution, *(key for pair in pairs.values() for key in (pair.mask, pair.wrap))]
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
    tokens = []
    new_server, clients = parties(HELD)
    for _ in range(2):
        server = talk(new_server(), clients, until="tokens")
        for i, ask in server.asks().items():
            clients[i].answer("tokens", ask)
            tokens += list(clients[i]._by_token)
    assert len(set(tokens)) == 2 * len({label for held in HELD for label in held})


def reachable(thing, seen=None):
    """Return everything that can be reached from an object."""
    seen = {} if seen is None else seen
    if id(thing) in seen or isinstance(thing, type):
        return seen
    seen[id(thing)] = thing
    parts = list(getattr(thing, "__dict__", {}).values())
    if isinstance(thing, dict):
        parts += [*thing, *thing.values()]
    elif isinstance(thing, list | tuple | set | frozenset):
        parts += list(thing)
    elif isinstance(thing, GeneratorType) and thing.gi_frame is not None:
        parts += [*thing.gi_frame.f_locals.values(), thing.gi_yieldfrom]
    for part in parts:
        reachable(part, seen)
    return seen


@pytest.mark.parametrize("step", [*prf.STEPS, None])
def test_no_key_of_a_client_can_be_reached_from_the_server(step):
    new_server, clients = parties(HELD, open_counts=True)
    server = talk(new_server(distributions=True), clients, until=step)
    found = list(reachable(server).values())
    assert not [x for x in found if isinstance(x, X25519PrivateKey | PrfClient | Agreement)]
    keys = [x for x in found if isinstance(x, Ed25519PrivateKey)]
    assert [key.private_bytes_raw() for key in keys] == [server._identity.private.private_bytes_raw()]
    secrets = []
    for client in clients:
        names = ("_group", "_contribution")
        secrets += [s for s in (getattr(client, name, b"") for name in names) if s]
        if hasattr(client, "_agreement"):
            secrets.append(client._agreement.private.private_bytes_raw())
        secrets += [*client.kept[2:]] if hasattr(client, "kept") else []
    held = b"\n".join(x for x in found if isinstance(x, bytes))
    assert len(held) > 100
    assert not [secret for secret in secrets if secret in held]


# ---- drop-outs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", prf.STEPS)
def test_a_client_that_drops_out_is_left_out(step):
    held, notes = [*HELD, *HELD], []
    known = mask(
        "prf", held, absent={3: step}, distributions=True, note=lambda kind, **said: notes.append((kind, said))
    )
    check(known, held)
    [(kind, told)] = notes
    assert (kind, told["step"], told["missing"]) == ("label_masking_repeated", step, [3])
    assert told["left_out"] == list(known.left_out)
    assert told["clients"] == len(known.clients)
    assert 3 in known.left_out
    assert len(known.left_out) == (
        3 if step == "counts" else 1
    )  # two more must go, or the difference would be client 3
    assert (known.counts[list(known.left_out)] == 0).all()


@pytest.mark.parametrize("step", ["labels", "placeholders", "distribution"])
def test_drop_outs_without_masking(step):
    known = mask("none", HELD, absent={0: step}, distributions=True)
    check(known, HELD)
    assert known.left_out == (0,)


@pytest.mark.filterwarnings("ignore::fedstrata.privacy.labels.ckks_paper.PrivacyWarning")
@pytest.mark.parametrize("step", ckks_paper.STEPS)
def test_drop_outs_in_the_printed_protocol(step):
    held = [{1: 2}, {1: 3, 2: 1}, {2: 1}, {1: 1}]
    gone = 0 if step == "sums" else 1  # one client only is asked for sums
    known = mask("ckks-paper", held, absent={gone: step}, distributions=True)
    check(known, held)
    assert known.left_out == (gone,)


def test_several_drop_outs_one_after_the_other():
    held, notes = [*HELD, *HELD], []
    absent = {1: "tokens", 5: "confirm", 2: "agree", 8: "key"}
    known = mask("prf", held, absent=absent, note=lambda _, **said: notes.append(said["step"]))
    check(known, held)
    assert known.left_out == (1, 2, 5, 8)
    assert notes == ["key", "confirm", "tokens", "agree"]


@pytest.mark.parametrize("step", ["key", "agree"])
def test_fewer_than_three_clients_never_go_on(step):
    with pytest.raises(FedstrataError, match="3 are needed"):
        mask("prf", HELD[:4], absent={0: step, 2: step})
    check(mask("prf", HELD[:4], absent={0: step}), HELD[:4])


def test_a_drop_out_while_counts_are_sent_needs_enough_clients():
    check(mask("prf", [*HELD, {}], absent={0: "counts"}), [*HELD, {}])
    with pytest.raises(FedstrataError, match="must stay away"):
        mask("prf", HELD, absent={0: "counts"})


def test_a_reply_that_is_refused_counts_as_missing(monkeypatch):
    answer = PrfClient.answer
    monkeypatch.setattr(PrfClient, "answer", lambda self, *a: answer(self, *a)[self.me == 2 :])
    notes = []
    known = mask("prf", HELD, note=lambda _, **said: notes.append(said["refused"]))
    assert known.left_out == (2,)
    assert list(notes[0]) == [2]


# ---- the smallest set, and second sums -------------------------------------------------------------------------------


def test_jobs_and_sets_a_client_does_not_serve():
    new_server, clients = parties([*HELD, *HELD])
    with REFUSED(match="at least 3"):
        talk(new_server(members=(0, 1)), clients)
    key_directory = clients[0]._key_directory.digest
    for named in ((0, 1, 2), (2, 1, 9), (1, 1, 9), (1, 9, 10)):
        with REFUSED(match="not on the roll, or not this one"):
            clients[9].answer("key", lie(new_server(), "key", 9, key_directory, np.array(named, dtype=INDEX).tobytes()))
    server = new_server()
    talk(server, clients)
    with REFUSED(match="repeats the id"):
        clients[0].answer("key", lie(server, "key", 0, key_directory, np.arange(10, dtype=INDEX).tobytes()))
    talk(new_server(), clients)  # the same clients once more: the same sums
    for others in (range(9), range(8), range(3), (*range(6), 9, 8)):  # too near, too near, less than half, too near
        with REFUSED(match="subtracted"):
            talk(new_server(members=others), clients)
    talk(new_server(members=range(7)), clients)
    with REFUSED(match="subtracted"):  # back to all: the difference would be three, but the chain only goes down
        talk(new_server(), clients)
    with REFUSED(match="subtracted"):  # a half of seven, but less than half of the first ten
        talk(new_server(members=range(4)), clients)


def test_a_job_that_ended_before_counts_were_sent_does_not_bind():
    new_server, clients = parties(HELD)
    talk(new_server(), clients, until="counts")
    assert all(client.served.last is None for client in clients)
    talk(new_server(members=(0, 1, 2, 3)), clients)
    assert all(client.served.last == set(clients[0]._key_directory.clients[:4]) for client in clients[:4])


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


# ---- messages that are not as they were sent -------------------------------------------------------------------------


def test_every_message_with_a_changed_bit_or_a_missing_part_is_refused():
    new_server, clients = parties(HELD[:3], open_counts=True)
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

    server = talk(new_server(distributions=True), clients, meddle=meddle)
    assert met["messages"] == 2 * 3 * len(prf.STEPS)  # and all of them were accepted in the end as they were
    assert sorted(server.totals.tolist()) == sorted([22, 18, 32, 23])


def test_every_message_that_comes_twice_too_early_or_from_another_job_is_refused():
    def universe():
        return parties(HELD[:3], open_counts=True)

    new_server, clients = universe()
    script = []  # all messages of a job
    talk(new_server(distributions=True), clients, meddle=lambda data, _: script.append(data))
    new_server, clients = universe()  # the same secrets again: the same messages
    server, had = new_server(distributions=True), []
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
    second = new_server(distributions=True)
    for step in prf.STEPS:  # and none of it helps in the next job
        for data in had[::5]:
            with REFUSED():
                clients[0].answer(step, data)
            with REFUSED():
                second.take(0, data)


def test_steps_cannot_be_skipped():
    new_server, clients = parties(HELD)
    server = talk(new_server(), clients, until="tokens")
    number = 3
    for step in ("agree", "counts"):
        ask = Frame(asked(prf.DOMAIN, step, number, 0), server.job, SERVER, ()).sign(server._identity)
        with REFUSED(match="order"):
            clients[0].answer(step, ask)


def test_keys_that_are_not_on_the_roll():
    new_server, clients = parties(HELD)
    _, strangers = parties(HELD, seed=9)
    with REFUSED(match="not signed by its sender"):  # a client that has another roll, with another server's key
        strangers[0].answer("key", new_server().asks()[0])
    mixed = KeyDirectory(
        clients[0]._key_directory.server,
        (*clients[0]._key_directory.clients[:4], strangers[4]._key_directory.clients[4]),
    )
    clients[1]._key_directory = mixed
    with REFUSED(match="another roll"):
        clients[1].answer("key", new_server().asks()[1])
    clients[2]._identity = strangers[2]._identity
    server = new_server()
    reply = clients[2].answer("key", server.asks()[2])
    with REFUSED(match="not signed by its sender"):
        server.take(2, reply)
    server = new_server()
    reply = clients[0].answer("key", server.asks()[0])
    with REFUSED(match="sender"):
        server.take(3, reply)


# ---- a lying server --------------------------------------------------------------------------------------------------


def test_substituted_public_keys_are_refused():
    new_server, clients = parties(HELD)
    mine = Agreement.new(2, secrets(Streams(5), "mallory", 0))
    server = new_server()

    def substitute(step, i, ask):
        if step != "contributions":
            return ask
        keys = list(said(server, step, i, ask, clients[0]._key_directory))
        keys[2] = Frame(replied(prf.DOMAIN, "key", 0), server.job, 2, (mine.public,)).sign(server._identity)
        return lie(server, step, i, *keys)

    with REFUSED(match="not signed by its sender 2"):
        talk(server, clients, change=substitute)


def test_clients_that_were_shown_different_keys_do_not_go_on():
    """Client 2 signs two keys (it conspires), and the server shows the second one to client 0 only."""
    new_server, clients = parties(HELD)
    server, other = new_server(), Agreement.new(2, secrets(Streams(5), "second", 0))

    def two_faces(step, i, ask):
        if step != "contributions" or i != 0:
            return ask
        keys = list(said(server, step, i, ask, clients[0]._key_directory))
        keys[2] = Frame(replied(prf.DOMAIN, "key", 0), server.job, 2, (other.public,)).sign(clients[2]._identity)
        return lie(server, step, i, *keys)

    with REFUSED(match="changed on the way"):
        talk(server, clients, change=two_faces)


def test_a_client_that_contributes_differently_to_others_is_found_out():
    new_server, clients = parties(HELD)
    contributions = clients[3]._contributions

    def two_faced(fields):
        first = contributions(fields)
        clients[3]._entropy, kept = secrets(Streams(6), "other", 3), clients[3]._contribution
        second = contributions(fields)
        clients[3]._contribution = kept
        return first[:2] + second[2:]

    clients[3]._contributions = two_faced
    with REFUSED(match="another group key"):
        talk(new_server(), clients)


def test_a_server_cannot_give_the_holders_of_a_label_different_placeholders():
    """It would read single counts off the sums. One tree cannot hold a token twice, and two trees have two roots."""
    same = [{"x": 5}, {"x": 7}, {"x": 9}]

    def apart(new_server, clients, proven):
        server = new_server()

        def split(step, i, ask):
            if step != "agree":
                return ask
            _, seen, _, path = said(server, step, i, ask, clients[0]._key_directory)
            [token] = clients[i]._by_token
            if proven:
                own = Directory({token: i}, bytes([i]))
                seen, path = own.root, own.path(token)
            return lie(server, step, i, np.array([3], INDEX).tobytes(), seen, np.array([i], INDEX).tobytes(), path)

        talk(server, clients, change=split)

    with REFUSED(match="not in the assignment"):
        apart(*parties(same), proven=False)
    new_server, clients = parties(same)
    with REFUSED(match="another assignment"):
        apart(new_server, clients, proven=True)
    assert all(client.served.last is None for client in clients)  # no counts were sent


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


def test_one_clients_masked_counts_are_no_sum():
    """What opens a single contribution is the masks of all others: a server that has it alone has random words."""
    new_server, clients = parties(HELD)
    server, alone = new_server(), {}
    talk(server, clients, until="counts")
    for i, ask in server.asks().items():
        alone[i] = clients[i].answer("counts", ask)
        with REFUSED():
            clients[i].answer("counts", ask)  # nor can it be asked again
    for i, data in alone.items():
        words = _words(server, i, data, clients)
        assert not set(words.tolist()) & set(HELD[i].values())
        assert (words > 1 << 32).any()
        server.take(i, data)
    assert server.totals.sum() == sum(sum(held.values()) for held in HELD)


def _words(server, client, data, clients):
    frame = open_frame(data, clients[0]._key_directory, replied(prf.DOMAIN, "counts", 5), server.job, client)
    return np.frombuffer(frame.fields[0], WORD).copy()


def test_all_but_two_clients_and_the_server_learn_the_sum_of_the_two():
    labels = range(500)
    held = [{label: 1 + (label * (i + 3)) % 97 for label in labels} for i in range(6)]
    new_server, clients = parties(held)
    server = talk(new_server(), clients, until="counts")
    seen = {i: _words(server, i, clients[i].answer("counts", ask), clients) for i, ask in server.asks().items()}
    for i in (0, 1):  # the colluders 2..5 strip the masks they share with the honest two
        for colluder in clients[2:]:
            pairs, tr, _, _ = colluder.kept
            seen[i] -= stream(derive(pairs[i].mask, tr, b"label counts"), len(labels))
    truth = [np.zeros(len(labels), dtype=WORD) for _ in range(2)]
    for i in (0, 1):
        for label, at in clients[i].own.items():
            truth[i][at] = held[i][label]
    assert (seen[0] + seen[1] == truth[0] + truth[1]).all()  # the sum, and ...
    left = seen[0] - truth[0]
    assert (left == truth[1] - seen[1]).all()  # ... one mask, which only the two have, on both
    assert (left == stream(derive(clients[0].kept[0][1].mask, clients[0].kept[1], b"label counts"), len(labels))).all()
    assert len(np.unique(left)) == len(labels)
    ones = np.unpackbits(left.view(np.uint8)).mean()
    assert abs(ones - 0.5) < 5 * 0.5 / np.sqrt(64 * len(labels))  # uniform words: any two counts of this sum fit them
    bits = np.unpackbits(left.view(np.uint8).reshape(-1, 8), axis=1).mean(0)
    assert (abs(bits - 0.5) < 5.5 * 0.5 / np.sqrt(len(labels))).all()


# ---- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("counted", [2**63 // 3, 2**63, -1, 0, 1.5, True, "3"])
@pytest.mark.parametrize("mode", ["prf", "none"])
def test_counts_that_could_wrap_or_are_none_are_refused(mode, counted):
    with pytest.raises(RequestError, match="allowed"):
        mask(mode, [{1: counted}, {1: 1}, {1: 1}])


@pytest.mark.parametrize("mode", ["prf", "none"])
def test_the_largest_counts_add_up(mode):
    most = 2**63 // 3 - 1
    assert mask(mode, [{1: most}] * 3).totals.tolist() == [3 * most]
    assert mask(mode, [{np.int64(1): np.int64(2)}] * 3).totals.tolist() == [6]


def test_a_total_that_cannot_be_one_is_refused():
    new_server, clients = parties(HELD)
    clients[0]._counts = lambda: np.full(4, 2**63, dtype=WORD)  # a client that lies
    with REFUSED(match="too large"):
        talk(new_server(), clients)


@pytest.mark.parametrize(("mode", "clients"), [("prf", 2), ("prf", prf.MOST + 1), ("ckks-paper", 2), ("none", 0)])
def test_too_few_and_too_many_clients(mode, clients):
    with pytest.raises(RequestError, match=rf'privacy.labels = "{mode}" with {clients} clients; allowed: at'):
        mask(mode, [{1: 1}] * clients)


def test_wrong_requests():
    with pytest.raises(RequestError, match="did you mean"):
        mask("prv", HELD)
    with pytest.raises(RequestError, match="allowed: clients 0 to 4"):
        mask("prf", HELD, absent={7: "key"})
    with pytest.raises(RequestError, match="steps"):
        mask("prf", HELD, absent={1: "labels"})
    with pytest.raises(RequestError, match="allowed: bool"):
        mask("prf", [{None: 1}] * 3)


# ---- the printed protocol --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def keys():
    return ckks_paper.Keys.new()


def ckks_parties(held, keys):
    sources = [secrets(Streams(0), "labels", party) for party in range(-1, len(held))]
    server, *identities = [Identity.new(source) for source in sources]
    key_directory = KeyDirectory.of(server, identities)
    clients = [
        ckks_paper.CkksClient(i, identities[i], key_directory, held[i], sources[i + 1], keys.secret)
        for i in range(len(held))
    ]
    rng = np.random.default_rng(0)
    return ckks_paper.CkksServer(server, key_directory, range(len(held)), sources[0], rng, public=keys.public), clients


def test_the_printed_protocol_says_what_it_is_worth():
    with pytest.warns(ckks_paper.PrivacyWarning, match="oracle") as caught:
        known = mask("ckks-paper", [{1: 1}] * 3)
    assert len(caught) == 1
    assert known.warning == ckks_paper.WARNING
    assert mask("prf", HELD).warning is None


def test_what_is_decrypted_leaves_a_client_rounded(keys):
    """Raw doubles carry the noise of a ciphertext, and give the key to whoever gets them."""
    server, clients = ckks_parties([{1: 10**9 + 7}, {1: 3}, {2: 5}], keys)
    raw, answers = [], []
    decrypted = clients[0]._decrypted
    clients[0]._decrypted = lambda data: raw.append(decrypted(data)) or raw[-1]

    def look(data, deliver):
        if deliver.func == server.take and server.step == "sums":
            answers.append(data)

    talk(server, clients, meddle=look)
    sums = [number for number in raw if number > 2]
    assert sorted(server.totals.tolist()) == [5, 10**9 + 10]
    assert any(number != round(number) for number in sums)  # there is noise, and ...
    assert not [n for n in raw if n != round(n) and struct.pack("<d", n) in answers[0]]  # ... it does not travel
    assert np.array(server.totals, dtype=WORD).tobytes() in answers[0]


def test_the_printed_protocol_has_a_decryption_oracle(keys):
    """A server submits one client's count as "the sum", and is told it. (With prf there is nothing to submit.)"""
    held = [{1: 10}, {1: 20}, {1: 30}]
    server, clients = ckks_parties(held, keys)
    submitted = {}

    def steal(step, i, ask):
        if step != "sums":
            return ask
        kind = asked(ckks_paper.DOMAIN, step, server._number[i], i)
        return Frame(kind, server.job, SERVER, (submitted["count"],)).sign(server._identity)

    def listen(data, deliver):
        if deliver.func == server.take and server.step == "labels":
            frame = open_frame(
                data, clients[0]._key_directory, replied(ckks_paper.DOMAIN, "labels", 0), server.job, deliver.args[0]
            )
            submitted["count"] = frame.fields[1]  # the last one stays: that of client 2

    talk(server, clients, meddle=listen, change=steal)
    assert server.totals.tolist() == [30]


def test_a_client_of_the_printed_protocol_reads_the_labels_of_others(keys):
    server, clients = ckks_parties([{11: 1, 12: 1}, {40: 1}, {41: 1}], keys)
    read, decrypted = [], clients[1]._decrypted
    clients[1]._decrypted = lambda data: read.append(decrypted(data)) or read[-1]
    talk(server, clients, until="map")
    assert {40 - round(difference) for difference in read} == {11, 12}


def test_a_ciphertext_less_itself_is_zero_without_asking(keys):
    server, clients = ckks_parties([{1: 1}, {2: 1}, {3: 1}], keys)
    vector = server._read(clients[0]._encrypted(5))
    assert server._less(vector, vector) is None
    assert server._less(vector, server._read(vector.serialize())) is None
    assert clients[0]._decrypted(server._less(vector, server._read(clients[1]._encrypted(5)))) == pytest.approx(
        0, abs=1e-3
    )


def test_ciphertexts_that_are_none_and_sizes_that_are_wrong_are_refused(keys):
    server, clients = ckks_parties([{1: 1}, {2: 1}, {3: 1}], keys)
    with REFUSED(match="no ciphertext"):
        clients[0]._decrypted(b"nonsense")
    ts = ckks_paper._tenseal()
    with REFUSED(match="2 numbers"):
        clients[0]._decrypted(ts.ckks_vector(clients[0]._context, [1.0, 2.0]).serialize())
    assert not server._context.has_secret_key()
    assert not [x for x in reachable(server).values() if isinstance(x, ckks_paper.CkksClient)]


def test_printed_protocol_tampered_replayed_and_overflowing(keys):
    server, clients = ckks_parties([{1: 1, 2: 2}, {2: 1}, {1: 5}], keys)
    rng = np.random.default_rng(0)

    def meddle(data, deliver):
        changed = bytearray(data)
        bit = int(rng.integers(8 * len(data)))
        changed[bit // 8] ^= 1 << bit % 8
        for bad in (bytes(changed), data[:-1], b""):
            with REFUSED():
                deliver(bad)

    talk(server, clients, meddle=meddle)
    assert sorted(server.totals.tolist()) == [3, 6]
    _, clients = ckks_parties([{1: 2**40 // 3}, {2: 1}, {1: 5}], keys)
    with pytest.raises(RequestError, match="wrap"):
        clients[0].answer("labels", ckks_parties([{1: 1}] * 3, keys)[0].asks()[0])


def test_without_tenseal_the_request_says_what_to_install(monkeypatch):
    monkeypatch.setattr(ckks_paper, "import_module", _missing)
    with pytest.raises(RequestError, match=r"pip install \"fedstrata\[he\]\""):
        mask("ckks-paper", HELD)


def _missing(name):
    raise ImportError(name)
