"""Sample shapes that networks can take, and how they refuse the others."""

from __future__ import annotations

from torch import nn

from fedstrata.core.errors import RequestError


def no_images(model: str, shape: tuple[int, ...]) -> RequestError:
    """Refuse what is no image to us, and say how images of the usual other forms are turned into one."""
    said = f"{model} needs images (channels, height, width); samples have shape {shape}"
    if len(shape) == 2:
        said += "; if they are grey images, give them a channel: x[:, None]"
    elif len(shape) == 3 and shape[2] in (1, 3):
        said += "; if channels come last, put them first: x.transpose(0, 3, 1, 2)"
    return RequestError(said)


def image(model: str, shape: tuple[int, ...], least: int = 1) -> tuple[int, int, int]:
    """Return channels, height and width of images with at least `least` pixels a side."""
    if len(shape) != 3:
        raise no_images(model, shape)
    channels, height, width = shape
    if channels < 1 or min(height, width) < least:
        raise RequestError(f"{model} needs images of {least} x {least} pixels or more; samples have shape {shape}")
    return channels, height, width


def signal(model: str, shape: tuple[int, ...], least: int = 1) -> tuple[int, int, nn.Module]:
    """Return channels and length of 1-D samples, and the layer that lays them out so.

    A plain row of features is a signal of one channel.
    """
    if len(shape) not in (1, 2):
        raise RequestError(f"{model} needs signals (channels, length) or rows of features; samples have shape {shape}")
    channels, length = shape if len(shape) == 2 else (1, *shape)
    if channels < 1 or length < least:
        raise RequestError(f"{model} needs signals of {least} values or more; samples have shape {shape}")
    return channels, length, nn.Identity() if len(shape) == 2 else nn.Unflatten(1, (1, length))
