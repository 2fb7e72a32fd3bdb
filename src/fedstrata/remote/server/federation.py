"""What the server knows of its sites' data: what they said of themselves, put together, and refused by site."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedstrata.core.client_info import ClientInfo, label_facts
from fedstrata.core.errors import RequestError
from fedstrata.core.inputs import Inputs
from fedstrata.core.registry import validate
from fedstrata.core.rng import Streams
from fedstrata.data.federation_info import check_classes
from fedstrata.data.preprocessing import Preprocessing
from fedstrata.data.reading import Label, fold_label, order_labels
from fedstrata.data.scaling import FeaturesTold, inputs_of
from fedstrata.privacy.labels.masking import hold_table
from fedstrata.remote.introduction import Introduction
from fedstrata.remote.server.same_features import common_preprocessing

UNKNOWN = 2  # classes that stand for all, as long as nobody knows how many there are


def common_classes(sites: Mapping[str, Introduction]) -> tuple[Label, ...]:
    """Return the labels of all sites together, as far as they are told; refuse sites that cannot be of one kind."""
    common_preprocessing(sites)
    seen: dict[str, tuple[Label, str]] = {}
    for name, facts in sites.items():
        for label in facts.classes or ():
            known, where = seen.setdefault(fold_label(label), (label, name))
            if known != label or type(known) is not type(label):
                raise RequestError(f"site {name} has a label {label!r}, site {where} has {known!r}: use one name")
    return order_labels({label for facts in sites.values() for label in facts.classes or ()})


def labels_of_one(sites: Mapping[str, Introduction]) -> dict[str, tuple[Label, ...]]:
    """Return labels in words, as far as they are told, that one site alone has, where that looks like another name.

    It does where a site shares no label with any other, and where all sites have the same ones but for a single one.
    """
    holders = Counter(label for facts in sites.values() for label in facts.classes or ())
    told = {name: facts.classes for name, facts in sites.items() if facts.classes and str in map(type, facts.classes)}
    strange = {name: own for name, own in told.items() if len(told) > 1 and all(holders[label] == 1 for label in own)}
    for name, own in told.items() if len(told) > 2 and not strange else ():
        common = set(holders) - set(own) | {label for label in own if holders[label] > 1}
        others = [set(classes) for at, classes in told.items() if at != name]
        if len(single := set(own) - common) == 1 and all(classes == common for classes in others):
            strange[name] = tuple(single)
    return strange


@dataclass(frozen=True)
class MaskedRemoteFederation:
    """What the server knows of labels that sites do not name."""

    placeholders: int
    sites: tuple[str, ...]  # that agreed on them, in the order of clients
    holds: tuple[tuple[int, ...], ...]  # which placeholders each site holds
    totals: tuple[int, ...]  # samples of each placeholder, over all sites
    counts: tuple[tuple[int, ...], ...] | None  # each site's samples of each placeholder, where the method needs them
    sealed: tuple[str, ...]  # each site's own map, which only that site can read
    bytes_up: int
    names: tuple[str, ...] = ()  # of all placeholders, which only the sites can read

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> MaskedRemoteFederation:
        """Read it out of an event."""
        known: MaskedRemoteFederation = validate(
            cls, {name: values[name] for name in cls.__annotations__ if name in values}, "labels_masked"
        )
        return known

    def known(self) -> dict[str, np.ndarray | None]:
        """Tell it as a client info does."""
        return {
            "labels": hold_table(self.holds, self.placeholders),
            "totals": np.array(self.totals),
            "counts": None if self.counts is None else np.array(self.counts),
        }


@dataclass(frozen=True)
class RemoteFederation:
    """Clients that live elsewhere, as far as the server knows them: a `FederationInfo` without any samples."""

    facts: tuple[Introduction, ...]
    classes: tuple[Label, ...]
    speeds: np.ndarray | None = None
    bandwidths: np.ndarray | None = None
    masked: MaskedRemoteFederation | None = None  # where labels are placeholders
    wrong_labels: None = None  # nobody knows
    preprocessing: Preprocessing = field(default_factory=Preprocessing)  # from raw inputs to what a network sees
    features_told: FeaturesTold | None = None
    moves: None = None  # what a site has, and when, is its own
    proxy: None = None
    names: tuple[str, ...] | None = None
    left_out: int = 0
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, sites: Mapping[str, Introduction], masked: MaskedRemoteFederation | None = None) -> RemoteFederation:
        """Put together what sites said."""
        facts = tuple(sites.values())
        classes = common_classes(sites) or tuple(range(UNKNOWN if masked is None else masked.placeholders))
        check_classes(classes)
        speeds, names = np.array([f.speed for f in facts]), tuple(sites)
        return cls(facts, classes, speeds, masked=masked, preprocessing=common_preprocessing(sites), names=names)

    def __len__(self) -> int:
        return len(self.facts)

    @property
    def inputs(self) -> Inputs:
        """From stored samples to what a network sees, the same at all sites."""
        model = self.facts[0]
        if model.unscaled is not None:
            return inputs_of(self.preprocessing, getattr(torch, model.dtype))
        return Inputs(scale=model.scale, mean=model.mean, std=model.std)

    def trial(self) -> Tensor:
        """Return something of the kind of the sites' samples to try a network with."""
        model = self.facts[0]
        shape = model.shape if self.preprocessing.shape is None else self.preprocessing.shape
        return torch.zeros((2, *shape), dtype=getattr(torch, model.dtype))

    def with_devices(self, speeds: np.ndarray | None, bandwidths: np.ndarray | None) -> RemoteFederation:
        """Return sites other devices."""
        return replace(self, speeds=speeds, bandwidths=bandwidths)

    @property
    def samples(self) -> int:
        """Training samples that sites hold."""
        return sum(facts.samples for facts in self.facts)

    @property
    def tests(self) -> int:
        """Test samples that they hold."""
        return sum(facts.tests for facts in self.facts)

    @property
    def counts(self) -> np.ndarray:
        """Label counts that sites told, [N, C], of placeholders where labels are masked; zeros where they did not."""
        if self.masked is not None and self.masked.counts is not None:
            return np.array(self.masked.counts)
        table = np.zeros((len(self.facts), len(self.classes)), dtype=np.int64)
        index = {label: i for i, label in enumerate(self.classes)}
        for row, facts in zip(table, self.facts, strict=True):
            for label, count in zip(facts.classes or (), facts.counts or (), strict=False):
                row[index[label]] = count
        return table

    @property
    def fingerprint(self) -> str:
        """What all sites hold."""
        return "-".join(facts.fingerprint[:16] for facts in self.facts)

    @property
    def identity(self) -> str:
        """What stays when sites come back with other samples, or others join: the kind of data."""
        model = self.facts[0]
        kind = (model.dtype, self.inputs, self.preprocessing.to_json(), self.classes)
        return sha256(repr(kind).encode()).hexdigest()

    def client_info(self, needs: frozenset[str], streams: Streams) -> ClientInfo:
        """Tell the server's parts what sites told."""
        sizes, speeds = (np.array([getattr(f, name) for f in self.facts]) for name in ("samples", "speed"))
        facts = {"sizes": lambda: sizes, **label_facts(lambda: self.counts), "speeds": lambda: speeds}
        client_info = ClientInfo.of(sizes, len(self.classes), facts, needs, streams)
        client_info = replace(client_info, features=0 if self.features_told is None else self.features_told.nbytes)
        if self.masked is None:
            return client_info
        placed = {name: value for name, value in self.masked.known().items() if name in needs}
        return replace(client_info, known={**client_info.known, **placed}, setup=self.masked.bytes_up)
