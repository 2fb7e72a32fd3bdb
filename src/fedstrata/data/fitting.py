"""Raw arrays in the shape and the numbers that a model was trained on, where there is one way only to read them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedstrata.core.errors import RequestError

PIXELS = 255.0  # white, in image files
NORMALISED = 10.0  # deviations: pixels that are normalised lie on both sides of 0, and not further from it


@dataclass(frozen=True)
class SampleForm:
    """What a sample looked like in training: its shape, its type, and what it was divided by."""

    shape: tuple[int, ...]
    dtype: str
    scale: float = 1.0

    @property
    def is_image(self) -> bool:
        """Whether it is one or three channels, height, width."""
        return len(self.shape) == 3 and self.shape[0] in (1, 3)

    def fit(self, x: Tensor) -> Tensor:
        """Return samples, or one alone, as [n, *shape], in numbers that the model takes.

        Of images the channels may come last, and the one channel of grey ones may be missing.
        """
        return self._fit_numbers(self._fit_shape(x))

    def fit_pixels(self, x: np.ndarray) -> np.ndarray:
        """Return the pixels of image files as training had them: digits go from 0 to 16, for one."""
        if self.dtype == "uint8" or self.scale == PIXELS:
            return x
        if self.scale == 1.0:
            raise RequestError(
                f"the model was trained on numbers that are no pixels from 0 to {PIXELS:g}, so an image file does not "
                f"say what it takes; give arrays of shape {self.shape}, scaled as in training"
            )
        shades: np.ndarray = x * (self.scale / PIXELS)
        return shades

    def _fit_shape(self, x: Tensor) -> Tensor:
        others = self._other_shapes()
        for samples in (x, x[None]):  # several, or one alone
            found = tuple(samples.shape[1:])
            if found == self.shape:
                return samples
            if found in others:
                last = len(found) == 3  # its channels, that is
                return (samples.movedim(-1, 1) if last else samples).reshape(len(samples), *self.shape)
        also = f", and takes {' or '.join(map(str, others))} too" if others else ""
        raise RequestError(f"samples have shape {tuple(x.shape[1:])}; the model was trained on {self.shape}{also}")

    def _other_shapes(self) -> list[tuple[int, ...]]:
        """Return other shapes of the same image; not colours in a row, which some lay side by side and some mix."""
        if not self.is_image:
            return []
        channels, height, width = self.shape
        return [(height, width, channels), *([(height, width), (height * width,)] if channels == 1 else [])]

    def _fit_numbers(self, x: Tensor) -> Tensor:
        kind = getattr(torch, self.dtype)
        if not kind.is_floating_point and kind != torch.uint8:  # tokens
            if x.is_floating_point() and not bool((x == x.round()).all()):
                raise RequestError("the model was trained on whole numbers; these are not, or some are missing")
            return x.long()
        if not x.is_floating_point():
            return x if x.dtype == torch.uint8 else x.double()  # others would be taken for tokens
        if self.scale == PIXELS and x.numel():
            low, high = x.min().item(), x.max().item()
            if high <= (1.0 if low >= 0 else NORMALISED) and bool((x != x.round()).any()):
                raise RequestError(
                    f"the model was trained on pixels from 0 to {PIXELS:g} and scales them itself; these go from "
                    f"{low:g} to {high:g}, as if they were scaled already"
                )
        return x
