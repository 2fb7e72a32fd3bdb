"""The files that a site's data are read from, and whether they changed since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedstrata.core import origin, registry

FileState = tuple[str, int, int]  # its name, bytes, and when it was written (nanoseconds)


def named_files(data: Mapping[str, Any]) -> list[str]:
    """Return the files and folders that a table [data] names: what its data set's own types call a path."""
    from fedstrata.data import store  # noqa: PLC0415 - numpy
    from fedstrata.data.sets.own import KEY  # noqa: PLC0415

    options = origin.path_options(registry.find("datasets", data["name"], "data.name"))
    values = [value for option in sorted(options) if isinstance(value := data.get(option), str) and value]
    files = [Path(value).expanduser().absolute() for value in values]
    if data["name"] == "own":  # it may be the name of what `fedstrata data import` has stored
        files += [store.folder() / f"{KEY}{value}" for value in values if Path(value).name == value]
    return [str(file) for file in files]


def look_at(files: Sequence[str]) -> list[FileState]:
    """Return what tells without reading them whether files changed, of folders all that is in them."""
    found = []
    for file in map(Path, files):
        for path in (file, *file.rglob("*")):
            with suppress(OSError):
                about = path.stat()
                found.append((str(path), about.st_size, about.st_mtime_ns))
    return sorted(found)
