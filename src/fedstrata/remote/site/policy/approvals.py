"""Runs that wait for the site's owner: one file each, which the owner's word changes.

    FOLDER/ID.json    run, when it was asked for, what it does, and the owner's word: asked, approved, refused

The id is a whole SHA-256 over the run and all that it does, so that a word holds for nothing else: a server that writes
both could soon make two runs whose ids begin alike, and have the harmless one approved. People are shown the beginning,
and one that fits two runs fits none. Where a method chooses parts by what sites tell, the word holds for the first
choice that comes of it, which is noted; another one is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, get_args

from fedstrata.core.errors import RequestError
from fedstrata.core.storage.files import make_folder, write_atomically
from fedstrata.remote.protocol import PendingError, PolicyError

Word = Literal["asked", "approved", "refused"]
SHORT = 12  # digits of an id that people are shown
MOST = 32  # runs that wait at once: a server must not fill the disk


@dataclass(frozen=True)
class Proposal:
    """A run that a server proposed."""

    id: str
    run: str
    at: str
    experiment: Mapping[str, Any]
    word: Word = "asked"
    chosen: str | None = None  # the id of what became of it, where its method had still to choose parts

    @property
    def short(self) -> str:
        """The beginning of its id, for people."""
        return self.id[:SHORT]


class Approvals:
    """The proposals of a site."""

    def __init__(self, folder: Path):
        self._folder = folder

    def check(self, run: str, proposed: Mapping[str, Any], whole: Mapping[str, Any] | None = None) -> None:
        """Raise unless the owner approved; a run that nobody knows of yet is noted for the owner.

        `whole` is what became of a proposal whose method had still to choose parts.
        """
        id, chosen = _id(run, proposed), None if whole in (None, proposed) else _id(run, whole)
        try:
            known = self._read(self._folder / f"{id}.json")
        except FileNotFoundError:
            known = self._note(Proposal(id, run, datetime.now(UTC).isoformat(timespec="seconds"), proposed))
        if chosen is not None and known.word == "approved" and known.chosen != chosen:
            if known.chosen is not None:  # a second choice is another run
                return self.check(run, whole or {})
            self._write(replace(known, chosen=chosen))
        if known.word == "refused":
            raise PolicyError(f"its owner refused this run ({known.short})")
        if known.word != "approved":
            raise PendingError(f"its owner has to approve this run: fedstrata deploy approve {known.short}")

    def all(self) -> list[Proposal]:
        """Return every proposal, the oldest first."""
        files = self._folder.glob("*.json") if self._folder.is_dir() else ()
        return sorted((self._read(file) for file in files), key=lambda proposal: (proposal.at, proposal.id))

    def find(self, id: str) -> Proposal:
        """Return a proposal; the beginning of its id is enough."""
        fits = [proposal for proposal in self.all() if id and proposal.id.startswith(id)]
        if len(fits) != 1:
            known = ", ".join([p.id for p in fits] or [p.short for p in self.all()]) or "none"
            raise RequestError(f'there is {"no" if not fits else "more than one"} run "{id}" here; known are: {known}')
        return fits[0]

    def decide(self, id: str, word: Word) -> Proposal:
        """Write down what the owner says."""
        decided = replace(self.find(id), word=word)
        self._write(decided)
        return decided

    def _note(self, proposal: Proposal) -> Proposal:
        waiting = [other for other in self.all() if other.word == "asked"]
        if len(waiting) >= MOST:
            raise PolicyError(f"{MOST} runs wait for the word of its owner already")
        make_folder(self._folder, 0o700)
        self._write(proposal)
        return proposal

    def _write(self, proposal: Proposal) -> None:
        write_atomically(self._folder / f"{proposal.id}.json", json.dumps(asdict(proposal), indent=2).encode())

    def _read(self, file: Path) -> Proposal:
        data = file.read_bytes()
        try:
            proposal = Proposal(**json.loads(data))
            words = (proposal.id, proposal.run, proposal.at, proposal.chosen or "")
            right = all(isinstance(word, str) for word in words) and isinstance(proposal.experiment, Mapping)
            if not right or proposal.word not in get_args(Word):
                raise ValueError("it holds something else")
            return proposal
        except (ValueError, TypeError, RecursionError):
            raise RequestError(f"{file} is damaged; remove it, and the run is asked for again") from None


def _id(run: str, experiment: Mapping[str, Any]) -> str:
    return sha256(json.dumps([run, experiment], sort_keys=True).encode()).hexdigest()
