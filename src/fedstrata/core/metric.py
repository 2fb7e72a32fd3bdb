"""The interface of metrics: what an evaluation measures beside accuracy, recall and loss."""

from __future__ import annotations

import re
from abc import abstractmethod

import numpy as np

from fedstrata.core.part import Part


class Metric(Part):
    """A figure of how a model answers on the test set; more is better.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import fedstrata
    >>> @dataclass(frozen=True)
    ... class Sensitivity(fedstrata.Metric):
    ...     '''The share of one class that is found.'''
    ...
    ...     of: fedstrata.options.Natural = 1
    ...
    ...     def measure(self, labels, probabilities):
    ...         return (probabilities[labels == self.of].argmax(1) == self.of).mean()
    >>> run = fedstrata.train(overrides={"train.evaluate.metrics": [Sensitivity()], "train.rounds": 1})
    >>> list(run.summary["metrics"])
    ['sensitivity']
    """

    @property
    def figure(self) -> str:
        """What the figure is called in events, curves and summaries: the name of the class in small letters."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(self).__name__).lower()

    @abstractmethod
    def measure(self, labels: np.ndarray, probabilities: np.ndarray) -> float:
        """Return the figure of one evaluation.

        Parameters
        ----------
        labels
            The class of each test sample, as a place in the run's `classes`.
        probabilities
            What the model gives to each class, [n, classes].

        Returns
        -------
        float
            NaN where it cannot be told, as where a class is not tested: the event then has none.
        """
