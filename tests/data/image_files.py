"""Small image files and archives, written as publishers write them."""

from __future__ import annotations

import io
import tarfile
import zipfile

import numpy as np
import pytest
from PIL import Image

from fedstrata.core.errors import RequestError
from fedstrata.data import store

RNG = np.random.default_rng(0)


def pixels(*shape):
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def encoded(array, kind="PNG"):
    """Encode [3, height, width], or [height, width] for grey."""
    out = io.BytesIO()
    Image.fromarray(array.transpose(1, 2, 0) if array.ndim == 3 else array).save(out, kind, quality=95)
    return out.getvalue()


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def zipped(folder, path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(p for p in folder.rglob("*") if p.is_file()):
            archive.write(file, file.relative_to(folder))
    return path


def tarred(folder, path):
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder, folder.name)
    return path


def fetched(part, path):
    part.fetch(path)
    return part.load()


def refused(part, path, match):
    """Nothing may be left in the data folder, under whatever name."""
    with pytest.raises(RequestError, match=match):
        part.fetch(path)
    home = store.folder()
    assert not home.exists() or list(home.iterdir()) == []
