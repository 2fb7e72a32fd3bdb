"""timm, also beside a torchvision whose operators were compiled for another torch: none of them is needed here."""

from __future__ import annotations

import importlib
import sys

import torch


def load_timm() -> bool:
    """Import timm; say whether it is there."""
    try:
        importlib.import_module("timm")
    except ModuleNotFoundError:
        return False
    except RuntimeError:  # torchvision's library does not load; it only has to find its operators declared
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        load_timm.kept = library  # type: ignore[attr-defined]  # it ends with the object
        for name in [name for name in sys.modules if name.split(".")[0] in ("torchvision", "timm")]:
            del sys.modules[name]
        importlib.import_module("timm")
    return True
