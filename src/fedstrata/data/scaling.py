"""Mean and deviation of training samples, by which features are brought to mean 0 and deviation 1."""

from __future__ import annotations

import numpy as np


def standardised(
    train: np.ndarray, test: np.ndarray, which: np.ndarray | bool = True, axes: tuple[int, ...] = (0,)
) -> tuple[np.ndarray, np.ndarray]:
    """Standardise some columns (or channels) of both sets by the statistics of the first; constant ones become 0."""
    mean = train.mean(axes, keepdims=True, dtype=np.float64)
    std = train.std(axes, keepdims=True, dtype=np.float64)
    mean, std = np.where(which, mean, 0.0), np.where(np.logical_and(which, std > 0), std, 1.0)
    first, second = ((part - mean.astype(np.float32)) / std.astype(np.float32) for part in (train, test))
    return first, second


def brightness(images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Give mean and deviation of uint8 images by channel, on the scale of 0 to 1."""
    grey = np.arange(256) / 255
    shares = [np.bincount(images[:, c].reshape(-1), minlength=256) / images[:, c].size for c in range(images.shape[1])]
    mean = [float(share @ grey) for share in shares]
    std = [float(np.sqrt(share @ (grey - m) ** 2)) or 1.0 for share, m in zip(shares, mean, strict=True)]
    return tuple(mean), tuple(std)
