"""What is in the data folder, beside what could be: one row a data set, as `fedstrata data list` shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedstrata.core import registry
from fedstrata.core.errors import RequestError
from fedstrata.data import store
from fedstrata.data.published import Published
from fedstrata.data.sets.hugging_face import HuggingFace
from fedstrata.data.sets.own import Own
from fedstrata.data.store import folder

__all__ = ["describe_embedded", "folder", "row", "rows"]


def rows() -> list[dict[str, Any]]:
    """Return a row for everything stored, and for every named set of which nothing is."""
    stored = [_stored(key) for key in store.names()]
    found = []
    for name in registry.names("datasets"):
        part = registry.find("datasets", name, "NAME")
        of = [r for r in stored if r["name"] == name]
        if issubclass(part, Published):
            found += of or [_row(name, name, licence=part.licence)]
        elif not issubclass(part, (Own, HuggingFace)):  # which hold what a user names
            found.append(describe_embedded(name))
    named = set(registry.names("datasets"))
    return found + [r for r in stored if r["name"] == "own" or (r["damaged"] and r["name"] not in named)]


def row(key: str) -> dict[str, Any]:
    """Describe a data set that is stored."""
    home, said = store.folder() / key, store.about(key)
    sizes = {f: len(np.load(home / f"{f}.npy", mmap_mode="r")) for f in store.FIELDS if _expected(home, f)}
    return _row(
        said["name"],
        key,
        fetched=True,
        complete=said["complete"],
        verified=said["verified"],
        options=said["options"],
        samples=sizes["y"],
        test_samples=sizes["test_y"],
        licence=said["licence"],
        bytes=sum(file.stat().st_size for file in home.iterdir()),
        path=str(home),
        source=said["source"],
    )


def _expected(home: Path, field: str) -> bool:
    return not field.endswith("groups") or (home / f"{field}.npy").exists()


def _stored(key: str) -> dict[str, Any]:
    """Describe a data set that is stored, as far as its files can be read."""
    try:
        return row(key)
    except (RequestError, OSError, EOFError, ValueError, LookupError, TypeError):
        named = [name for name in registry.names("datasets") if key == name or key.startswith(f"{name}-")]
        home = store.folder() / key
        return _row(max(named, key=len, default=key), key, fetched=True, damaged=True, path=str(home))


def describe_embedded(name: str) -> dict[str, Any]:
    """Describe a data set that needs no fetching."""
    part = registry.build("datasets", name, {}, "data")
    arrays = part.load()
    sizes = {"samples": len(arrays.y), "test_samples": len(arrays.test_y)}
    said = {"fetched": True, "embedded": True, "complete": True, "verified": True}
    return _row(name, name, **said, **sizes, licence=part.licence)


def _row(name: str, key: str, **known: Any) -> dict[str, Any]:
    return {
        "name": name,
        "key": key,
        "options": {},
        "fetched": False,
        "embedded": False,
        "damaged": False,
        "complete": None,
        "verified": None,
        "samples": None,
        "test_samples": None,
        "licence": "",
        "bytes": 0,
        "path": None,
        "source": None,
        **known,
    }
