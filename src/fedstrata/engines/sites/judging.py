"""Evaluation where the test data are: sites count right answers by label, the server adds up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedstrata.engines.sites.company import Company, Said
from fedstrata.engines.sites.telling import asked, read_values
from fedstrata.errors import FedstrataError
from fedstrata.metrics import balanced, worst
from fedstrata.privacy.frames import RefusedError
from fedstrata.serverside import Scores, View
from fedstrata.space import Model
from fedstrata.wire import pack


@dataclass
class JudgeAtSites:
    """Scores models on the sites' own test data, all of them together and each for itself."""

    company: Company
    classes: int
    every: int = 1
    satisfied_at: float | None = None

    def __call__(self, model: Model, view: View) -> Scores:
        """Score every n-th round and the last; other rounds have no scores."""
        if view.round + 1 != view.rounds and (view.round + 1) % self.every:
            return Scores()
        data = pack({}, {"params": model.params, "buffers": model.buffers})
        names = self.company.names
        answers = self.company.ask(dict.fromkeys(names, asked("evaluate", data)), 1)
        right, tested, loss = np.zeros(self.classes), np.zeros(self.classes), 0.0
        own: dict[int, float] = {}
        for client, name in enumerate(names):
            try:
                hits, had, lost = self._read(answers.get(name))
            except FedstrataError as error:
                view.note("site_not_scored", round=view.round + 1, site=name, why=str(error))
                continue
            right, tested, loss = right + hits, tested + had, loss + lost
            if had.sum():
                own[client] = float(hits.sum() / had.sum())
        if not tested.sum():
            return Scores()
        recall = [float(r / n) if n else None for r, n in zip(right, tested, strict=True)]
        accuracies = np.array(list(own.values()))
        figures: dict[str, Any] = {
            "accuracy": float(right.sum() / tested.sum()),
            "balanced_accuracy": balanced(recall),
            "loss_test": loss / float(tested.sum()),
            "recall": recall,
            "client_mean": float(accuracies.mean()),
            "worst10": worst(accuracies),
        }
        if self.satisfied_at is not None:
            figures["satisfied"] = float((accuracies >= self.satisfied_at).mean())
        return Scores(figures, own)

    def _read(self, answer: Said | None) -> tuple[np.ndarray, np.ndarray, float]:
        if answer is None:
            raise RefusedError("it did not answer in time")
        if isinstance(answer, FedstrataError):
            raise answer
        told = read_values(answer[0])
        try:
            right, tested = (np.array(told[key], dtype=np.float64) for key in ("right", "tested"))
            loss = float(told["loss"])
        except (KeyError, TypeError, ValueError):
            raise RefusedError("its figures cannot be read") from None
        if right.shape != (self.classes,) or tested.shape != right.shape or not (right >= 0).all():
            raise RefusedError("its figures are not those of this run's labels")
        if not (right <= tested).all() or not np.isfinite(tested).all() or not np.isfinite(loss):
            raise RefusedError("its figures are impossible")
        return right, tested, loss
