"""Features of real sites on one scale: before the first round, all sites answer questions (`data/statistics.py`).

The server needs the sums of their answers; where sums are masked, it sees nothing else.
What was agreed on stands in an event, so that a run that goes on, and a site that comes back, go on with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fedstrata.core.errors import RequestError
from fedstrata.data.preprocessing import Preprocessing
from fedstrata.data.scaling import FeaturesTold, features_told, median_places, settle
from fedstrata.data.statistics import Ask, Question, add_up
from fedstrata.privacy.features import WHOLE, WORDS, from_words
from fedstrata.privacy.frames import RefusedError
from fedstrata.privacy.sums.all_reduce import add_words
from fedstrata.remote.credentials import Credentials
from fedstrata.remote.introduction import RemoteFederation
from fedstrata.remote.masked_all_reduce import invite_sites
from fedstrata.remote.protocol import build_request, to_json

AGREED = "features_agreed"  # the event that keeps it
Everybody = Callable[[Mapping[int, bytes]], dict[int, bytes]]  # a request and a reply a site, of all of them


def agree_on_features(
    federation: RemoteFederation, everybody: Everybody, credentials: Credentials | None, names: Sequence[str]
) -> RemoteFederation:
    """Let sites find how their features are scaled; under masks, where there are credentials for it."""
    scale, asked = federation.facts[0].unscaled, federation.preprocessing
    if scale is None:
        return federation
    sums = SumsAtSites(everybody, names, credentials)
    done = settle(scale, asked, sums.among)
    words = [value for facts in federation.facts for value in _words(facts.preprocessing)]
    word_bytes = sum(len(value.encode()) for value in words)
    told = features_told(scale, asked, done, word_bytes=word_bytes, sum_bytes=sums.bytes_up)
    return replace(federation, preprocessing=done, features_told=told)


def event_of(federation: RemoteFederation, masked: bool) -> dict[str, Any] | None:
    """Return what a run must remember of it; None: its sites' features were on their scale before."""
    if federation.facts[0].unscaled is None:
        return None
    told, done = federation.features_told, federation.preprocessing
    known = None if told is None else {key: value for key, value in asdict(told).items() if key != "exchanges"}
    scale = "given" if done.mean is not None and not (told and told.scaled) else federation.facts[0].unscaled
    return {"scale": scale, "masked": masked, "told": known, "preprocessing": done.to_json()}


def as_agreed(federation: RemoteFederation, events: Sequence[Mapping[str, Any]]) -> RemoteFederation:
    """Return a federation with what was agreed on when its run began."""
    event = next((event for event in events if event["event"] == AGREED), None)
    if event is None:
        return federation
    told = event["told"]
    if told is not None:
        lists = {key: tuple(told[key]) for key in ("medians", "words")}
        told = FeaturesTold(**{**told, **lists})
    return replace(federation, preprocessing=Preprocessing.from_json(event["preprocessing"]), features_told=told)


@dataclass
class SumsAtSites:
    """Adds up what all sites answer: in the open, or in one meeting under masks."""

    everybody: Everybody
    names: Sequence[str]
    credentials: Credentials | None  # None: in the open
    bytes_up: int = 0
    invitation: bytes | None = None

    def among(self, known: Preprocessing) -> Ask:
        """Return what asks sites about features as they are known so far."""
        features = len(median_places(known.columns)) or (known.shape or (0,))[0]

        def ask(question: Question) -> np.ndarray:
            if self.credentials is not None and self.invitation is None:
                self.invitation = self._invite(self.credentials)
            numbers = None if question.numbers is None else question.numbers.tolist()
            about = to_json({"kind": question.kind, "numbers": numbers, "preprocessing": known.to_json()})
            places = {i: to_json({"client": i, "sites": list(self.names)}) for i in range(len(self.names))}
            meeting = self.invitation or b""
            said = self._counted({i: build_request("features", about, place, meeting) for i, place in places.items()})
            return self._added(said, question, question.size(features))

        return ask

    def _added(self, said: Mapping[int, bytes], question: Question, size: int) -> np.ndarray:
        """Add up answers of so many numbers."""
        masked = self.credentials is not None
        words = size * WORDS if masked and not question.counts else size
        brought = [self._read(i, answer, words) for i, answer in said.items()]
        if masked:
            return from_words(add_words(brought, WHOLE), size)
        return add_up(np.array([numbers.view("<f8") for numbers in brought]))

    def _read(self, client: int, answer: bytes, words: int) -> np.ndarray:
        read = np.frombuffer(answer, "<u8") if len(answer) == 8 * words else None
        if read is None or (self.credentials is None and not np.isfinite(read.view("<f8")).all()):
            raise RequestError(f"site {self.names[client]} says impossible numbers of its features")
        return read

    def _invite(self, credentials: Credentials) -> bytes:
        """Let all sites say hello to each other."""

        def refuse(client: int, error: RefusedError) -> None:
            raise RequestError(f"site {self.names[client]} cannot add up features under masks: {error}")

        key_directory, members = credentials.key_directory(self.names), range(len(self.names))
        _, invitation = invite_sites(self._counted, self.names, members, key_directory, refuse)
        return invitation

    def _counted(self, requests: Mapping[int, bytes]) -> dict[int, bytes]:
        said = self.everybody(requests)
        self.bytes_up += sum(map(len, said.values()))
        return said


def _words(told: Preprocessing | None) -> list[str]:
    return [] if told is None else [value for column in told.columns for value in column.values or ()]
