"""From stored samples to what a network sees: scaled, normalised and, in training, augmented, on the device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedstrata.core.counter_rng import Clock


@dataclass(frozen=True)
class Inputs:
    """How stored samples become what a network sees. Images stay uint8 until here.

    Normalisation is by channel. Augmentation draws from the client update's own stream.

    Attributes
    ----------
    scale
        What samples are divided by: 255 for images.
    mean, std
        By channel, after scaling; None: samples are not normalised.
    crop
        Pixels of padding, out of which a window of the old size is cut.
    flip
        Left and right, every other image.

    Examples
    --------
    >>> import torch
    >>> from fedstrata import Inputs
    >>> inputs = Inputs(scale=255.0, mean=(0.5,), std=(0.25,))
    >>> inputs(torch.full((1, 1, 1, 2), 255, dtype=torch.uint8), torch.float32)
    tensor([[[[2., 2.]]]])
    """

    scale: float = 1.0
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    crop: int = 0
    flip: bool = False

    def __call__(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Scale and normalise; whole numbers that are not pixels (tokens) stay as they are."""
        if not x.is_floating_point() and x.dtype != torch.uint8:
            return x
        x = x.to(dtype)
        if self.scale != 1.0:
            x = x / self.scale
        if self.mean is None or self.std is None:
            return x
        mean, std = (_by_channel(values, x.ndim, dtype, x.device) for values in (self.mean, self.std))
        return (x - mean) / std

    def keeps(self, x: Tensor) -> bool:
        """Say whether samples of the run's own type stay as they are.

        Parameters
        ----------
        x
            Samples.

        Returns
        -------
        bool
        """
        return x.dtype != torch.uint8 and self.scale == 1.0 and (self.mean is None or self.std is None)

    def augment(self, x: Tensor, clock: Clock) -> Tensor:
        """Shift and flip each image of a batch by chance; the same operations whatever the chance says.

        The border that a shift lets in is 0 after normalisation: the mean colour, not black.

        Parameters
        ----------
        x
            Images that are scaled and normalised.
        clock
            Random numbers of the batch.

        Returns
        -------
        Tensor
        """
        if not (self.crop or self.flip) or x.ndim != 4:
            return x
        count, _, height, width = x.shape
        dy, dx = (self._offsets(count, clock) for _ in range(2))
        columns = torch.arange(width, device=x.device).expand(count, width)
        if self.flip:
            turned = (clock.uniform(count) < 0.5).view(-1, 1)
            columns = torch.where(turned, width - 1 - columns, columns)
        rows = torch.arange(height, device=x.device) + dy.view(-1, 1)
        columns = columns + dx.view(-1, 1)
        wide = pad(x, (self.crop,) * 4)
        image = torch.arange(count, device=x.device)
        return wide[image.view(-1, 1, 1), :, rows.unsqueeze(2), columns.unsqueeze(1)].permute(0, 3, 1, 2)

    def _offsets(self, count: int, clock: Clock) -> Tensor:
        return (clock.uniform(count) * (2 * self.crop + 1)).long()


@cache
def _by_channel(values: tuple[float, ...], ndim: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return one number a channel, made once: a step that copies from the host cannot be recorded."""
    return torch.tensor(values, dtype=dtype, device=device).view(1, -1, *(1,) * (ndim - 2))
