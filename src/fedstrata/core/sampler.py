"""Samplers: which of a client's samples a client update trains on, in which order."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

from fedstrata.core.client_context import ClientContext, Program
from fedstrata.core.client_parts import Order
from fedstrata.core.part import Part


class Sampler(Part):
    """Which of a client's samples, in which order.

    Write `plan`; `width` if batches may be wider than the batch size. `check_sampler` checks it.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import numpy as np
    >>> import fedstrata
    >>> @dataclass(frozen=True)
    ... class EasyFirst(fedstrata.Sampler):
    ...     '''Every epoch passes over the samples from low loss to high.'''
    ...
    ...     def plan(self, context):
    ...         easy_first = np.argsort(context.score_samples().losses, kind="stable")
    ...         return fedstrata.Order((easy_first,) * context.epochs, context.batch_size)
    >>> run = fedstrata.train(overrides={"method.sampler": EasyFirst(), "train.rounds": 1})
    >>> run.summary["rounds"]
    1
    """

    def width(self, batch_size: int, largest: int, fastest: float = 1.0) -> int:
        """Return the largest batch that this sampler may ask for.

        Parameters
        ----------
        batch_size
            As the experiment says.
        largest
            Samples of the largest client.
        fastest
            Speed of the fastest one.

        Returns
        -------
        int
        """
        return min(batch_size, largest)

    @abstractmethod
    def plan(self, context: ClientContext) -> Order:
        """Plan the batches of a client update.

        Parameters
        ----------
        context
            The client and its task. `context.score_samples()` costs one forward pass over the client's data.

        Returns
        -------
        Order
        """
        raise NotImplementedError

    @property
    def programs(self) -> Mapping[str, Program]:
        """What a client can do with its samples beside training on them, by `Step.kind`."""
        return {}
