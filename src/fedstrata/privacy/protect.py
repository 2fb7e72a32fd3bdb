"""What a client does to its update before anything leaves it; the same in a simulation and at a real site.

`masked_sum.py` is the other half: what the server does with it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fedstrata.core.messages import FIGURES, Report, Tensors, fast_replace, shorten
from fedstrata.core.rng import Rng
from fedstrata.privacy.noise import UpdateNoise
from fedstrata.privacy.sums.fixed_point import Encoding

NOT_TOLD = float("nan")  # stands for a number that noise, or a masked sum, keeps from the server


def protect_update(
    tensors: Tensors,
    noise: UpdateNoise | None,
    encoding: Encoding | None,
    draw: Callable[[], Rng],
    clip: float | None = None,
) -> np.ndarray:
    """Return what leaves a client, before weights and masks: flat, clipped and noised where that is asked for.

    `encoding` is how numbers are written under masks, and `draw` where this client's own noise comes from. `clip` is
    the length that all agreed on, so that the server can tell a sum that holds a longer update.
    """
    flat = flatten(tensors if clip is None else {**tensors, "update": shorten(tensors["update"], clip)})
    return flat if noise is None else noise.leaving(flat, 0.0 if encoding is None else encoding.unit, draw)


def protect_report(report: Report, noise: UpdateNoise | None) -> Report:
    """Return a report without the numbers that would tell what a client's own noise hides."""
    if noise is None or not noise.local:
        return report
    return fast_replace(report, loss=NOT_TOLD, update_norm=NOT_TOLD, metrics={})


def sum_figures(report: Report, most: float) -> Report:
    """Return a report whose loss and length of the update are among what is only summed.

    They are for the log: one that is larger than the encoding holds is cut off there, and does not cost the update.
    """
    told = [report.loss, report.update_norm]
    figures = torch.tensor(told, dtype=report.aggregated["update"].dtype)
    figures = figures.clamp(max=_not_above(most, figures.dtype))
    return fast_replace(hide_figures(report), aggregated={**report.aggregated, FIGURES: figures})


def _not_above(most: float, dtype: torch.dtype) -> float:
    """Return the largest number of a type that is not above `most`: rounded to the next one, it may be."""
    rounded = torch.tensor(most, dtype=dtype)
    return float(rounded if float(rounded) <= most else torch.nextafter(rounded, torch.zeros_like(rounded)))


def hide_figures(report: Report) -> Report:
    """Return a report that does not tell them."""
    return fast_replace(report, loss=NOT_TOLD, update_norm=NOT_TOLD)


def flatten(tensors: Tensors) -> np.ndarray:
    """Put tensors into one array of double precision, in the order of their names."""
    parts = [tensors[name].detach().cpu().double().numpy().reshape(-1) for name in sorted(tensors)]
    return np.concatenate(parts) if parts else np.zeros(0)


def cut(flat: np.ndarray, like: Tensors) -> dict[str, Tensor]:
    """Undo `flatten`; of `like`, only names, shapes and types are read."""
    names = sorted(like)
    parts = np.split(flat, np.cumsum([like[name].numel() for name in names])[:-1]) if names else []
    return {
        name: torch.from_numpy(part).to(like[name].dtype).reshape(like[name].shape)
        for name, part in zip(names, parts, strict=True)
    }
