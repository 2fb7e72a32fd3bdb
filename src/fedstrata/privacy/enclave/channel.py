"""A channel from a party to the service, through a server that can read none of it.

    party -> service   hello: 32 random bytes, signed by the party
    service -> party   offer: an X25519 key, and evidence whose report data are
                       SHA-512(domain | job | roll | terms | party | nonce | key)
    party -> service   the party's X25519 key, signed: only once the evidence was verified; then records

So a party tells nothing before it knows that this key belongs to the code it trusts, that the code was asked now, by
this party, and that it serves this job, for these parties, on these terms. The keys of both directions come by HKDF
from the shared secret and all of the above. A record is AES-256-GCM with a counter for a nonce: one that is changed,
repeated, left out or out of order is refused, and a message that is cut off never ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256, sha512

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fedstrata.privacy.agreement import derive
from fedstrata.privacy.enclave.attestation import Attester, Evidence, Policy, Verifier
from fedstrata.privacy.frames import Frame, Inbox, RefusedError, join, split
from fedstrata.privacy.identity import Entropy, Identity, KeyDirectory

DOMAIN = b"fedstrata enclave 1"
HELLO, KEY = "enclave-hello", "enclave-key"  # kinds of signed messages
NONCE, COUNTER = 32, 8  # bytes; a public key has as many as a nonce
RECORD = 1 << 24  # most bytes that are sealed at once
RECEIPT = b"received"


@dataclass(frozen=True)
class Job:
    """What both ends must agree on before anything is told."""

    id: bytes
    key_directory: KeyDirectory
    terms: bytes  # what the service does with what it is told, written down

    def report_data(self, party: int, nonce: bytes, key: bytes) -> bytes:
        """Return what the service's evidence has to hold."""
        told = [DOMAIN, self.id, self.key_directory.digest, sha256(self.terms).digest(), b"%d" % party, nonce, key]
        return sha512(join(told)).digest()


@dataclass
class Sealing:
    """One end of one direction of a channel."""

    key: bytes
    counter: int = 0
    _parts: list[bytes] = field(default_factory=list)  # of a message that has not ended

    def seal(self, message: bytes) -> Iterator[bytes]:
        """Return a message as records, to be sent in this order."""
        starts = range(0, max(len(message), 1), RECORD)
        for start in starts:
            head = self._head(start == starts[-1])
            self.counter += 1
            yield head + AESGCM(self.key).encrypt(_nonce(head), message[start : start + RECORD], head)

    def open(self, record: bytes) -> bytes | None:
        """Read the next record; give the message that ends with it, or None where there is more to come."""
        head, sealed = record[: COUNTER + 1], record[COUNTER + 1 :]
        last = head == self._head(True)
        if not last and head != self._head(False):
            raise RefusedError("a record was repeated, left out or moved")
        try:
            self._parts.append(AESGCM(self.key).decrypt(_nonce(head), sealed, head))
        except (InvalidTag, ValueError):  # too short to have a tag is a ValueError
            raise RefusedError("a record was changed or cut off on the way") from None
        self.counter += 1
        if not last:
            return None
        message = b"".join(self._parts)
        self._parts.clear()
        return message

    def _head(self, last: bool) -> bytes:
        return self.counter.to_bytes(COUNTER, "little") + bytes([last])


def _nonce(head: bytes) -> bytes:
    return head[:COUNTER] + bytes(4)  # every counter comes once under a key


@dataclass(frozen=True)
class Channel:
    """Both directions."""

    to_service: Sealing
    to_party: Sealing

    @classmethod
    def of(cls, private: X25519PrivateKey, public: bytes, report_data: bytes, service: bytes, party: bytes) -> Channel:
        """Derive the keys from one end's private key and the other's public one."""
        try:
            shared = private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:  # a point that gives the same secret to everybody
            raise RefusedError("the other end of the channel has no proper public key") from None
        salt = sha256(join([DOMAIN, report_data, service, party])).digest()
        return cls(Sealing(derive(shared, salt, b"to service")), Sealing(derive(shared, salt, b"to party")))


