"""Whether parts at the server name every number of a report that they read: a site may leave any other out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedstrata.core.contract import find_caller
from fedstrata.core.messages import Report, Task, fast_replace
from fedstrata.core.server_parts import ServerSide
from fedstrata.core.steps import Step
from fedstrata.testing.sites import WireEngine


class DeclaredOnly(dict[str, Any]):
    """The metrics of a report, in which a part finds only what it declares to read."""

    kind = "train"

    def __getitem__(self, name: str) -> Any:
        self._check(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self._check(name)
        return super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Look up, likewise."""
        self._check(name)
        return super().get(name, default)

    def _check(self, name: object) -> None:
        found = find_caller(ServerSide)
        if found is not None:
            part, hook = found
            assert name in part.metrics_read(self.kind), (
                f'{type(part).__name__}: `{hook}` reads metrics["{name}"] of a "{self.kind}" report, and '
                "`metrics_read` does not name it; a site that leaves it out would end the run"
            )


class DeclaringEngine(WireEngine):
    """An engine whose clients are behind bytes, and whose reports show parts only what they declare to read."""

    def ask(self, step: Step, tasks: Sequence[Task]) -> list[Report]:
        """Send each task as bytes, and watch over what came back."""
        return [fast_replace(report, metrics=_watched(report, step.kind)) for report in super().ask(step, tasks)]


def _watched(report: Report, kind: str) -> DeclaredOnly:
    metrics = DeclaredOnly(report.metrics)
    metrics.kind = kind
    return metrics
