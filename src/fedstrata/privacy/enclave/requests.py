"""What a server may ask the service about a run: whom to select, and what became of those. All of it is public."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fedstrata.core.messages import Report
from fedstrata.core.steps import Ask, Outcome, Step, View
from fedstrata.privacy.frames import RefusedError, join, split

SELECT, FEEDBACK = "select", "feedback"


@dataclass(eq=False)
class Request:
    """One request. Those made so far are all there is to save: a fresh service that is asked them again catches up."""

    kind: str
    round: int
    k: int
    ids: list[np.ndarray] = field(default_factory=list)  # eligible, if not everybody; or missing and reporting by step

    @classmethod
    def to_select(cls, view: View) -> Request:
        """Ask for the clients of a round."""
        everybody = len(view.eligible) == len(view.client_info.holders)
        return cls(SELECT, view.round, view.k, [] if everybody else [_ids(view.eligible)])

    @classmethod
    def to_learn(cls, view: View, outcomes: Sequence[Outcome]) -> Request:
        """Tell who reported in a round and who did not."""
        trained = [o for o in outcomes if o.step.combine]
        told = [_ids(ids) for o in trained for ids in (o.missing, [r.client for r in o.reports])]
        return cls(FEEDBACK, view.round, view.k, told)

    @property
    def eligible(self) -> np.ndarray | None:
        """Who may be selected; None: everybody."""
        return self.ids[0] if self.ids else None

    @property
    def outcomes(self) -> list[Outcome]:
        """What a selector is told: who was asked, who is missing and who reported, and no more."""
        return [_outcome(*map(np.ndarray.tolist, pair)) for pair in zip(self.ids[::2], self.ids[1::2], strict=True)]

    def written(self) -> bytes:
        """Write it."""
        head = json.dumps({"kind": self.kind, "round": self.round, "k": self.k}).encode()
        return join([head, *(ids.astype("<i8").tobytes() for ids in self.ids)])

    @classmethod
    def read(cls, data: bytes, clients: int) -> Request:
        """Read it, and refuse ids of clients that there are not."""
        head, *told = split(data)
        ids = [np.frombuffer(part, "<i8").astype(np.int64) for part in told]
        if any(((part < 0) | (part >= clients)).any() for part in ids):
            raise RefusedError(f"a request speaks of clients that are not among the {clients}")
        request = cls(**json.loads(head), ids=ids)
        if request.kind not in (SELECT, FEEDBACK):
            raise RefusedError(f"a request of kind {request.kind!r} is unknown")
        return request


def _ids(clients: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.asarray(clients, dtype=np.int64).copy()


def _outcome(missing: list[int], reporting: list[int]) -> Outcome:
    asks = tuple(Ask(client) for client in [*missing, *reporting])
    return Outcome(Step(asks), 0, tuple(Report(client, 0) for client in reporting), tuple(missing))
