"""Which figures an evaluation gives, and which of them says that a model is the best."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from itertools import chain
from typing import Any

from fedstrata.config.completion import complete_list, make
from fedstrata.config.sections import Evaluate
from fedstrata.core import registry
from fedstrata.core.errors import RequestError, unknown_name
from fedstrata.core.metric import Metric

KEY = "train.evaluate.metrics"
BEST = ("accuracy", "balanced_accuracy", "worst10", "client_mean", "personal_mean")
TAKEN = (  # what else an event of a round, or a row of a comparison, holds
    *("best", "best_accuracy", "best_balanced_accuracy", "mean_last10"),
    *("personal", "personal_worst10", "participant_mean", "last_step_mean", "satisfied", "jain", "groups"),
    *("loss_test", "loss_train", "recall", "labels", "label_divergence", "label_imbalance", "event"),
    *("label_divergence_selected", "client_accuracy", "client_deciles", "clients", "client_updates", "update_norm"),
    *("round", "steps", "wall", "refused", "epsilon", "method", "condition", "metrics", "seeds", "stopped", "run_dirs"),
    *("tuned", "without", "brings", "failed"),
)
AMOUNTS = ("bytes", "client_updates", "rank", "rounds", "seconds", "time")  # how figures begin that are no shares
MADE = ("_over_first", "_best_over", "_last10", "_last10_std", "_round")  # how those end that are made of others


def complete_evaluate(evaluate: Evaluate) -> Evaluate:
    """Check how models are scored, and write all options of its metrics out."""
    completed = evaluate.model_copy(update={"metrics": complete_list("metrics", evaluate.metrics, KEY)})
    own: list[str] = []
    for metric in metrics_of(completed):
        _check_name(type(metric).__name__, metric.figure, own)
        own.append(metric.figure)
    if evaluate.best not in (*BEST, *own):
        raise unknown_name("train.evaluate.best", evaluate.best, (*BEST, *own))
    if evaluate.best == "personal_mean" and not evaluate.personal:
        raise RequestError('train.evaluate.best = "personal_mean" needs train.evaluate.personal = true')
    return completed


def _check_name(part: str, figure: str, others: list[str]) -> None:
    """Refuse the name of a figure that could be taken for another one."""
    if figure in others:
        raise RequestError(f'{KEY}: two figures are called "{figure}"; leave one out, or let `figure` tell them apart')
    if not figure.isidentifier():
        raise RequestError(f'{KEY}: {part} calls its figure "{figure}"; allowed: letters, digits and _, as in macro_f1')
    if figure in (*BEST, *TAKEN) or figure.startswith(AMOUNTS) or figure.endswith(MADE):
        raise RequestError(f'{KEY}: {part} calls its figure "{figure}", as another one is; let `figure` give another')


def metrics_of(evaluate: Evaluate) -> list[Metric]:
    """Build the metrics of one's own choice."""
    specs: list[dict[str, Any]] = evaluate.metrics or []
    return [make("metrics", spec, f"{KEY}.{i}") for i, spec in enumerate(specs)]


def refuse_unmeasured(asked: Iterable[str], measured: Collection[str]) -> None:
    """Refuse figures of known metrics that not every run measures, with what to set."""
    for part in registry.names("metrics"):
        with suppress(TypeError, ValueError):  # one of another package may need options
            figure = registry.find("metrics", part, KEY)().figure
            if figure in asked and figure not in measured:
                raise RequestError(f'metric = "{figure}" needs {KEY} = ["{part}"] in all runs')


def measured_by_all(asked: Iterable[Evaluate]) -> list[str]:
    """Return the figures of metrics that every one of several runs measures."""
    figures = [[metric.figure for metric in metrics_of(evaluate)] for evaluate in asked]
    return [name for name in dict.fromkeys(chain(*figures)) if all(name in own for own in figures)]
