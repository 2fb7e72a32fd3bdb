"""What a model by name gives."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from torch import nn

from fedstrata.core.part import Part


class Architecture(Part):
    """A model by name: a frozen dataclass of options that builds a module whose last layer is called `head`.

    Write `build`. `check_model` checks it.

    Attributes
    ----------
    natural
        The sample shape it was made for.

    Examples
    --------
    >>> from collections import OrderedDict
    >>> from dataclasses import dataclass
    >>> from math import prod
    >>> from torch import nn
    >>> import fedstrata
    >>> @dataclass(frozen=True)
    ... class OneHidden(fedstrata.Architecture):
    ...     '''One hidden layer.'''
    ...
    ...     width: fedstrata.options.Count = 32
    ...
    ...     def build(self, shape, classes):
    ...         layers = nn.Flatten(), nn.Linear(prod(shape), self.width), nn.Tanh()
    ...         return nn.Sequential(OrderedDict(body=nn.Sequential(*layers), head=nn.Linear(self.width, classes)))
    >>> fedstrata.check_model(OneHidden(), shape=(1, 8, 8))
    >>> run = fedstrata.train(overrides={"model.name": "__main__:OneHidden", "model.width": 16, "train.rounds": 1})
    >>> run.model()["head.weight"].shape
    torch.Size([10, 16])
    """

    natural: ClassVar[tuple[int, ...]] = (1, 28, 28)

    @abstractmethod
    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build for samples of a shape.

        Parameters
        ----------
        shape
            Of one sample, such as (1, 28, 28).
        classes
            How many labels there are.

        Returns
        -------
        torch.nn.Module
            Its last layer is called `head`, and gives one number a label.
        """
        raise NotImplementedError
