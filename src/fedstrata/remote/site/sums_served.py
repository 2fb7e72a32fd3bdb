"""Within which sets of sites a site's figures were summed: on its disk, because its process ends when nobody needs it.

FOLDER/summed.json    for label counts, test samples and features, the first and the last set

The rule is that of `privacy/labels/served.py`; sites are written down by the names that the authority gave them, which
stay when keys are renewed. As with the ledger, whoever removes the file allows everything anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedstrata.core.errors import RequestError
from fedstrata.core.storage.files import make_folder, write_atomically
from fedstrata.privacy.labels.served import Served

FILE = "summed.json"
ANEW = f" (its owner allows it anew by removing {FILE} and starting the client again)"
Name = Callable[[bytes], bytes]  # a site's public key -> its name


class SumsServed:
    """A site's memories of its sums, one for each kind; without a folder they are forgotten with the process."""

    def __init__(self, folder: Path | None, name: Name):
        self._file, self._name = None if folder is None else folder / FILE, name
        self._known = {} if self._file is None or not self._file.exists() else _read(self._file)

    def of(self, kind: str) -> Served:
        """Return the memory of one kind of sum, which writes itself down before anything leaves."""
        known = self._known.get(kind, {})
        first, last = known.get("first"), known.get("last")
        return Served(first=first, last=last, name=self._name, keep=self._keeper(kind), anew=ANEW)

    def _keeper(self, kind: str) -> Callable[[Served], None]:
        def keep(served: Served) -> None:
            sets = {"first": served.first, "last": served.last}
            self._known[kind] = {which: members for which, members in sets.items() if members is not None}
            if self._file is not None:
                make_folder(self._file.parent, 0o700)
                write_atomically(self._file, json.dumps(self._known, default=_listed).encode())

        return keep


def _listed(names: Any) -> list[str]:
    return sorted(name.decode() for name in names)


def _read(file: Path) -> dict[str, dict[str, frozenset[bytes]]]:
    try:
        return {
            kind: {which: frozenset(name.encode() for name in sets[which]) for which in ("first", "last")}
            for kind, sets in json.loads(file.read_bytes()).items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RequestError(
            f"{file} cannot be read ({type(error).__name__}): the site does not know any more in which sums it took "
            "part. Restore it; removing it allows sums that can be subtracted from earlier ones"
        ) from None
