"""Which figures an evaluation gives, and which of them says that a model is the best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import chain
from typing import Any

from fedstrata.config.completion import complete_list, make
from fedstrata.config.sections import Evaluate
from fedstrata.core.errors import RequestError, unknown_name
from fedstrata.core.metric import Metric

KEY = "train.evaluate.metrics"
BEST = ("accuracy", "balanced_accuracy", "worst10", "client_mean", "personal_mean")
TAKEN = (  # what else rounds and summaries hold
    *("loss_test", "loss_train", "recall", "groups", "personal_worst10", "participant_mean", "last_step_mean"),
    *("satisfied", "jain", "update_norm", "round", "rounds", "steps", "seconds", "time", "clients", "labels", "seed"),
    *("bytes_up", "bytes_down", "bytes_p2p", "bytes_evaluate", "client_updates", "client_accuracy", "event", "method"),
)


def complete_evaluate(evaluate: Evaluate) -> Evaluate:
    """Check how models are scored, and write all options of its metrics out."""
    completed = evaluate.model_copy(update={"metrics": complete_list("metrics", evaluate.metrics, KEY)})
    own = [metric.figure for metric in metrics_of(completed)]
    twice = [name for name, times in Counter([*own, *BEST, *TAKEN]).items() if times > 1]
    if twice:
        raise RequestError(f'{KEY}: a figure is called "{twice[0]}" already; give the class another name')
    if evaluate.best not in (*BEST, *own):
        raise unknown_name("train.evaluate.best", evaluate.best, (*BEST, *own))
    if evaluate.best == "personal_mean" and not evaluate.personal:
        raise RequestError('train.evaluate.best = "personal_mean" needs train.evaluate.personal = true')
    return completed


def metrics_of(evaluate: Evaluate) -> list[Metric]:
    """Build the metrics of one's own choice."""
    specs: list[dict[str, Any]] = evaluate.metrics or []
    return [make("metrics", spec, f"{KEY}.{i}") for i, spec in enumerate(specs)]


def measured_by_all(asked: Iterable[Evaluate]) -> list[str]:
    """Return the figures of metrics that every one of several runs measures."""
    figures = [[metric.figure for metric in metrics_of(evaluate)] for evaluate in asked]
    return [name for name in dict.fromkeys(chain(*figures)) if all(name in own for own in figures)]
