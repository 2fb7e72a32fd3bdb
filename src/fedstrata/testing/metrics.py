"""`check_metric`."""

from __future__ import annotations

import math

import numpy as np

from fedstrata.core.metric import Metric
from fedstrata.testing.conformance import check_part, check_run
from fedstrata.testing.draws import no_hidden_draws

SAMPLES, CLASSES = 120, 12


def check_metric(metric: Metric) -> None:
    """Check a metric: a number by the answers alone, whatever the order of the samples, with a name of its own.

    Parameters
    ----------
    metric
        An object of a part of your own.

    Raises
    ------
    AssertionError
        With what is wrong.

    Examples
    --------
    >>> import fedstrata
    >>> fedstrata.check_metric(fedstrata.make_part("metrics", "macro-f1"))
    """
    check_part(metric)
    name, rng = type(metric).__name__, np.random.default_rng(0)
    assert metric.figure.isidentifier(), f"{name}: figure = {metric.figure!r} must be a name, such as macro_f1"
    labels, probabilities = rng.integers(0, CLASSES, SAMPLES), rng.dirichlet(np.ones(CLASSES), SAMPLES)
    kept = labels.copy(), probabilities.copy()
    with no_hidden_draws(f"{name}: `measure`", torch_too=True):
        first, again = (float(metric.measure(labels, probabilities)) for _ in range(2))
    assert math.isfinite(first), f"{name}: `measure` gave {first} where all classes are tested"
    assert first == again, f"{name}: `measure` gave {first}, and {again} of the same answers; it has no state"
    same = np.array_equal(labels, kept[0]) and np.array_equal(probabilities, kept[1])
    assert same, f"{name}: `measure` changed what it was given"
    order = rng.permutation(SAMPLES)
    moved = float(metric.measure(labels[order], probabilities[order]))
    assert math.isclose(first, moved, rel_tol=1e-9, abs_tol=1e-12), f"{name}: samples in another order gave {moved}"
    check_run({"train.evaluate.metrics": [metric]})
