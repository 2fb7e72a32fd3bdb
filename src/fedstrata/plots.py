"""Figures of a run or of a comparison, for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedstrata.core.errors import RequestError

if TYPE_CHECKING:
    from pathlib import Path

    import plotly.graph_objects as go


class Plots:
    """What lies in a folder can be drawn. Figures are plotly's; importing that waits until one is asked for."""

    path: Path

    def plot_accuracy(self, against: str = "rounds") -> go.Figure:
        """Draw accuracy against "rounds", "bytes", "updates" or virtual "time"; several methods as means and bands."""
        from fedstrata.report.figures import curves  # noqa: PLC0415

        runs_data = self._runs_data()
        drawn = (
            curves.accuracy(runs_data[0], against)
            if len(runs_data) == 1
            else curves.curves(runs_data, "accuracy", against)
        )
        return _there(drawn, "an accuracy")

    def plot_metric(self, metric: str, against: str = "rounds") -> go.Figure:
        """Draw any figure that rounds have, such as "worst10", "loss_test" or "label_divergence"."""
        from fedstrata.report.figures import curves  # noqa: PLC0415

        return _there(curves.curves(self._runs_data(), metric, against), f"a {metric}")

    def plot_labels(self) -> go.Figure:
        """Draw the recall of each label: by round or, of several runs, at the end."""
        from fedstrata.report.figures import labels  # noqa: PLC0415

        runs_data = self._runs_data()
        return _there(
            labels.recall(runs_data[0]) if len(runs_data) == 1 else labels.final_recall(runs_data), "a recall by label"
        )

    def plot_clients(self) -> go.Figure:
        """Draw the clients' accuracies at the end, the worst first."""
        from fedstrata.report.figures import clients  # noqa: PLC0415

        return _there(clients.rank_clients(self._runs_data()), "an accuracy by client")

    def _runs_data(self) -> list[Any]:
        from fedstrata.report.gather import gather  # noqa: PLC0415

        return gather([self.path]).runs_data


class RunPlots(Plots):
    """What only a single run has."""

    def plot_balance(self) -> go.Figure:
        """Draw the labels of each round against those of all clients."""
        return self._own("balance")

    def plot_participation(self) -> go.Figure:
        """Draw who took part in which round."""
        return self._own("participation")

    def plot_client_accuracy(self) -> go.Figure:
        """Draw the accuracy of each client by round."""
        return self._own("client-accuracy")

    def plot_drift(self) -> go.Figure:
        """Draw how far clients move the model."""
        return self._own("update_norm")

    def plot_method(self) -> list[go.Figure]:
        """Draw what the method tells of itself: clusters, splits, cuts or exposure."""
        from fedstrata.report.figures import of_one  # noqa: PLC0415

        drawn = [shown.figure for shown in of_one(self._runs_data()[0]) if shown.section == "method"]
        return drawn or [_there(None, "a figure of its method")]

    def plot_faults(self) -> go.Figure:
        """Draw lost reports and other faults."""
        return self._own("faults")

    def _own(self, name: str) -> go.Figure:
        from fedstrata.report.figures import OWN  # noqa: PLC0415

        draw = next(draw for _, known, _, _, draw in OWN if known == name)
        return _there(draw(self._runs_data()[0]), f"what {name.replace('-', ' ')} is drawn from")


def _there(drawn: go.Figure | None, what: str) -> go.Figure:
    if drawn is None:
        raise RequestError(
            f"this run does not have {what}: it has no round yet, nothing of it happened, or it is private"
        )
    return drawn
