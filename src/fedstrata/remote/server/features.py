"""Features of real sites on one scale: before the first round, all sites answer questions (`data/statistics.py`).

The server needs the sums of their answers; where sums are masked, it sees nothing else.
What was agreed on stands in an event, so that a run that goes on, and a site that comes back, go on with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from fedstrata.core.errors import RequestError
from fedstrata.core.events import Log
from fedstrata.data.preprocessing import Column, Preprocessing
from fedstrata.data.scaling import FeaturesTold, features_told, find_statistics, median_places
from fedstrata.data.statistics import Ask, Question, add_up
from fedstrata.privacy.features import WHOLE, WORDS, from_words
from fedstrata.privacy.frames import RefusedError
from fedstrata.privacy.sums.all_reduce import add_words
from fedstrata.remote.credentials import Credentials
from fedstrata.remote.protocol import build_request, to_json
from fedstrata.remote.server.federation import RemoteFederation
from fedstrata.remote.server.masked_all_reduce import invite_sites

AGREED = "features_agreed"  # the event that keeps it
FAR, ALIKE = 10.0, 5.0  # how far apart means are, and how alike deviations, where a column has another unit at a site
Everybody = Callable[[Mapping[int, bytes]], dict[int, bytes]]  # a request and a reply a site, of all of them


def agree_on_features(
    federation: RemoteFederation,
    everybody: Everybody,
    credentials: Credentials | None,
    names: Sequence[str],
    note: Log,
) -> RemoteFederation:
    """Let sites find how their features are scaled; under masks, where there are credentials for it.

    In the open, a column that seems to have another unit at some site is noted.
    """
    scale, asked = federation.facts[0].unscaled, federation.preprocessing
    if scale is None:
        return federation
    sums = SumsAtSites(everybody, names, credentials)
    done = find_statistics(scale, asked, sums.among)
    if {"sums", "squares"} <= sums.told.keys():
        for column, site, ratio in other_units(asked.columns, sums.told["sums"], sums.told["squares"]):
            why = f"its mean at site {names[site]} is {ratio:.3g} times that of most sites; all sites need one unit"
            note("warning", what=f"column {column}", site=names[site], why=why)
    words = [value for facts in federation.facts for value in _words(facts.preprocessing)]
    word_bytes = sum(len(value.encode()) for value in words)
    told = features_told(scale, asked, done, word_bytes=word_bytes, sum_bytes=sums.bytes_up)
    return replace(federation, preprocessing=done, features_told=told)


def other_units(columns: Sequence[Column], sums: np.ndarray, squares: np.ndarray) -> list[tuple[str, int, float]]:
    """Return columns of numbers that seem to have another unit at a site: the column, the site, the ratio of means.

    Another unit makes mean and deviation larger by the same factor. So sites count whose mean is more than FAR times
    that of the site in the middle, or less than a FAR-th, at least FAR of the smaller deviations away, and whose
    deviation is as large a share of the mean: up to ALIKE, as gaps are filled with numbers in the common unit.
    `sums` and `squares` are what sites answered, [sites, numbers].
    """
    counts, total = np.maximum(sums[:, :1], 1), sums[:, 1:]
    mean, of_all = total / counts, total.sum(0) / counts.sum()
    std = np.sqrt(np.maximum(squares / counts - (mean - of_all) ** 2, 0))
    starts = np.cumsum([0, *(column.width for column in columns)]).tolist()
    found = []
    for column, at in zip(columns, starts, strict=False):
        own, spread = mean[:, at], std[:, at]
        middle = int(np.argsort(own, kind="stable")[(len(own) - 1) // 2])
        if column.values is not None or not own[middle] * spread[middle]:
            continue
        ratio = own / own[middle]
        larger = np.maximum(ratio, 1 / np.where(ratio > 0, ratio, 1))
        shares = spread / spread[middle] / np.where(ratio > 0, ratio, 1)  # 1: only the unit is another
        away = np.abs(own - own[middle]) > FAR * np.minimum(spread, spread[middle])
        odd = (ratio > 0) & (larger > FAR) & (shares > 1 / ALIKE) & (shares < ALIKE) & away
        found += [(column.name, int(site), float(ratio[site])) for site in np.flatnonzero(odd)]
    return found


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
    told: dict[str, np.ndarray] = field(default_factory=dict)  # in the open: the last answers, [sites, numbers]

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
        brought = [self._read(i, answer, words) for i, answer in sorted(said.items())]
        if masked:
            return from_words(add_words(brought, WHOLE), size)
        self.told[question.kind] = np.array([numbers.view("<f8") for numbers in brought])
        return add_up(self.told[question.kind])

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
