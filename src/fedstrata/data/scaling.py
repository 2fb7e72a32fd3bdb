"""Mean and deviation of training samples, by which features are brought to mean 0 and deviation 1."""

from __future__ import annotations

import numpy as np

CHUNK = 1 << 22  # pixels counted together


def standardise(
    train: np.ndarray, test: np.ndarray, which: np.ndarray | bool = True, axes: tuple[int, ...] = (0,)
) -> tuple[np.ndarray, np.ndarray]:
    """Standardise some columns (or channels) of both sets by the statistics of the first; constant ones become 0.

    The result is float32; what comes in as float64 is shifted and scaled as such: 1.7e9 + 1 is no float32.
    """
    low, high = train.min(axes, keepdims=True), train.max(axes, keepdims=True)
    varied = low < high  # the deviation of a constant column need not be 0: its mean is rounded
    mean = np.where(varied, train.mean(axes, keepdims=True, dtype=np.float64), low)
    std = train.std(axes, keepdims=True, dtype=np.float64)
    mean = np.where(which, mean, 0.0)
    std = np.where(np.logical_and(which, varied & (std > 0)), std, 1.0)
    first, second = (
        ((part - mean.astype(part.dtype)) / std.astype(part.dtype)).astype(np.float32, copy=False)
        for part in (train, test)
    )
    return first, second


def brightness(images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and deviation of uint8 images by channel, on the scale of 0 to 1."""
    grey = np.arange(256) / 255
    counts = np.zeros((images.shape[1], 256), np.int64)
    step = max(1, CHUNK // max(images[:1, :1].size, 1))
    for start in range(0, len(images), step):  # numpy widens what it counts to 8 bytes a pixel
        for channel in range(len(counts)):
            counts[channel] += np.bincount(images[start : start + step, channel].reshape(-1), minlength=256)
    shares = counts / counts[0].sum()
    mean = [float(share @ grey) for share in shares]
    std = [float(np.sqrt(share @ (grey - m) ** 2)) or 1.0 for share, m in zip(shares, mean, strict=True)]
    return tuple(mean), tuple(std)
