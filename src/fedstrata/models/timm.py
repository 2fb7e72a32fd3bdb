"""Wightman, PyTorch Image Models (timm): its architectures by name, where timm is installed.

timm's classifier is left out and a linear `head` put in its place. First weights are drawn from the run's seed;
`model.init` takes a file of weights.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

from torch import Tensor, nn

from fedstrata.core.errors import RequestError, unknown_name
from fedstrata.core.options import BelowOne
from fedstrata.models.architecture import Architecture
from fedstrata.models.shapes import image

MISFIT = "torchvision does not fit this torch; install both from one index: https://pytorch.org/get-started/locally"


class TimmNetwork(nn.Module):
    """What timm makes features with, and a head on top."""

    def __init__(self, body: nn.Module, features: int, classes: int):
        super().__init__()
        self.body, self.head = body, nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        logits: Tensor = self.head(self.body(x))
        return logits


@dataclass(frozen=True)
class Timm(Architecture):
    """A network of timm (extra `timm`), by the name it has there: `architecture = "resnet18"`."""

    paper: ClassVar[str] = "Wightman, PyTorch Image Models"
    natural: ClassVar[tuple[int, ...]] = (3, 32, 32)

    architecture: str = "resnet18"
    dropout: BelowOne = 0.0  # timm's drop_rate

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build for images of any size and number of channels that the architecture takes."""
        channels, height, width = image(f"timm's {self.architecture}", shape)
        timm = self._timm()
        sized = timm.get_pretrained_cfg(self.architecture).fixed_input_size  # it has to know before the first image
        more = {"img_size": (height, width)} if sized else {}
        try:
            body = timm.create_model(
                self.architecture, num_classes=0, in_chans=channels, drop_rate=self.dropout, **more
            )
        except (AssertionError, RuntimeError, TypeError, ValueError) as error:
            said = f'model.architecture = "{self.architecture}" cannot be built for samples of shape {shape}: {error}'
            raise RequestError(said) from error
        return TimmNetwork(body, getattr(body, "head_hidden_size", body.num_features), classes)

    def _timm(self) -> Any:
        """Import timm; a name is one of its architectures, and never a folder or an address, which it would load."""
        try:
            timm = import_module("timm")
        except ModuleNotFoundError as error:
            raise RequestError(
                f"model.name = \"timm\" needs {error.name}; get it with: pip install 'fedstrata[timm]'"
            ) from None
        except RuntimeError as error:  # torchvision is compiled against one torch
            raise RequestError(f'model.name = "timm": {error}; {MISFIT}') from error
        if not re.fullmatch(r"[a-z0-9_]+", self.architecture) or not timm.is_model(self.architecture):
            said = str(unknown_name("model.architecture", self.architecture, timm.list_models())).split("; allowed:")[0]
            raise RequestError(f"{said}; allowed: the {len(timm.list_models())} names of timm.list_models()")
        return timm
