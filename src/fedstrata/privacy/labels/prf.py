"""The default: labels become tokens under a key that only the clients have, counts are summed under masks that cancel.

    step           server -> client                    client -> server
    key            job, roll, who takes part           X25519 public key
    contributions  all signed public keys              a random contribution, wrapped for each other client
    confirm        what the others wrapped for it      HMAC(K, confirm | me)
    tokens         all confirmations                   sorted tokens HMAC(K, label)[:16]
    agree          own placeholders, root and paths    HMAC(K, agree | me | root)
    distribution   -                                   own counts in the open (only where a method needs them)
    counts         all agreements                      own counts plus masks, modulo 2^64

tr = SHA-256(domain, roll, job, all keys) salts every derived key, so parties that were shown different keys share
nothing. K = HKDF of all contributions: no one chooses it, and the server, through whose hands all passes, has none of
them. That all clients have the same K is confirmed before a token is sent. The masks of two clients come from a key of
theirs alone; one adds and the other subtracts them, so that only the sum over all clients can be read.

A server that gave the holders of one label different placeholders could read single counts off the sums: it must prove
(`directory.py`) that it does not, and clients agree on the proof. `served.py` has the rule for a second sum.

The server learns which client holds which placeholder, and the sums. A client learns its own map. The server with one
client learns all label names, by trying them under K; of counts, only the sum over the honest clients.
"""

from __future__ import annotations

import hmac
from collections.abc import Generator, Sequence
from typing import Any, ClassVar

import numpy as np

from fedstrata.privacy import FEWEST
from fedstrata.privacy.agreement import Agreement, Pair, derive, transcript_of, unwrap, wrap
from fedstrata.privacy.frames import Inbox, RefusedError, join
from fedstrata.privacy.labels.directory import HASH, Directory, check_paths
from fedstrata.privacy.labels.names import KEY
from fedstrata.privacy.labels.parties import (
    DISTRIBUTION,
    INDEX,
    WORD,
    Asks,
    Fields,
    LabelClient,
    LabelServer,
    counts_of,
    expect_fields,
    name_reply,
    numbers,
)
from fedstrata.privacy.masks import add_streams

DOMAIN = "fedstrata labels prf v1"
MOST = 1_000  # clients: every two agree on a key; 300 take some 20 CPU seconds together, twice as many four times
TOKEN = 16  # bytes
STEPS = ("key", "contributions", "confirm", "tokens", "agree", DISTRIBUTION, "counts")


class PrfClient(LabelClient):
    """A client: has its labels, its part of every shared key, and the group key."""

    domain: ClassVar[str] = DOMAIN
    steps: ClassVar[tuple[str, ...]] = STEPS
    least: ClassVar[int] = FEWEST

    # What is known of the job that is under way, from its first steps on; the order of the steps sees to that.
    _agreement: Agreement
    _tr: bytes  # what all keys of the job are bound to
    _pairs: dict[int, Pair]
    _contribution: bytes
    _group: bytes  # the group key K
    _by_token: dict[bytes, Any]  # own labels
    _assignment: bytes  # what the server committed to
    names_key: bytes  # what names of labels are sealed under for the other clients, once the job is done

    def _check_set(self, members: Sequence[int]) -> None:
        if len(members) > MOST:
            raise RefusedError(f"a job with {len(members)} clients is asked for; at most {MOST} can agree on keys")
        self.served.check(self._keys_of(members))

    def _reply(self, step: str, fields: Fields) -> Fields:
        replies = {
            "key": self._key,
            "contributions": self._contributions,
            "confirm": self._confirm,
            "tokens": self._tokens,
            "agree": self._agree,
            "counts": self._masked_counts,
        }
        return replies[step](fields)

    def _key(self, _: Fields) -> Fields:
        self._agreement = Agreement.new(self.me, self._entropy)  # fresh for every job: a key masks once
        return (self._agreement.public,)

    def _contributions(self, signed: Fields) -> Fields:
        kind, inbox = name_reply(DOMAIN, "key", 0), Inbox(self._key_directory, self._job)
        frames = zip(self._members, expect_fields(signed, len(self._members)), strict=True)
        keys = {client: expect_fields(inbox.take(data, kind, client).fields, 1)[0] for client, data in frames}
        if keys[self.me] != self._agreement.public:
            raise RefusedError("the server shows another public key than this client sent")
        self._tr = transcript_of(DOMAIN.encode() + self._key_directory.digest, self._job, keys)
        self._pairs = {
            client: self._agreement.pair(client, key, self._tr) for client, key in keys.items() if client != self.me
        }
        self._contribution = self._entropy(32)
        return tuple(
            wrap(pair.wrap, self.me, client, self._contribution, self._tr) for client, pair in self._pairs.items()
        )

    def _confirm(self, wraps: Fields) -> Fields:
        others = zip(self._pairs.items(), expect_fields(wraps, len(self._pairs)), strict=True)
        given = {client: unwrap(pair.wrap, client, self.me, data, self._tr) for (client, pair), data in others}
        given[self.me] = self._contribution
        self._group = derive(join([given[client] for client in self._members]), self._tr, b"group key")
        return (self._proof(b"confirm", self.me),)

    def _tokens(self, proofs: Fields) -> Fields:
        self._all_prove(b"confirm", proofs, "another group key")
        tokens = {self._mac(b"token", code)[:TOKEN]: label for label, (code, _) in self._held.items()}
        self._by_token = dict(sorted(tokens.items()))  # sorted, so that their order tells nothing
        return (b"".join(self._by_token),)

    def _agree(self, fields: Fields) -> Fields:
        total, root, places, paths = expect_fields(fields, 4)
        self._placed(list(self._by_token.values()), total, places)
        check_paths(root, list(self._by_token), list(self.own.values()), paths)
        self._assignment = root + total
        return (self._proof(b"agree", self.me, self._assignment),)

    def _masked_counts(self, proofs: Fields) -> Fields:
        self._all_prove(b"agree", proofs, "another assignment of placeholders", self._assignment)
        self.served.sent(self._keys_of(self._members))
        counts = self._counts()
        keys = {client: derive(pair.mask, self._tr, b"label counts") for client, pair in self._pairs.items()}
        plus, minus = ([keys[c] for c in keys if c > self.me], [keys[c] for c in keys if c < self.me])
        add_streams(counts, plus, minus)  # of two, one adds what the other subtracts
        self.names_key = derive(self._group, self._tr, b"label names", KEY)
        self._pairs, self._group, self._contribution = {}, b"", b""  # they served
        return (counts.tobytes(),)

    def _keys_of(self, members: Sequence[int]) -> list[bytes]:
        """Name clients as they are remembered from run to run: their numbers mean something in one roll only."""
        return [self._key_directory.clients[member] for member in members]

    def _mac(self, *parts: bytes) -> bytes:
        return hmac.digest(self._group, join([DOMAIN.encode(), self._tr, *parts]), "sha256")

    def _proof(self, what: bytes, client: int, about: bytes = b"") -> bytes:
        return self._mac(what, b"%d" % client, about)

    def _all_prove(self, what: bytes, proofs: Fields, instead: str, about: bytes = b"") -> None:
        """Refuse to go on unless every client of the job has what this one has."""
        for client, proof in zip(self._members, expect_fields(proofs, len(self._members)), strict=True):
            if not hmac.compare_digest(proof, self._proof(what, client, about)):
                raise RefusedError(f"client {client} has {instead} than client {self.me}")


