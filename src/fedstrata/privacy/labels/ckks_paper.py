"""The protocol as Stratify section IV-A prints it, to reproduce its Table IV. Slow, and it hides less than it seems.

Every label and every count is a CKKS ciphertext of its own (n = 8192, moduli of 60, 40, 40, 60 bits, scale 2^40) under
one key that all clients have and the server has not.

    step          server -> client                                    client -> server
    labels        job, roll, who takes part                           [E(l), E(n(l))] for each own label
    unique        E(l) less every label in the list so far            which of them are zero
    map           E(l) less a label of the list, until one is zero    whether it is zero
    placeholders  those of own labels                                 -
    distribution  -                                                   own counts in the open (only where needed)
    sums          to one client: E(N(p))                              N(p), rounded

Departures. The paper does not say what a client answers: ours gives away bits and whole numbers only, because the raw
doubles that CKKS decrypts to carry the noise of the ciphertext, and with it the secret key: a server that is handed
them can solve for it. Rounding takes that road away; it is no proof that there is none. E(l) - E(l), which the mapping
meets at each label's own entry, is refused by the library as "transparent": it is zero, and nobody needs to be asked.
Labels that are not whole numbers below 2^32 enter as 40 bits of a hash. The server stops looking for new labels when it
has as many as it knows there are (V-E): as many as the model has outputs.

What it gives away: a client decrypts l_i - l_j and so reads every label in the list. Any client together with the
server opens everything. And a server can submit anything as "the sum": clients are its decryption oracle.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from typing import Any, ClassVar

import numpy as np

from fedstrata.core.errors import RequestError
from fedstrata.privacy import FEWEST
from fedstrata.privacy.frames import RefusedError
from fedstrata.privacy.identity import Entropy, Identity, KeyDirectory
from fedstrata.privacy.labels.encoding import encode
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
)

DOMAIN = "fedstrata labels ckks-paper v1"
STEPS = ("labels", "unique", "map", "placeholders", DISTRIBUTION, "sums")
DEGREE, MODULI, SCALE = 8192, (60, 40, 40, 60), 2.0**40
WHOLE = 1 << 32  # whole numbers below stand for themselves
WARNING = (
    "privacy.labels = ckks-paper reproduces a published protocol and should not guard anything: each client can read "
    "all labels, any client and the server together open all counts, and the server has an oracle for the rest; use prf"
)


class PrivacyWarning(UserWarning):
    """What was asked for protects less than its name suggests."""


@dataclass(frozen=True)
class Keys:
    """A CKKS key pair: all clients get the secret half out of band, the server the public one."""

    secret: bytes
    public: bytes

    @classmethod
    def new(cls) -> Keys:
        """Draw one; tenseal takes its own randomness."""
        ts = _tenseal()
        context = ts.context(ts.SCHEME_TYPE.CKKS, DEGREE, coeff_mod_bit_sizes=list(MODULI))
        context.global_scale = SCALE
        kept = {"save_public_key": True, "save_galois_keys": False, "save_relin_keys": False}
        return cls(context.serialize(save_secret_key=True, **kept), context.serialize(save_secret_key=False, **kept))


class CkksClient(LabelClient):
    """A client: encrypts, and decrypts what the server submits."""

    domain: ClassVar[str] = DOMAIN
    steps: ClassVar[tuple[str, ...]] = STEPS
    any_number: ClassVar[frozenset[str]] = frozenset({"unique", "map", DISTRIBUTION, "sums"})
    least: ClassVar[int] = FEWEST
    most_total: ClassVar[int] = 1 << 40  # rounding gives back exact sums below

    def __init__(
        self,
        me: int,
        identity: Identity,
        key_directory: KeyDirectory,
        held: Mapping[Any, int],
        entropy: Entropy,
        secret: bytes,
        *,
        open_counts: bool = False,
    ):
        super().__init__(me, identity, key_directory, held, entropy, open_counts=open_counts)
        self._context = _tenseal().context_from(secret)
        # In an order of its own: as it stands in the data, the server could guess which label is which.
        self._labels = sorted(self._held, key=lambda _: entropy(8))

    def _reply(self, step: str, fields: Fields) -> Fields:
        if step == "labels":
            pairs = [(label_id(label), self._held[label][1]) for label in self._labels]
            return tuple(self._encrypted(number) for pair in pairs for number in pair)
        if step == "placeholders":
            self._placed(self._labels, *expect_fields(fields, 2))
            return ()
        opened = np.rint([self._decrypted(field) for field in fields])  # no double leaves this line
        if step == "sums":
            return (np.maximum(opened, 0).astype(WORD).tobytes(),)
        return (bytes((opened == 0).tolist()),)

    def _encrypted(self, number: int) -> bytes:
        data: bytes = _tenseal().ckks_vector(self._context, [float(number)]).serialize()
        return data

    def _decrypted(self, data: bytes) -> float:
        return float(_vector(self._context, data).decrypt()[0])


class CkksServer(LabelServer):
    """The server: subtracts, adds, and asks."""

    domain: ClassVar[str] = DOMAIN

    def __init__(self, *given: Any, public: bytes, distributions: bool = False, classes: int | None = None):
        self._context = _tenseal().context_from(public)
        super().__init__(*given, distributions=distributions, classes=classes)

    def _run(self) -> Generator[Asks, dict[int, Fields], None]:
        told = yield "labels", self._opening()
        labels = {client: [self._read(data) for data in fields[::2]] for client, fields in told.items()}
        unique: list[Any] = []
        for client, own in labels.items():
            first = not unique  # all labels of the first client are new
            for label in own:
                if len(unique) == self._classes:
                    break  # it can only be one of these
                if first or not (yield from self._is_in(client, label, unique)):
                    unique.append(label)
        found = yield from self._mapped(labels, unique)
        places = self._rng.permutation(len(unique)).astype(INDEX)
        self.holds = {client: places[at] for client, at in found.items()}
        self.totals = np.zeros(len(unique), dtype=np.int64)
        total = np.array([len(unique)], dtype=INDEX).tobytes()
        yield "placeholders", {client: (total, own.tobytes()) for client, own in self.holds.items()}
        yield from self._distributions()
        counts = {client: [self._read(data) for data in fields[1::2]] for client, fields in told.items()}
        sums: list[Any] = [None] * len(unique)
        for client, held in self.holds.items():
            for placeholder, count in zip(held.tolist(), counts[client], strict=True):
                sums[placeholder] = count if sums[placeholder] is None else sums[placeholder] + count
        teller = self.members[0]
        if sums:
            replies = yield "sums", {teller: tuple(data.serialize() for data in sums)}
            self.totals = counts_of(replies[teller][0], len(sums))

    def _is_in(self, client: int, label: Any, listed: list[Any]) -> Generator[Asks, dict[int, Fields], bool]:
        """Let a client say whether its label is in the list."""
        less = [self._less(label, other) for other in listed]
        asks = tuple(data for data in less if data is not None)
        if len(asks) < len(less):
            return True
        replies = yield "unique", {client: asks}
        return any(replies[client][0])

    def _mapped(
        self, labels: dict[int, list[Any]], unique: list[Any]
    ) -> Generator[Asks, dict[int, Fields], dict[int, np.ndarray]]:
        """Let all clients find their labels in the list, one entry at a time, all at once."""
        found: dict[int, list[int]] = {client: [] for client in labels}
        tried = dict.fromkeys(labels, 0)
        while True:
            asks: dict[int, Fields] = {}
            for client, own in labels.items():
                while len(found[client]) < len(own):
                    if tried[client] == len(unique):
                        raise RefusedError(f"client {client} finds a label nowhere that it had found, or had told new")
                    less = self._less(own[len(found[client])], unique[tried[client]])
                    if less is not None:
                        asks[client] = (less,)
                        break
                    found[client].append(tried[client])
                    tried[client] = 0
            if not asks:
                return {client: np.array(at, dtype=np.intp) for client, at in found.items()}
            replies = yield "map", asks
            for client, (zero,) in replies.items():
                if any(zero):
                    found[client].append(tried[client])
                tried[client] = 0 if any(zero) else tried[client] + 1

    def _less(self, one: Any, other: Any) -> bytes | None:
        """Subtract; None where the two are the same ciphertext, which can only be zero."""
        try:
            data: bytes = (one - other).serialize()
        except RuntimeError as error:
            if "transparent" not in str(error):
                raise
            return None
        return data

    def _read(self, data: bytes) -> Any:
        return _vector(self._context, data)

    def _check(self, step: str, client: int, fields: Fields) -> None:
        if step == "labels":
            if len(fields) % 2:
                raise RefusedError(f"client {client} sent a label without a count")
            for data in fields:
                self._read(data)
        elif step == "placeholders":
            expect_fields(fields, 0)
        elif step == "sums":
            counts_of(expect_fields(fields, 1)[0], len(self.totals))
        else:
            expect_fields(fields, 1)


def label_id(label: Any) -> int:
    """Return the number that is encrypted for a label."""
    plain = label.item() if isinstance(label, np.generic) else label
    if isinstance(plain, int) and not isinstance(plain, bool) and abs(plain) < WHOLE:
        return plain
    return WHOLE + int.from_bytes(sha256(encode(label)).digest()[:5], "big")


def warn() -> None:
    """Say what this mode is worth."""
    warnings.warn(WARNING, PrivacyWarning, stacklevel=3)


def _vector(context: Any, data: bytes) -> Any:
    """Read a ciphertext of one number."""
    try:
        vector = _tenseal().ckks_vector_from(context, data)
    except (ValueError, RuntimeError):
        raise RefusedError("a message holds no ciphertext") from None
    if vector.size() != 1:
        raise RefusedError(f"a ciphertext holds {vector.size()} numbers, not one")
    return vector


def _tenseal() -> Any:
    try:
        return import_module("tenseal")
    except ImportError:
        raise RequestError(
            'privacy.labels = "ckks-paper" needs tenseal: pip install "fedstrata[he]"; without it: prf, none'
        ) from None
