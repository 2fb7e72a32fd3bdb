"""The data folder: every data set once, decoded, as plain arrays that are mapped into memory.

    FEDSTRATA_DATA/NAME/about.json    classes, source, checksums, licence
    FEDSTRATA_DATA/NAME/*.npy         x, y, groups, test_x, test_y, test_groups

The folder is the environment variable FEDSTRATA_DATA, or ~/.cache/fedstrata. A data set appears there whole or not at
all.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedstrata.core.errors import RequestError
from fedstrata.data.preprocessing import Preprocessing
from fedstrata.data.sets.base import Arrays

FIELDS = ("x", "y", "groups", "test_x", "test_y", "test_groups")


def folder() -> Path:
    """Return the data folder."""
    return Path(os.environ.get("FEDSTRATA_DATA", "~/.cache/fedstrata")).expanduser()


def prepare() -> Path:
    """Make the data folder; refuse one that cannot be written before any work is done for it."""
    home = folder()
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=home):
            return home
    except OSError as error:
        raise RequestError(
            f"the data folder {home} cannot be written: {error}; set FEDSTRATA_DATA to another"
        ) from None


def put(name: str, arrays: Arrays, about: Mapping[str, Any]) -> Path:
    """Write a data set, in place of an older one of that name."""
    target = prepare() / name
    part = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=target.parent))
    try:
        for field in FIELDS:
            if (array := getattr(arrays, field)) is not None:
                np.save(part / f"{field}.npy", array, allow_pickle=False)
        done = None if arrays.preprocessing is None else json.loads(arrays.preprocessing.to_json())
        normal = {"mean": arrays.mean, "std": arrays.std, "preprocessing": done, "scale": arrays.scale}
        (part / "about.json").write_text(json.dumps({**about, **normal}, indent=2) + "\n")
        part.chmod(0o777 & ~_umask())  # a folder that several people share stays readable
        _exchange(part, target)
    except OSError as error:
        raise RequestError(f"{target} cannot be written: {error}") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return target


def _exchange(part: Path, target: Path) -> None:
    """Put the new set in place of the old one, which is removed only after that has worked."""
    old = part.with_name(f"{part.name}-old")
    if target.exists():
        os.replace(target, old)
    try:
        os.replace(part, target)
    except OSError:
        if old.exists():
            os.replace(old, target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def get(name: str) -> Arrays | None:
    """Map a data set into memory; None if it was never put there."""
    home = folder() / name
    if not (home / "about.json").exists():
        return None
    # Copy-on-write: torch takes only writable memory, and nothing ever reaches the file.
    try:
        loaded = {f: np.load(home / f"{f}.npy", mmap_mode="c") for f in FIELDS if (home / f"{f}.npy").exists()}
    except (OSError, ValueError) as error:
        raise RequestError(f"{home} is damaged: {error}; fetch it again") from None
    said = about(name)
    normal: dict[str, Any] = {key: said.get(key) and tuple(said[key]) for key in ("mean", "std")}
    done = said.get("preprocessing")
    preprocessing = None if done is None else Preprocessing.from_json(json.dumps(done))
    return Arrays(**loaded, **normal, preprocessing=preprocessing, scale=said.get("scale"))


def has_groups(name: str) -> bool:
    """Say whether a data set that is there says which group each sample is of."""
    return (folder() / name / "groups.npy").exists()


def about(name: str) -> dict[str, Any]:
    """Read what is known of a data set; empty if it is not there."""
    path = folder() / name / "about.json"
    try:
        said: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    except (OSError, ValueError) as error:
        raise RequestError(f"{path} is damaged: {error}; fetch the set again") from None
    return said


def names() -> list[str]:
    """Return the data sets that are there."""
    return sorted(path.parent.name for path in folder().glob("[!.]*/about.json"))
