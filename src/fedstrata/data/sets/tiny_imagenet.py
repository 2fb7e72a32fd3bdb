"""Le and Yang, Tiny ImageNet Visual Recognition Challenge, Stanford CS231N, 2015.

`tiny-imagenet-200.zip`, packed or not: wnids.txt, train/WNID/images, val/images with val_annotations.txt. The labels
of its test images were never published: the validation images are the test set here, as in the studies. Label i is
the i-th WordNet id in alphabetical order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fedstrata.core.errors import RequestError
from fedstrata.data.files import Files
from fedstrata.data.formats.images import Picture, pictures, read_split
from fedstrata.data.published import Published
from fedstrata.data.sets.base import Arrays
from fedstrata.data.sources import Source


@dataclass(frozen=True)
class TinyImageNet(Published):
    """Photographs, 64 x 64 colour, 200 classes, 100,000 and 10,000 samples."""

    paper: ClassVar[str] = "Le and Yang, 2015"
    licence: ClassVar[str] = "ImageNet terms: non-commercial research and education"
    name: ClassVar[str] = "tiny-imagenet"
    shape: ClassVar[tuple[int, ...]] = (3, 64, 64)
    sources: ClassVar[tuple[Source, ...]] = (Source("http://cs231n.stanford.edu/tiny-imagenet-200.zip"),)
    counts: ClassVar[Mapping[Any, int]] = dict.fromkeys(range(200), 500)
    test_counts: ClassVar[Mapping[Any, int]] = dict.fromkeys(range(200), 50)

    def decode(self, files: Files) -> Arrays | None:
        """Read the images of train and val."""
        if (archive := files.one("tiny-imagenet-200.zip")) is not None:
            files = files.inside(archive)
        ids, notes = files.one("wnids.txt"), files.one("val/val_annotations.txt")
        if ids is None or notes is None:
            return None
        labels = {wnid: i for i, wnid in enumerate(sorted(files.read(ids).decode(errors="replace").split()))}
        answers = dict(
            line.split("\t")[:2] for line in files.read(notes).decode(errors="replace").splitlines() if "\t" in line
        )
        train, test = [], []
        for found in pictures(files):
            if found.folder(3) == "train" and found.folder() == "images":
                train.append(self._labelled(found, found.folder(2), labels))
            elif found.folder(2) == "val" and found.folder() == "images":
                file = found.name.rsplit("/", 1)[-1]
                if file not in answers:
                    raise RequestError(f"{files.path}: {notes} does not say the class of {found.name}")
                test.append(self._labelled(found, answers[file], labels))
        return read_split(train, test, None, mean=(0.4802, 0.4481, 0.3975), std=(0.2770, 0.2691, 0.2821))

    def _labelled(self, found: Picture, wnid: str, labels: Mapping[str, int]) -> Picture:
        if wnid not in labels:
            raise RequestError(f"{found.files.path}: {found.name} is of class {wnid}, which wnids.txt does not list")
        return Picture(found.files, found.name, labels[wnid])
