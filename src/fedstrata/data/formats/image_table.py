"""Parquet files with images in them, as Hugging Face publishes data sets: a column of encoded images, one of labels."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from fedstrata.core.errors import RequestError
from fedstrata.data.formats.arrays import FilePart
from fedstrata.data.formats.image_folder import GREY
from fedstrata.data.formats.images import read_image
from fedstrata.data.formats.tabular import open_parquet


def read_image_table(path: Path, label: str, client: str | None, size: int | None) -> FilePart | None:
    """Read a Parquet file of images; None if no column holds any."""
    table = open_parquet(path)
    found = [name for name in table.column_names if _is_image(table.schema.field(name).type)]
    if not found:
        return None
    if len(found) > 1:
        raise RequestError(f"{path} has several columns of images: {', '.join(found)}; keep one of them")
    for option, name in (("label", label), ("client", client)):
        if name is not None and name not in table.column_names:
            raise RequestError(
                f'data.{option} = "{name}" is not a column of {path}; its columns: {", ".join(table.column_names)}'
            )
    images = [_bytes(cell) for cell in table.column(found[0]).to_pylist()]
    if missing := [row for row, data in enumerate(images) if data is None]:
        raise RequestError(f"{path}: {len(missing)} images are missing, the first at row {missing[0]}")
    if not images:
        raise RequestError(f"{path} has no rows")
    labels = _labels(table, label, path)
    clients = None if client is None else np.array([str(name) for name in table.column(client).to_pylist()])
    return FilePart(_decoded([data for data in images if data is not None], size, path), labels, clients)


def _is_image(kind: Any) -> bool:
    """Say whether cells are bytes, or have bytes beside the path of their file."""
    if hasattr(kind, "num_fields") and kind.num_fields and str(kind).startswith("struct"):
        return any(kind.field(i).name == "bytes" for i in range(kind.num_fields))
    return str(kind) in ("binary", "large_binary")


def _bytes(cell: Any) -> bytes | None:
    return cell.get("bytes") if isinstance(cell, dict) else cell


def _labels(table: Any, label: str, path: Path) -> np.ndarray:
    """Return labels, by the names that Hugging Face writes beside the table where it does."""
    labels = table.column(label).to_pylist()
    if missing := [row for row, name in enumerate(labels) if name is None]:
        raise RequestError(f"{path}: {len(missing)} labels are missing, the first at row {missing[0]}")
    try:
        about = json.loads((table.schema.metadata or {}).get(b"huggingface", b"{}"))
        names = about["info"]["features"][label]["names"]
        return np.array([names[number] for number in labels])
    except (KeyError, TypeError, ValueError, IndexError):
        return np.array(labels)


def _decoded(images: Sequence[bytes], size: int | None, path: Path) -> np.ndarray:
    channels, decoded = 1, []
    try:
        for data in images:
            with Image.open(io.BytesIO(data)) as image:
                channels = max(channels, 1 if image.mode in GREY else 3)
    except (OSError, UnidentifiedImageError) as error:
        raise RequestError(f"{path}: an image cannot be read: {error}") from None
    for row, data in enumerate(images):
        try:
            decoded.append(read_image(data, size, channels))
        except RequestError as error:
            raise RequestError(f"{path}: row {row}: {error}") from None
        if decoded[-1].shape != decoded[0].shape:
            (h, w), (other_h, other_w) = decoded[0].shape[1:], decoded[-1].shape[1:]
            raise RequestError(
                f"{path}: images have different sizes: row 0 is {w} x {h}, row {row} is {other_w} x {other_h}; give a "
                "data.size to scale all of them to"
            )
    return np.stack(decoded)
