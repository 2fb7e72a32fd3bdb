"""Evaluation where the test data are: sites count right answers by label, the server adds up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from fedstrata.core.errors import FedstrataError
from fedstrata.core.flat_model import FlatModel
from fedstrata.core.messages import tensor_bytes
from fedstrata.core.steps import Scores, View
from fedstrata.core.wire import pack
from fedstrata.privacy.frames import RefusedError
from fedstrata.privacy.identity import KeyDirectory
from fedstrata.privacy.sums.all_reduce import add_words, read_words
from fedstrata.remote.protocol import build_request, read_values
from fedstrata.remote.server.masked_all_reduce import invite_sites
from fedstrata.remote.server.site_registry import SiteRegistry, by_client, replies
from fedstrata.server.evaluator import client_figures, is_due
from fedstrata.server.metrics import mean_recall


@dataclass
class SiteEvaluator:
    """Scores models on the sites' own test data, all of them together and each for itself."""

    site_registry: SiteRegistry
    classes: int
    every: int = 1
    satisfied_at: float | None = None
    hides_label_counts: bool = False  # whether sites tell figures by label only in a sum over all of them
    key_directory: KeyDirectory | None = None  # who is who, where there are keys, and sites enough, for that

    def __call__(self, model: FlatModel, view: View) -> Scores:
        """Score every n-th round and the last; other rounds have no scores."""
        if not is_due(view, self.every):
            return Scores()
        data = pack({}, model.wire())
        invitation = (
            self._invitation(view, self.key_directory)
            if self.hides_label_counts and self.key_directory is not None
            else b""
        )
        answers = self._answers({name: build_request("evaluate", data, invitation) for name in self._there}, 2, view)
        told = 1 if self.hides_label_counts else self.classes
        right, tested, loss = np.zeros(told), np.zeros(told), 0.0
        numbers = 2 * told + 1  # of an answer, with 8 bytes each, beside what is masked
        up = sum(8 * numbers + len(words) for _, words in answers.values())
        sent = {"bytes_evaluate": tensor_bytes(model.wire()) * len(self._there) + up}
        own, silent, total = dict[int, float](), list[str](), np.zeros(2)
        for client, name in enumerate(self.names):
            if name not in answers:
                continue
            try:
                hits, had, lost = self._read(answers[name][0], told, self.site_registry.facts[name].tests)
            except FedstrataError as error:
                view.note("site_not_scored", round=view.round + 1, site=name, why=str(error))
                continue
            if len(hits) < told:  # its own policy tells no figures by label
                silent.append(name)
                total += hits.sum(), had.sum()
            else:
                right, tested = right + hits, tested + had
            loss += lost
            if had.sum():
                own[client] = float(hits.sum() / had.sum())
        if silent:
            why = f"the policy of {', '.join(silent)} tells none; those of the other sites count"
            view.note("not_scored_by_label", round=view.round + 1, why=why)
        total += right.sum(), tested.sum()
        if not total[1]:
            return Scores(sent)
        by_label: tuple[np.ndarray, np.ndarray] | None = (right, tested) if tested.any() else None
        if self.hides_label_counts:
            whole = bool(invitation) and len(answers) == len(self.names)
            by_label = self._aggregated([words for _, words in answers.values()], view) if whole else None
        recall = None if by_label is None else [float(r / n) if n else None for r, n in zip(*by_label, strict=True)]
        figures: dict[str, Any] = {
            "accuracy": float(total[0] / total[1]),
            "balanced_accuracy": None if recall is None else mean_recall(recall),
            "loss_test": loss / float(total[1]),
            "recall": recall,
            **client_figures(own, self.satisfied_at),
            **sent,
        }
        return Scores(figures, own)

    def _answers(self, requests: Mapping[str, bytes], fields: int, view: View) -> dict[str, tuple[bytes, ...]]:
        """Ask, and give the replies that are ones; every site without one is an event."""

        def refuse(name: str, error: FedstrataError) -> None:
            view.note("site_not_scored", round=view.round + 1, site=name, why=str(error))

        return replies(requests, self.site_registry.ask(requests, fields), refuse)

    @property
    def names(self) -> Sequence[str]:
        """The sites."""
        return self.site_registry.names

    @property
    def _there(self) -> list[str]:
        """Those that are not known to be away: of these an event has said so."""
        return [name for name in self.names if name not in self.site_registry.away]

    def _invitation(self, view: View, key_directory: KeyDirectory) -> bytes:
        """Let all sites say hello, so that they can add up figures by label; where one is missing, none are."""
        if self.site_registry.away:
            return b""
        ask = by_client(self.names, partial(self._answers, fields=1, view=view))

        def refuse(client: int, error: RefusedError) -> None:
            view.note("site_not_scored", round=view.round + 1, site=self.names[client], why=str(error))

        here, invitation = invite_sites(ask, self.names, range(len(self.names)), key_directory, refuse)
        return invitation if len(here) == len(self.names) else b""

    def _aggregated(self, brought: Sequence[bytes], view: View) -> tuple[np.ndarray, np.ndarray] | None:
        try:
            right, tested = np.rint(add_words([read_words(words) for words in brought])).reshape(2, self.classes)
        except (RefusedError, ValueError) as error:
            view.note("not_scored_by_label", round=view.round + 1, why=str(error))
            return None
        return right, tested

    @staticmethod
    def _read(data: bytes, classes: int, most: int) -> tuple[np.ndarray, np.ndarray, float]:
        told = read_values(data)
        try:
            right, tested = (np.array(told[key], dtype=np.float64) for key in ("right", "tested"))
            loss = float(told["loss"])
        except (KeyError, TypeError, ValueError, OverflowError):
            raise RefusedError("its figures cannot be read") from None
        if right.shape not in ((classes,), (1,)) or tested.shape != right.shape or not (right >= 0).all():
            raise RefusedError("its figures are not those of this run's labels")
        if not (right <= tested).all() or not tested.sum() <= most or not np.isfinite(loss):
            raise RefusedError("its figures are impossible")
        return right, tested, loss
