"""The roll that a running server goes by: it takes in a later one as soon as that lies beside its keys.

The last one that was taken in is kept with the server's state, so that nobody can put an older one in its place, also
not while the server is down.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from fedstrata.core.files import write_atomically
from fedstrata.deploy.certificate_watch import CertificateWatch
from fedstrata.deploy.logs import note
from fedstrata.remote.credentials import Credentials
from fedstrata.remote.roll import FILE, Roll, RollError


class RollWatch:
    """Looks at a server's key folder now and then."""

    def __init__(self, keys: Path, kept: Path, say: Callable[[str], None]):
        self._path, self._kept, self._say = keys / FILE, kept, say
        self._certificates = CertificateWatch(keys, say)
        beside, self._credentials = Roll.read(self._path.read_bytes()), Credentials.load(keys, kept)
        if beside.serial < self.roll.serial:
            say(f"roll {beside.serial} beside the keys is refused: roll {self.roll.serial} holds here")
            note("roll_refused", logging.WARNING, roll=self.roll.serial, why=f"roll {beside.serial} is older")
        elif beside.serial:
            beside.check(self._credentials.authority)
        self._seen = self._look()
        self._keep()
        self._certificates.turn()

    @property
    def roll(self) -> Roll:
        """The one that holds."""
        return self._credentials.roll

    def changed(self) -> bool:
        """Take in what lies there now, if it is later and signed; say so, and say why not."""
        self._certificates.turn()
        if (seen := self._look()) == self._seen:
            return False
        self._seen = seen
        try:
            later = self._credentials.take_in(self._path.read_bytes())
        except (OSError, RollError) as error:
            self._say(f"a roll is refused: {error}")
            note("roll_refused", logging.WARNING, roll=self.roll.serial, why=str(error))
            return False
        if later is self._credentials:
            return False
        self._credentials = later
        self._keep()
        self._say(f"roll {self.roll.serial} of {self.roll.issued} is taken in")
        note("roll_taken_in", roll=self.roll.serial, issued=self.roll.issued)
        return True

    def _keep(self) -> None:
        if self.roll.serial:
            write_atomically(self._kept / FILE, self.roll.write())

    def _look(self) -> tuple[int, int] | None:
        try:
            about = self._path.stat()
        except OSError:
            return None
        return about.st_mtime_ns, about.st_size
