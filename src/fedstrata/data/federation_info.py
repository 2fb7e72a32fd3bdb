"""What a run reads of its clients' data, whether the samples are here or at real sites."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self

import numpy as np
from torch import Tensor

from fedstrata.core.client_info import ClientInfo
from fedstrata.core.errors import RequestError
from fedstrata.core.inputs import Inputs
from fedstrata.core.rng import Streams
from fedstrata.data.drift import Moves
from fedstrata.data.preprocessing import Preprocessing
from fedstrata.data.reading import Label, Samples
from fedstrata.data.scaling import FeaturesTold


class FederationInfo(Protocol):
    """What a run reads of its clients' data, wherever the samples are."""

    @property
    def classes(self) -> tuple[Label, ...]:
        """The labels, by class index."""

    @property
    def inputs(self) -> Inputs:
        """From stored samples to what a network sees."""

    @property
    def preprocessing(self) -> Preprocessing:
        """From raw inputs to what a network sees."""

    @property
    def features_told(self) -> FeaturesTold | None:
        """What clients told of their features."""

    @property
    def names(self) -> tuple[str, ...] | None:
        """Of the clients, where they have any."""

    @property
    def speeds(self) -> np.ndarray | None:
        """Relative device capacity."""

    @property
    def bandwidths(self) -> np.ndarray | None:
        """Bytes a second."""

    @property
    def moves(self) -> Moves | None:
        """How who holds what changes by round."""

    @property
    def proxy(self) -> Samples | None:
        """Training samples that the server holds."""

    @property
    def left_out(self) -> int:
        """Training samples that no client holds."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What the partition had to do to fulfil the request."""

    @property
    def samples(self) -> int:
        """Training samples that clients hold."""

    @property
    def tests(self) -> int:
        """Test samples."""

    @property
    def counts(self) -> np.ndarray:
        """Label counts of every client, [N, C], as far as they are known."""

    @property
    def fingerprint(self) -> str:
        """Hash of the data."""

    @property
    def identity(self) -> str:
        """What a checkpoint belongs to."""

    def __len__(self) -> int: ...

    def trial(self) -> Tensor:
        """Return two stored samples, or what looks like them, to try a network with."""

    def with_devices(self, speeds: np.ndarray | None, bandwidths: np.ndarray | None) -> Self:
        """Return the same clients with other devices."""

    def client_info(self, needs: frozenset[str], streams: Streams) -> ClientInfo:
        """Tell the server what its parts declared they need, and no more."""


def check_classes(classes: Sequence[Label]) -> None:
    """Refuse data with nothing to tell apart."""
    if len(classes) < 2:
        raise RequestError(f"the data has {len(classes)} class; at least 2 are needed")