class PrfServer(LabelServer):
    """The server: passes on what it cannot read, numbers tokens, adds up masked counts."""

    domain: ClassVar[str] = DOMAIN
    counting: ClassVar[str | None] = "counts"

    def take(self, client: int, data: bytes) -> None:
        """Take a reply; public keys are passed on as they were signed."""
        if self.step == "key" and client in self.missing:
            self._signed[client] = data
        super().take(client, data)

    def _run(self) -> Generator[Asks, dict[int, Fields], None]:
        everybody = self.members
        self._signed: dict[int, bytes] = {}
        yield "key", self._opening()
        keys = tuple(self._signed[client] for client in everybody)
        wraps = yield "contributions", dict.fromkeys(everybody, keys)
        sent = {(i, j): w for i in everybody for j, w in zip(_others(everybody, i), wraps[i], strict=True)}
        theirs = {j: tuple(sent[i, j] for i in _others(everybody, j)) for j in everybody}
        proofs = yield "confirm", theirs
        told = yield "tokens", dict.fromkeys(everybody, tuple(proofs[client][0] for client in everybody))
        tokens = {client: _cut(fields[0]) for client, fields in told.items()}
        placed = self._place(tokens)
        directory, total = Directory(placed, self._entropy(32)), np.array([len(placed)], dtype=INDEX).tobytes()
        paths = {token: directory.path(token) for token in placed}
        proofs = yield (
            "agree",
            {
                client: (total, directory.root, self.holds[client].tobytes(), b"".join(paths[t] for t in own))
                for client, own in tokens.items()
            },
        )
        yield from self._distributions()
        masked = yield "counts", dict.fromkeys(everybody, tuple(proofs[client][0] for client in everybody))
        sums = np.zeros(len(placed), dtype=WORD)
        for (counts,) in masked.values():
            sums += numbers(counts, WORD)
        self.totals = counts_of(sums.tobytes(), len(placed))

    def _check(self, step: str, client: int, fields: Fields) -> None:
        if step == "contributions":
            expect_fields(fields, len(self.members) - 1)
            return
        [field] = expect_fields(fields, 1)
        if step == "tokens":
            tokens = _cut(field)
            if tokens != sorted(set(tokens)):
                raise RefusedError(f"the tokens of client {client} are not sorted, or not distinct")
        else:
            numbers(field, np.dtype("V1"), {"counts": WORD.itemsize * len(self.totals)}.get(step, HASH))


def _others(clients: Sequence[int], me: int) -> list[int]:
    return [client for client in clients if client != me]


def _cut(tokens: bytes) -> list[bytes]:
    if len(tokens) % TOKEN:
        raise RefusedError("a message holds part of a token")
    return [tokens[at : at + TOKEN] for at in range(0, len(tokens), TOKEN)]
