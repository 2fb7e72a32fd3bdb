"""Tschandl et al., The HAM10000 Dataset, Scientific Data, 2018: dermatoscopic images of skin lesions.

HAM10000_metadata with the two folders or zips of images, as Harvard Dataverse and Kaggle have them; the same images as
training set of ISIC 2018's task 3; or a pack, of 28 x 28. There is no published test set with lesions: a fifth of the
lesions of every diagnosis is held out, the same for everyone. A lesion has up to six images, and all go the same way.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedstrata.core.errors import RequestError
from fedstrata.core.options import Count
from fedstrata.core.rng import Streams
from fedstrata.data.files import Files
from fedstrata.data.formats.images import pictures, read_split
from fedstrata.data.packs import check_side, read_npz, read_sprite
from fedstrata.data.partitions.base import hold_out
from fedstrata.data.published import Published
from fedstrata.data.sets.base import Arrays
from fedstrata.data.sources import Source

HELD_OUT = 0.2
DIAGNOSES = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
LESIONS = (
    "actinic keratosis or intraepithelial carcinoma",
    "basal cell carcinoma",
    "benign keratosis",
    "dermatofibroma",
    "melanoma",
    "melanocytic nevus",
    "vascular lesion",
)
MEAN, STD = (0.7630, 0.5456, 0.5700), (0.1409, 0.1526, 0.1700)
ISIC = "https://isic-challenge-data.s3.amazonaws.com/2018/ISIC2018_Task3_Training"


@dataclass(frozen=True)
class Ham10000(Published):
    """Skin lesions, colour, 7 diagnoses, 10,015 samples, lesion as group."""

    paper: ClassVar[str] = "Tschandl et al., Scientific Data 2018"
    licence: ClassVar[str] = "CC BY-NC 4.0"
    name: ClassVar[str] = "ham10000"
    sources: ClassVar[tuple[Source, ...]] = (
        Source(f"{ISIC}_Input.zip"),
        Source(f"{ISIC}_GroundTruth.zip"),
        Source(f"{ISIC}_LesionGroupings.csv"),
    )
    counts: ClassVar[Mapping[Any, int]] = dict(
        zip(DIAGNOSES, (327, 514, 1099, 115, 1113, 6705, 142), strict=True)  # of train and test together
    )

    size: Count = 28  # pixels a side; the originals are 600 x 450

    @property
    def label_names(self) -> Mapping[Any, str]:
        """As the paper's table has them."""
        return dict(zip(DIAGNOSES, LESIONS, strict=True))

    @property
    def key(self) -> str:
        """Each size is stored by itself."""
        return f"{self.name}-{self.size}"

    def outline(self) -> tuple[tuple[int, ...], int, int]:
        """Return the shape of a sample, which follows the size, and about how many a split by lesions gives."""
        samples = sum(self.counts.values())
        test = round(HELD_OUT * samples)
        return (3, self.size, self.size), samples - test, test

    def decode(self, files: Files) -> Arrays | None:
        """Read the table and the images it names, or the pack."""
        if (pack := read_npz(files, "ham10000_labels.npz.xz")) is not None:
            check_side(files, self.size, 28)
            x = read_sprite(files, "ham10000_28px.webp", len(pack["y"]), 28)
            y, lesions = np.array(DIAGNOSES)[pack["y"]], pack["lesion_id"].astype(str)
            train, test = _split(y, lesions)
            return Arrays(x[train], y[train], x[test], y[test], lesions[train], lesions[test], MEAN, STD)
        archives = files.find("HAM10000_images_part_?.zip", "ISIC2018_Task3_Training_*.zip")
        places = [files, *(files.inside(name) for name in archives)]
        table = _dataverse(places) or _isic(places)
        if table is None:
            return None
        at = {Path(found.name).stem: found for found in reversed(pictures(*places))}
        missing = sorted(table.keys() - at.keys())
        if missing:
            raise RequestError(
                f"{files.path}: {len(missing)} of the {len(table)} images are not there, the first {missing[0]}; "
                "put both parts of the images beside the table"
            )
        found = [replace(at[image], label=dx, group=lesion) for image, (dx, lesion) in sorted(table.items())]
        train, test = _split(np.array([p.label for p in found]), np.array([p.group for p in found]))
        return read_split([found[i] for i in train], [found[i] for i in test], self.size, MEAN, STD)

    def check(self, arrays: Arrays, path: Path) -> bool:
        """Check train and test together: how many images the lesions held out have is not published."""
        return super().check(replace(arrays, y=np.concatenate([arrays.y, arrays.test_y])), path)


def _split(labels: np.ndarray, lesions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Hold out lesions, not images, so that no lesion is on both sides."""
    _, first, lesion = np.unique(lesions, return_index=True, return_inverse=True)
    _, held = hold_out(np.arange(len(first)), labels[first], HELD_OUT, Streams(0)("ham10000"))
    tested = np.isin(lesion, held)
    return np.flatnonzero(~tested), np.flatnonzero(tested)


def _dataverse(places: Sequence[Files]) -> dict[str, tuple[str, str]] | None:
    """Read image -> (diagnosis, lesion) from HAM10000_metadata."""
    rows = _table(places, ("lesion_id", "image_id", "dx"), *(f"HAM10000_metadata{end}" for end in ("", ".csv", ".tab")))
    return None if rows is None else {row["image_id"]: (row["dx"], row["lesion_id"]) for row in rows}


def _isic(places: Sequence[Files]) -> dict[str, tuple[str, str]] | None:
    """Read the same from ISIC's two tables, one with a column a diagnosis, one with the lesions."""
    truths = _table(places, ("image", *map(str.upper, DIAGNOSES)), "ISIC2018_Task3_Training_GroundTruth.csv")
    lesions = _table(places, ("image", "lesion_id"), "ISIC2018_Task3_Training_LesionGroupings.csv")
    if truths is None or lesions is None:
        return None
    lesion = {row["image"]: row["lesion_id"] for row in lesions}
    table = {}
    for row in truths:
        image, said = row["image"], [dx for dx in DIAGNOSES if row[dx.upper()].strip() in ("1", "1.0")]
        if len(said) != 1 or image not in lesion:
            raise RequestError(f"ISIC 2018's tables do not give {image} one diagnosis and a lesion")
        table[image] = (said[0], lesion[image])
    return table


def _table(places: Sequence[Files], columns: Sequence[str], *names: str) -> list[dict[str, str]] | None:
    for files in places:
        if (name := files.one(*names)) is None:
            continue
        lines = files.read(name).decode("utf-8-sig", errors="replace").splitlines()
        rows = list(csv.DictReader(lines, delimiter="\t" if lines and "\t" in lines[0] else ","))
        short = [c for c in columns if any(row.get(c) is None for row in rows)] if rows else list(columns)
        if short:
            raise RequestError(f"{files.path}: {name} has no column {short[0]}, or a row is cut off there")
        return rows
    return None
