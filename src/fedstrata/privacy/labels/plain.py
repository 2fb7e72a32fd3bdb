"""No secrecy: clients tell the server their labels and counts. For simulation, and to compare the others with."""

from __future__ import annotations

from collections.abc import Generator
from typing import ClassVar

import numpy as np

from fedstrata.privacy.frames import RefusedError
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

DOMAIN = "fedstrata labels none v1"
STEPS = ("labels", "placeholders", DISTRIBUTION)


class PlainClient(LabelClient):
    """A client that trusts the server."""

    domain: ClassVar[str] = DOMAIN
    steps: ClassVar[tuple[str, ...]] = STEPS

    def _reply(self, step: str, fields: Fields) -> Fields:
        if step == "labels":
            counts = np.array([count for _, count in self._held.values()], dtype=WORD)
            return (counts.tobytes(), *(code for code, _ in self._held.values()))
        self._placed(list(self._held), *expect_fields(fields, 2))
        return ()


class PlainServer(LabelServer):
    """A server that is trusted."""

    domain: ClassVar[str] = DOMAIN

    def _run(self) -> Generator[Asks, dict[int, Fields], None]:
        told = yield "labels", self._opening()
        placed = self._place({client: codes for client, (_, *codes) in told.items()})
        for client, (counts, *codes) in told.items():
            self.totals[self.holds[client]] += counts_of(counts, len(codes))
        total = np.array([len(placed)], dtype=INDEX).tobytes()
        yield "placeholders", {client: (total, places.tobytes()) for client, places in self.holds.items()}
        yield from self._distributions()

    def _check(self, step: str, client: int, fields: Fields) -> None:
        if step == "placeholders":
            expect_fields(fields, 0)
            return
        if not fields or len(set(fields[1:])) < len(fields) - 1:
            raise RefusedError(f"client {client} tells a label twice, or nothing at all")
        counts_of(fields[0], len(fields) - 1)
