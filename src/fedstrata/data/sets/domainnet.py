"""Peng et al., Moment Matching for Multi-Source Domain Adaptation, ICCV 2019: DomainNet, cleaned version.

A zip or folder a domain with DOMAIN/CLASS/FILE, and the lists DOMAIN_train.txt and DOMAIN_test.txt beside it. Domains
may be left out, with their lists.

Federated studies use ten classes of its 345, and not the same ones: those of FedBSS (AAAI 2025), the default, and those
of FedBN (ICLR 2021) have `bird` in common. What FedBSS calls ball is `basketball`, as in the code of a study that uses
the same ten (labels 1, 73, 11, 19, 29, 31, 290, 121, 225 and 39): DomainNet has no class of that name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from fedstrata.core.errors import RequestError
from fedstrata.core.options import Count
from fedstrata.data.files import Files
from fedstrata.data.formats.images import IMAGENET_MEAN, IMAGENET_STD, Picture, pictures, read_split
from fedstrata.data.published import Published
from fedstrata.data.sets.base import Arrays
from fedstrata.data.sources import Source

LISTED = {  # images in the lists of a domain, train and test, all classes
    "clipart": (33525, 14604),
    "infograph": (36023, 15582),
    "painting": (50416, 21850),
    "quickdraw": (120750, 51750),
    "real": (120906, 52041),
    "sketch": (48212, 20916),
}
TEN = {
    "fedbss": (
        *("airplane", "axe", "basketball", "bicycle", "bird"),
        *("bracelet", "clock", "flower", "pizza", "strawberry"),
    ),
    "fedbn": (
        *("bird", "feather", "headphones", "ice_cream", "teapot"),
        *("tiger", "whale", "windmill", "wine_glass", "zebra"),
    ),
}
ALL = 345
PARTS = ("train", "test")
HOME = "http://csr.bu.edu/ftp/visda/2019/multi-source"


@dataclass(frozen=True)
class DomainNet(Published):
    """Clip art, infographics, paintings, sketches, drawings and photos, 10 or 345 classes, domain as group."""

    paper: ClassVar[str] = "Peng et al., ICCV 2019"
    licence: ClassVar[str] = "fair use, for non-commercial research and education"
    name: ClassVar[str] = "domainnet"
    sources: ClassVar[tuple[Source, ...]] = (
        *(
            Source(f"{HOME}/{'groundtruth/' if domain in ('clipart', 'painting') else ''}{domain}.zip")
            for domain in LISTED
        ),
        *(Source(f"{HOME}/domainnet/txt/{domain}_{part}.txt") for domain in LISTED for part in PARTS),
    )

    classes: Literal["fedbss", "fedbn", "all"] = "fedbss"  # the ten of a study, or all 345
    size: Count = 64  # pixels a side; the originals differ

    @property
    def key(self) -> str:
        """Each choice of classes and size is stored by itself."""
        return f"{self.name}-{self.classes}-{self.size}"

    def outline(self) -> tuple[tuple[int, ...], int, int]:
        """Return the shape of a sample, and about how many there are: as if all classes were as frequent."""
        share = 1.0 if self.classes == "all" else len(TEN[self.classes]) / ALL
        train, test = (round(share * sum(listed)) for listed in zip(*LISTED.values(), strict=True))
        return (3, self.size, self.size), train, test

    def decode(self, files: Files) -> Arrays | None:
        """Read the images that the lists name, domain by domain."""
        parts: dict[str, list[Picture]] = {part: [] for part in PARTS}
        places = [files, *(files.inside(name) for name in files.find(*(f"{domain}.zip" for domain in LISTED)))]
        at: dict[str, Picture] = {}
        for domain in LISTED:
            lists = {part: files.one(f"{domain}_{part}.txt") for part in PARTS}
            if not any(lists.values()):
                continue
            at = at or {"/".join(p.name.split("/")[-3:]): p for p in pictures(*places)}
            for i, (part, name) in enumerate(lists.items()):
                if name is None:
                    raise RequestError(f"{files.path} is incomplete: there is no {domain}_{part}.txt")
                parts[part] += self._listed(files, name, LISTED[domain][i], at)
        if not any(parts.values()):
            return None
        return read_split(parts["train"], parts["test"], self.size, IMAGENET_MEAN, IMAGENET_STD)

    def _listed(self, files: Files, name: str, published: int, at: Mapping[str, Picture]) -> list[Picture]:
        """Find the images of a list; its lines are DOMAIN/CLASS/FILE and a number."""
        lines = [
            line.rsplit(maxsplit=1) for line in files.read(name).decode(errors="replace").splitlines() if line.strip()
        ]
        if bad := [line for line in lines if len(line) != 2 or line[0].count("/") != 2]:
            raise RequestError(f'{files.path}: {name} has a line "{" ".join(bad[0])}", not DOMAIN/CLASS/FILE NUMBER')
        if len(lines) > published:
            raise RequestError(f"{files.path}: {name} lists {len(lines)} images, domainnet has {published}")
        wanted = [path for path, _ in lines if self.classes == "all" or path.split("/")[1] in TEN[self.classes]]
        if missing := [path for path in wanted if path not in at]:
            raise RequestError(f"{files.path}: {len(missing)} images of {name} are not there, the first {missing[0]}")
        found = []
        for path in wanted:
            domain, label, _ = path.split("/")
            found.append(Picture(at[path].files, at[path].name, label, domain))
        return found

    def check(self, arrays: Arrays, path: Path) -> bool:
        """Nothing is published by class: the lists were checked by domain, and the number of classes is here."""
        classes, domains = np.unique(arrays.y), {*arrays.groups.tolist()} if arrays.groups is not None else set()
        most = ALL if self.classes == "all" else len(TEN[self.classes])
        if len(classes) > most:
            raise RequestError(f"{path}: {len(classes)} classes, domainnet has {most}")
        if strange := set(np.unique(arrays.test_y)) - set(classes):
            raise RequestError(f"{path}: class {min(strange)} is in the test lists only")
        whole = tuple(sum(images) for images in zip(*LISTED.values(), strict=True))
        complete = self.classes != "all" or (len(arrays.y), len(arrays.test_y)) == whole
        return len(classes) < most or len(domains) < len(LISTED) or not complete