class Party:
    """A client's end, or that of the owner of the test set: bytes in, bytes out. It verifies before it tells."""

    def __init__(self, me: int, job: Job, identity: Identity, verifier: Verifier, policy: Policy, entropy: Entropy):
        self.me, self._job, self._identity = me, job, identity
        self._verifier, self._policy, self._entropy = verifier, policy, entropy
        self._nonce: bytes | None = None
        self._channel: Channel | None = None

    def hello(self) -> bytes:
        """Ask the service who it is."""
        if self._nonce is not None:
            raise RefusedError("a party opens one channel; for another one, make another party")
        self._nonce = self._entropy(NONCE)
        return self._frame(HELLO, self._nonce)

    def submit(self, offer: bytes, message: bytes) -> Iterator[bytes]:
        """Verify what the service says of itself; only then give what carries a message to it, in this order."""
        fields = split(offer)
        if self._nonce is None or self._channel is not None or len(fields) != 3:
            raise RefusedError("an offer of the service is malformed, or came when none was asked for")
        key, kind, data = fields
        bound = self._job.report_data(self.me, self._nonce, key)
        self._verifier.verify(Evidence(kind.decode("ascii", "replace"), data), bound, self._policy)
        private = X25519PrivateKey.from_private_bytes(self._entropy(32))
        public = private.public_key().public_bytes_raw()
        self._channel = channel = Channel.of(private, key, bound, key, public)
        return self._carried(public, channel, message)

    def confirm(self, receipt: bytes) -> None:
        """Read the service's own word that all of the message is there."""
        if self._channel is None or self._channel.to_party.open(receipt) != RECEIPT:
            raise RefusedError("the service did not confirm what it was told")

    def _carried(self, public: bytes, channel: Channel, message: bytes) -> Iterator[bytes]:
        yield self._frame(KEY, public)
        yield from channel.to_service.seal(message)

    def _frame(self, kind: str, field: bytes) -> bytes:
        return Frame(kind, self._job.id, self.me, (field,)).sign(self._identity)


class Desk:
    """The service's end: one channel a party, one message through each."""

    def __init__(self, job: Job, attest: Attester, entropy: Entropy):
        self._job, self._attest, self._entropy = job, attest, entropy
        self._inbox = Inbox(job.key_directory, job.id)
        self._offered: dict[int, tuple[X25519PrivateKey, bytes]] = {}
        self._open: dict[int, Channel] = {}

    def take(self, party: int, data: bytes) -> tuple[bytes, bytes | None]:
        """Take what a party sent; give the answer to it and, when a message is complete, that message."""
        if party in self._open:
            message = self._open[party].to_service.open(data)
            if message is None:
                return b"", None
            (receipt,) = self._open.pop(party).to_party.seal(RECEIPT)
            return receipt, message
        if party in self._offered:
            public = _only(self._inbox.take(data, KEY, party))
            private, bound = self._offered[party]
            own = private.public_key().public_bytes_raw()
            self._open[party] = Channel.of(private, public, bound, own, public)
            del self._offered[party]
            return b"", None
        nonce = _only(self._inbox.take(data, HELLO, party))
        private = X25519PrivateKey.from_private_bytes(self._entropy(32))
        own = private.public_key().public_bytes_raw()
        bound = self._job.report_data(party, nonce, own)
        self._offered[party] = private, bound
        evidence = self._attest(bound)
        return join([own, evidence.kind.encode(), evidence.data]), None


def _only(frame: Frame) -> bytes:
    """Return the nonce or the key that a message brings."""
    if len(frame.fields) != 1 or len(frame.fields[0]) != NONCE:
        raise RefusedError(f"a message of kind {frame.kind!r} is malformed")
    return frame.fields[0]
