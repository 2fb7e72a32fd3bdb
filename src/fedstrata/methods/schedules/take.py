"""Stratify, the client's side of Algorithms 3 and 4: give one unused sample for each scheduled label.

A client's samples of a stratum form a list, shuffled anew for every epoch and every pass over it; a cursor moves along
it. Samples reserved for a batch that is never trained on are returned: the cursor moves for good only in training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedstrata.core.client_context import ClientContext, Done, Program
from fedstrata.core.client_parts import Client, Order
from fedstrata.core.index import stable_order
from fedstrata.core.messages import REFUSED
from fedstrata.core.sampler import Sampler

PASS, NEXT = 0, 1  # rows of a cursor table: which pass over a stratum, and how many samples of it are used


@dataclass(frozen=True)
class Take(Sampler):
    """Samples of the labels that a task names, one each."""

    strata: Literal["labels", "none"] = "labels"
    replacement: bool = False

    def width(self, batch_size: int, largest: int, fastest: float = 1.0) -> int:
        """One client may have to fill a global batch."""
        return batch_size

    def plan(self, context: ClientContext) -> Order:
        """Train on the samples that a run of labels names, one a step."""
        cursor = self._cursor(context, "used")
        positions, refused = self._take(context, cursor)
        client_state = {"used": torch.from_numpy(cursor), "epoch": _epoch(context)}
        return Order(
            (positions,), batch_size=1, metrics=_answer(refused), client_state=client_state, samples=len(positions)
        )

    @property
    def programs(self) -> Mapping[str, Program]:
        """Reserve samples for a global batch; give the gradient of what is reserved."""
        return {"reserve": self.reserve, "gradient": self.gradient}

    def reserve(self, context: ClientContext) -> Done:
        """Hold samples for a batch; what is held for another batch was not used, and goes back."""
        batch = int(_number(context, "batch"))
        same = _is(context.client_state.get("batch"), batch) and _is(
            context.client_state.get("epoch"), int(_number(context, "epoch"))
        )
        cursor = self._cursor(context, "ahead" if same else "used")
        positions, refused = self._take(context, cursor)
        held = context.client_state["held"].numpy() if same else positions[:0]
        return Done(
            metrics=_answer(refused),
            client_state={
                "used": torch.from_numpy(self._cursor(context, "used")),
                "ahead": torch.from_numpy(cursor),
                "held": torch.from_numpy(np.concatenate([held, positions])),
                "epoch": _epoch(context),
                "batch": torch.tensor(batch),
            },
        )

    def gradient(self, context: ClientContext) -> Done:
        """Return minus the mean gradient of the samples held, and how many they are; they are used now."""
        held = context.client_state["held"].numpy()
        g = context.gradient(held)
        return Done(
            aggregated={"update": -g.sum / len(held)},
            client_state={"used": context.client_state["ahead"], "batch": torch.tensor(-1)},
            samples=len(held),
            loss=g.loss,
        )

    def _take(self, context: ClientContext, cursor: np.ndarray) -> tuple[np.ndarray, list[int]]:
        """Move the cursor along; give positions, and the codes of what cannot be given."""
        codes = np.array(context.task.config["labels"], dtype=np.int64)
        own = Shelves(self, context.client, context.rng, int(_number(context, "epoch")))
        turns, strata = np.divmod(codes, cursor.shape[1])
        before, sizes = cursor[PASS, strata], own.sizes[strata]
        used = _nth(codes) + np.where(turns == before, cursor[NEXT, strata], 0)
        late = turns < before
        if (np.diff(turns) < 0).any():  # seldom: passes go up
            late |= _overtaken(turns, strata)
        given = ~late & (sizes > 0) & (self.replacement | (used < sizes))
        np.maximum.at(cursor[PASS], strata, turns)
        cursor[NEXT, strata[turns > before]] = 0
        cursor[NEXT] += np.bincount(strata[given & (turns == cursor[PASS, strata])], minlength=cursor.shape[1])
        return own.at(strata[given], turns[given], used[given]), codes[~given].tolist()

    def _cursor(self, context: ClientContext, name: str) -> np.ndarray:
        """Return a copy of a cursor table; a new epoch starts at the front."""
        strata = context.client.classes if self.strata == "labels" else 1
        if name in context.client_state and _is(context.client_state.get("epoch"), int(_number(context, "epoch"))):
            return context.client_state[name].numpy().copy()
        return np.zeros((2, strata), dtype=np.int64)


class Shelves:
    """A client's samples by stratum, in the order of an epoch."""

    def __init__(self, take: Take, client: Client, rng: Any, epoch: int):
        self._rng, self._epoch = rng, epoch
        labels = client.labels if take.strata == "labels" else np.zeros_like(client.labels)
        self._labels = labels
        self.sizes = np.bincount(labels, minlength=client.classes if take.strata == "labels" else 1)
        self._starts = np.concatenate([[0], np.cumsum(self.sizes)])

    def at(self, strata: np.ndarray, turns: np.ndarray, used: np.ndarray) -> np.ndarray:
        """Return positions; whoever goes on behind the end starts over in a new order."""
        over, places = np.divmod(used, self.sizes[strata])
        turns, places = turns + over, places + self._starts[strata]
        positions = np.empty(len(places), dtype=np.int64)
        for turn in np.unique(turns).tolist():
            now = turns == turn
            positions[now] = self._order(turn)[places[now]]
        return positions

    def _order(self, turn: int) -> np.ndarray:
        shuffled = self._rng("take", round=self._epoch, step=turn).permutation(len(self._labels))
        by_stratum: np.ndarray = shuffled[stable_order(self._labels[shuffled])]
        return by_stratum


def _nth(codes: np.ndarray) -> np.ndarray:
    """Say of each code how often it came before."""
    by_code = stable_order(codes)
    in_order, nth = codes[by_code], np.empty_like(codes)
    nth[by_code] = np.arange(len(codes)) - np.searchsorted(in_order, in_order)
    return nth


def _overtaken(turns: np.ndarray, strata: np.ndarray) -> np.ndarray:
    """Say of each code whether a later pass over its stratum was asked for before."""
    by_stratum = stable_order(strata)
    passes = (strata * (turns.max(initial=0) + 1) + turns)[by_stratum]
    overtaken = np.empty(len(turns), dtype=bool)
    overtaken[by_stratum] = passes < np.maximum.accumulate(passes)
    return overtaken


def _answer(refused: list[int]) -> dict[str, tuple[int, ...]]:
    return {REFUSED: tuple(refused), "exhausted": tuple(sorted(set(refused)))}


def _number(context: ClientContext, name: str) -> Any:
    return context.task.config[name]


def _epoch(context: ClientContext) -> Tensor:
    return torch.tensor(int(_number(context, "epoch")))


def _is(kept: Tensor | None, number: int) -> bool:
    return kept is not None and int(kept) == number
