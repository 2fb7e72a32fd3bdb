"""Letters between two parties that only meet through the server, and that only their receiver can read.

    HELLO     receiver > server > sender    the receiver's public key, drawn for this run
    ENVELOPE  sender > server > receiver    whom it is for, that key, a key drawn for this letter, the sealed text

Both are signed (`frames.py`), so the server can put in no key of its own. The text is sealed under what the two keys
agree on, bound to the job, the sender, the receiver and both keys: an envelope of another job, from somebody else or
for somebody else is refused, and one that was used is refused when it comes again.
"""

from __future__ import annotations

import os
from hashlib import sha256

from fedstrata.privacy.agreement import Agreement, transcript_of, unwrap, wrap
from fedstrata.privacy.frames import JOB, Frame, RefusedError, join, open_frame
from fedstrata.privacy.identity import Identity, KeyDirectory
from fedstrata.privacy.sums.protocol import fields_of, pack_fields

DOMAIN = b"fedstrata letter"
HELLO, ENVELOPE = "letter/hello", "letter/envelope"
KEY = 32  # bytes


class SpoiltError(RefusedError):
    """A letter that its sender signed, and that is worth nothing all the same."""


class StaleError(RefusedError):
    """A letter that was sealed for a key which its receiver no longer has."""


def job_of(run: str, *where: int) -> bytes:
    """Return the number of a job: of a whole run, or of a place in it."""
    return sha256(join([DOMAIN, run.encode(), *(b"%d" % number for number in where)])).digest()[:JOB]


def read_hello(data: bytes, key_directory: KeyDirectory, job: bytes, party: int) -> bytes:
    """Return the public key that a party said hello with."""
    (key,) = fields_of(open_frame(data, key_directory, HELLO, job, party).fields, 1, KEY)
    return key


def read_envelope(
    data: bytes, key_directory: KeyDirectory, job: bytes, sender: int, receiver: int
) -> tuple[bytes, bytes, bytes]:
    """Return the key that an envelope was sealed for, the sender's, and the sealed text.

    Anybody can check that much.
    """
    to, theirs, own, sealed = fields_of(open_frame(data, key_directory, ENVELOPE, job, sender).fields, 4, 4, KEY, KEY)
    if to != pack_fields([receiver]):
        raise RefusedError(f"an envelope of sender {sender} is not for party {receiver}")
    return theirs, own, sealed


class Letterbox:
    """A party's own: what it needs to seal and to open letters of one run."""

    def __init__(self, me: int, identity: Identity, key_directory: KeyDirectory, run: str):
        self.me, self._identity, self._key_directory, self._run = me, identity, key_directory, run
        self._agreement = Agreement.new(me, os.urandom)
        self._used: set[bytes] = set()  # keys of letters

    def hello(self) -> bytes:
        """Say under which key letters reach this party."""
        return Frame(HELLO, job_of(self._run), self.me, (self._agreement.public,)).sign(self._identity)

    def seal(self, text: bytes, receiver: int, hello: bytes, job: bytes) -> bytes:
        """Write a letter to who said hello."""
        theirs = read_hello(hello, self._key_directory, job_of(self._run), receiver)
        fresh = Agreement.new(self.me, os.urandom)
        transcript = self._transcript(job, self.me, fresh.public, receiver, theirs)
        sealed = wrap(fresh.pair(receiver, theirs, transcript).wrap, self.me, receiver, text, job)
        return Frame(ENVELOPE, job, self.me, (pack_fields([receiver]), theirs, fresh.public, sealed)).sign(
            self._identity
        )

    def open(self, envelope: bytes, sender: int, job: bytes) -> bytes:
        """Read a letter to this party. It may be read again until it is `used`."""
        own, theirs, sealed = read_envelope(envelope, self._key_directory, job, sender, self.me)
        if own != self._agreement.public:
            raise StaleError("a letter is sealed for a key that this party had before it was restarted")
        if theirs in self._used:
            raise RefusedError(f"a letter of sender {sender} came twice")
        try:
            pair = self._agreement.pair(sender, theirs, self._transcript(job, sender, theirs, self.me, own))
            return unwrap(pair.wrap, sender, self.me, sealed, job)
        except RefusedError as error:
            raise SpoiltError(str(error)) from None

    def used(self, envelope: bytes, sender: int, job: bytes) -> None:
        """Take a letter as done with: it is not opened again."""
        self._used.add(read_envelope(envelope, self._key_directory, job, sender, self.me)[1])

    def _transcript(self, job: bytes, sender: int, its: bytes, receiver: int, theirs: bytes) -> bytes:
        return transcript_of(DOMAIN + self._key_directory.digest, job, {sender: its, receiver: theirs})
