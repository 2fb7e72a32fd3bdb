"""Samples in files: the arrays of an `.npz`, and what is refused in them."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedstrata.core.errors import RequestError
from fedstrata.data.files import DAMAGE
from fedstrata.data.formats.images import Picture
from fedstrata.data.preprocessing import Place, at_row
from fedstrata.data.unpacking import check_npz, most_bytes

NAMES = {  # other names that people give their arrays
    **{a: a for a in ("x", "y", "test_x", "test_y")},
    **{f"{a}_train": a for a in ("x", "y", "client", "groups")},
    **{f"train_{a}": a for a in ("x", "y", "client", "groups")},
    **{f"{a}_test": f"test_{a}" for a in ("x", "y", "client", "groups")},
}


@dataclass(frozen=True)
class FilePart:
    """Samples as they were found, not yet looked at; images of a folder not even read."""

    x: np.ndarray | list[Picture]
    y: np.ndarray
    client: np.ndarray | None = None
    place: Place = at_row  # where a row stands in its file

    def at(self, rows: np.ndarray) -> FilePart:
        """Return some of the samples."""
        x = [self.x[row] for row in rows.tolist()] if isinstance(self.x, list) else self.x[rows]
        return FilePart(x, self.y[rows], None if self.client is None else self.client[rows])


def standard_name(key: str) -> str:
    """Return what we call an array: X, x_train and train_x are x."""
    return NAMES.get(key.lower(), key)


def npz_names_clients(path: Path) -> bool:
    """Say whether an array names the client of every sample; what is no archive names none."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [standard_name(name.removesuffix(".npy")) for name in archive.namelist()]
    except (OSError, ValueError, zipfile.BadZipFile):
        return False
    return not {"client", "groups"}.isdisjoint(names)


def read_npz(path: Path) -> tuple[FilePart, FilePart | None]:
    """Read arrays, and apart from them the test set if there is one."""
    try:
        check_npz(path, path, most_bytes(path.stat().st_size))
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:  # numpy leaves broken ones open
            arrays = {key: archive[key] for key in archive.files}
    except (ValueError, EOFError, AttributeError, MemoryError, OverflowError, *DAMAGE) as error:
        said = "it holds Python objects instead of plain arrays" if "pickle" in str(error) else str(error)
        raise RequestError(f"{path} cannot be read: {said}") from None
    arrays = {standard_name(key): array for key, array in arrays.items()}
    if lacking := [key for key in ("x", "y") if key not in arrays]:
        raise RequestError(
            f"{path} has no array {lacking[0]}; it has: {', '.join(arrays)}; needed: x (samples) and y (labels), and "
            "client, where it says who holds each"
        )
    if ("test_x" in arrays) != ("test_y" in arrays):
        raise RequestError(f"{path} needs test_x and test_y, or neither")
    client, test_client = (arrays.get(f"{p}client", arrays.get(f"{p}groups")) for p in ("", "test_"))
    train = FilePart(arrays["x"], arrays["y"], client)
    test = FilePart(arrays["test_x"], arrays["test_y"], test_client) if "test_x" in arrays else None
    for prefix, named in (("", client), ("test_", test_client)):
        found = [a for a in (arrays.get(f"{prefix}x"), arrays.get(f"{prefix}y"), named) if a is not None]
        lengths = {len(a) if a.ndim else 0 for a in found}
        if len(lengths) > 1:
            raise RequestError(f"{path}: x, y and client must have an entry a sample; they have {sorted(lengths)}")
    return train, test


def check_samples(x: np.ndarray, path: Path) -> np.ndarray:
    """Images stay uint8 [n, channels, height, width]; everything else becomes float32."""
    if x.dtype.kind not in "biuf" or x.ndim < 2:
        raise RequestError(f"{path}: x must hold numbers, [n, ...]; it has type {x.dtype} and shape {x.shape}")
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        if x.ndim == 4 and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3):
            raise RequestError(
                f"{path}: x has shape {x.shape}, but images are [n, channels, height, width]; transpose(0, 3, 1, 2)"
            )
        return x[:, None] if x.ndim == 3 else x
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused
        short = x.astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(short).all(tuple(range(1, x.ndim))))
    if len(bad):
        raise RequestError(f"{path}: {len(bad)} samples hold missing or infinite values, the first at row {bad[0]}")
    return short
