"""A trained network as others use it: raw inputs go in, a logit for each class comes out."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedstrata.data.preprocessing import Preprocessing
from fedstrata.data.reading import Label
from fedstrata.models.logits import logits_of

EXACT = 64 * torch.finfo(torch.float64).eps  # below this share of its mean, a feature's deviation is rounding


class Classifier(nn.Module):
    """A network with what comes before it, in operations of torch alone, so that it can be traced and exported.

    Parameters
    ----------
    network
        Takes samples that are scaled and normalised.
    preprocessing
        What its samples went through. A table with categorical columns is encoded first (`Preprocessing.encode`).
    classes
        What each logit stands for.
    """

    mean: Tensor | None
    std: Tensor | None

    def __init__(self, network: nn.Module, preprocessing: Preprocessing, classes: tuple[Label, ...]):
        super().__init__()
        self.network, self.preprocessing, self.classes = network, preprocessing, classes
        weights = [weight for weight in network.parameters() if weight.is_floating_point()]
        self._dtype = weights[0].dtype if weights else torch.float32
        for name, values in (("mean", preprocessing.mean), ("std", preprocessing.std)):
            known = None if values is None else torch.tensor(values, dtype=torch.float64)
            self.register_buffer(name, known, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of raw samples.

        Parameters
        ----------
        x
            As the data hold them: pixels from 0 to 255, numbers as they stand in the table, or tokens.

        Returns
        -------
        Tensor
            [samples, classes].
        """
        if not x.is_floating_point() and x.dtype != torch.uint8 and not self.preprocessing.columns:
            return logits_of(self.network(x))  # whole numbers that are not pixels are tokens
        # Pixels are exact anyway; a time stamp is a feature like any other, and 1.7e9 + 1 is no float32.
        exact = self._dtype if x.dtype == torch.uint8 else torch.float64
        x = x.to(exact)
        if self.preprocessing.scale != 1.0:
            x = x / self.preprocessing.scale
        mean, std = self._own_statistics(x) if self.preprocessing.per_client else (self.mean, self.std)
        if mean is not None and std is not None:
            along = (1, -1, *(1,) * (x.ndim - 2))
            x = (x - mean.to(exact).view(along)) / std.to(exact).view(along)
        return logits_of(self.network(x.to(self._dtype)))

    def _own_statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and deviation of these samples: every owner of data scaled by its own."""
        axes = (0, *range(2, x.ndim))
        mean, std = x.mean(axes), x.std(axes, correction=0)
        return mean, torch.where(std > EXACT * mean.abs(), std, torch.ones_like(std))
