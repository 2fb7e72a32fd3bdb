"""Cho et al., Towards Understanding Biased Client Selection in Federated Learning, AISTATS 2022.

Draws d candidates by size, asks each for the loss of the current model on its data, and trains the k with the
highest loss. The probe costs d model downloads, which are charged; a candidate that does not answer is replaced.
Two cheaper forms: the loss of one mini-batch (the paper's cpow), or the last loss that training reported (rpow), which
needs no probe; a client that never reported comes first.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import ClassVar, Literal

import numpy as np

from fedstrata.core.client_context import ClientContext, Done, Program
from fedstrata.core.options import Natural
from fedstrata.core.server_parts import Selector
from fedstrata.core.steps import Ask, Outcome, Scores, Step, View
from fedstrata.methods.selectors.size import draw_by_size


def mean_loss(context: ClientContext) -> Done:
    """Tell the loss of the received model on this client's samples."""
    return Done(metrics={"probed_loss": float(context.score_samples().losses.mean())})


def batch_loss(context: ClientContext) -> Done:
    """Tell the loss of the received model on one mini-batch."""
    return Done(metrics={"probed_loss": float(context.score_samples(context.batch()).losses.mean())})


@dataclass
class Losses:
    """What training last reported; infinite where it never did."""

    last: np.ndarray


@dataclass(frozen=True)
class PowerOfChoice(Selector):
    """Of d candidates drawn by size, the k with the highest loss train."""

    paper: ClassVar[str] = "Cho et al., AISTATS 2022"
    reads: ClassVar[str] = "the loss of every client that is asked, whether it is then selected or not"
    needs: ClassVar[frozenset[str]] = frozenset({"sizes"})
    programs: ClassVar[Mapping[str, Program]] = MappingProxyType(
        {"probe-loss": mean_loss, "probe-batch-loss": batch_loss}
    )

    candidates: Natural = 0  # d; 0 means twice the clients of a round
    loss: Literal["all", "batch", "last"] = "all"  # of all samples, of one mini-batch, or what training last reported

    def init(self, view: View) -> Losses | None:
        """Remember losses where they are not probed."""
        return Losses(np.full(view.client_info.clients, np.inf)) if self.loss == "last" else None

    def select(self, state: Losses | None, view: View) -> Generator[Step, Outcome, list[int]]:
        """Draw candidates, find out their losses, keep the k highest."""
        d = min(max(self.candidates or 2 * view.k, view.k), len(view.eligible))
        drawn = draw_by_size(view, d)
        if state is not None:
            loss = {client: float(state.last[client]) for client in drawn.tolist()}
        else:
            loss = yield from self._probe(view, drawn)
        known = {client: -np.inf if np.isnan(value) else value for client, value in loss.items()}
        highest_first = sorted(known, key=lambda client: (-known[client], view.client_info.key[client]))
        return highest_first[: view.k] + self._unheard(view, drawn, known)

    @property
    def reads_envelope(self) -> bool:
        """Read what training reported where losses are not probed."""
        return self.loss == "last"

    def metrics_read(self, kind: str) -> tuple[str, ...]:
        """Read what probes tell."""
        return ("probed_loss",) if kind in self.programs else ()

    def _probe(self, view: View, drawn: np.ndarray) -> Generator[Step, Outcome, dict[int, float]]:
        """Ask candidates for their loss, and others in the place of those who do not answer."""
        kind = "probe-batch-loss" if self.loss == "batch" else "probe-loss"
        loss: dict[int, float] = {}
        asked, turn, wanted = drawn, 0, len(drawn)
        while len(drawn):
            probe = yield Step(tuple(Ask(i) for i in sorted(drawn.tolist())), kind=kind, combine=False)
            loss |= {r.client: float(r.metrics["probed_loss"]) for r in probe.reports}  # type: ignore[arg-type]
            turn, short = turn + 1, wanted - len(loss)
            rest = np.setdiff1d(view.eligible, asked) if short else asked[:0]
            others = replace(view, eligible=rest, rng=partial(view.rng, step=turn))
            drawn = draw_by_size(others, min(short, len(rest))) if len(rest) else rest
            asked = np.concatenate([asked, drawn])
        return loss

    def _unheard(self, view: View, drawn: np.ndarray, known: Mapping[int, float]) -> list[int]:
        """Where too few answered though everybody was asked: candidates that did not."""
        if len(known) >= view.k:
            return []
        why = f"{len(known)} of {len(view.eligible)} clients told their loss, {view.k} are wanted"
        view.note("fallback", what="power-of-choice", used="clients that did not answer", why=why)
        silent = [client for client in [*drawn.tolist(), *view.eligible.tolist()] if client not in known]
        return list(dict.fromkeys(silent))[: view.k - len(known)]

    def feedback(self, state: Losses | None, view: View, outcomes: Sequence[Outcome], scores: Scores) -> None:
        """Remember the losses of those who trained."""
        if state is None:
            return
        for report in [r for o in outcomes if o.step.combine for r in o.reports]:
            loss = float(report.loss)
            state.last[report.client] = -np.inf if np.isnan(loss) else loss
