"""What a model by name gives."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from fedstrata.core.part import Part


class Architecture(Part):
    """A model by name: a frozen dataclass of options that builds a module whose last layer is called `head`."""

    natural: ClassVar[tuple[int, ...]] = (1, 28, 28)  # the sample shape it was made for

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build for samples of a shape."""
        raise NotImplementedError
