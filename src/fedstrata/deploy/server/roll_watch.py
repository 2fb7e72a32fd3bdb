"""The roll that a running server goes by: it takes in a later one as soon as that lies beside its keys.

The last one that was taken in is kept with the server's state, so that nobody can put an older one in its place, also
not while the server is down.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from fedstrata.core.errors import FedstrataError
from fedstrata.core.storage.files import write_atomically
from fedstrata.deploy.certificate_watch import CertificateWatch
from fedstrata.deploy.logs import note
from fedstrata.remote.credentials import Credentials
from fedstrata.remote.roll import FILE, Roll, RollError, UnreadableRollError

AGAIN = 5.0  # seconds until what failed is tried again


class RollWatch:
    """Looks at a server's key folder now and then."""

    def __init__(self, keys: Path, kept: Path, say: Callable[[str], None]):
        self._path, self._kept, self._say = keys / FILE, kept, say
        self._certificates = CertificateWatch(keys, say)
        self._credentials = Credentials.load(keys, kept)
        self._half: tuple[int, int] | None = None  # a file that could not be read, and may be half written
        self._undone, self._failed, self._next = False, "", 0.0  # of carrying out the roll that holds
        self._seen = self._look()
        self._look_beside()
        self._keep(self.roll)
        self._certificates.turn()

    @property
    def roll(self) -> Roll:
        """The one that holds."""
        return self._credentials.roll

    def turn(self, carry_out: Callable[[Roll], None]) -> None:
        """Take in a later roll, and have it carried out.

        What fails, as on a full disk, is said and tried again: the run that goes on must not end with it.
        """
        if time.monotonic() < self._next:
            return
        try:
            self._undone = self.changed() or self._undone
            if self._undone:
                carry_out(self.roll)
            self._undone, self._failed = False, ""
        except (OSError, FedstrataError) as error:
            self._next = time.monotonic() + AGAIN
            if str(error) != self._failed:
                self._failed = str(error)
                self._say(f"the roll beside the keys is not carried out yet, which is tried again: {error}")
                note("roll_waits", logging.WARNING, roll=self.roll.serial, why=str(error))

    def changed(self) -> bool:
        """Take in what lies there now, if it is later and signed; say so, and say why not.

        What cannot be read may be half written: it is refused if it is still the same at the next look.
        """
        self._certificates.turn()
        if (seen := self._look()) == self._seen:
            return False
        try:
            later = self._credentials.take_in(self._path.read_bytes())
        except (OSError, RollError) as error:
            if isinstance(error, UnreadableRollError) and seen != self._half:
                self._half = seen
                return False
            self._seen = seen
            self._refuse(f"a roll is refused: {error}", str(error))
            return False
        if later is not self._credentials:
            self._keep(later.roll)  # first: where there is no room for it, it is taken in later
        self._seen = seen
        if later is self._credentials:
            return False
        self._credentials = later
        self._say(f"roll {self.roll.serial} of {self.roll.issued} is taken in")
        note("roll_taken_in", roll=self.roll.serial, issued=self.roll.issued)
        return True

    def _look_beside(self) -> None:
        """Say that a roll beside the keys does not hold; one that is later, and not signed, ends the server here."""
        holds = f"roll {self.roll.serial} holds here"
        try:
            beside = Roll.read(self._path.read_bytes())
        except (OSError, RollError) as error:  # the one that was kept holds
            self._refuse(f"the roll beside the keys is refused: {error}; {holds}", str(error))
            return
        if beside.serial < self.roll.serial:
            self._refuse(f"roll {beside.serial} beside the keys is refused: {holds}", f"roll {beside.serial} is older")
        elif beside.serial:
            beside.check(self._credentials.authority)

    def _refuse(self, said: str, why: str) -> None:
        self._say(said)
        note("roll_refused", logging.WARNING, roll=self.roll.serial, why=why)

    def _keep(self, roll: Roll) -> None:
        if roll.serial:
            write_atomically(self._kept / FILE, roll.write())

    def _look(self) -> tuple[int, int] | None:
        try:
            about = self._path.stat()
        except OSError:
            return None
        return about.st_mtime_ns, about.st_size
