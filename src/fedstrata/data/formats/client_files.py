"""Folders that other frameworks write, with the clients in them: LEAF's json files, and PFLlib's npz file a client.

LEAF      train/*.json and test/*.json (or *.json alone): users, num_samples, user_data
PFLlib    train/0.npz, train/1.npz, ... and test/ alike: an array `data` that holds a dict of x and y
"""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedstrata.core.errors import RequestError
from fedstrata.data.files import DAMAGE
from fedstrata.data.formats.arrays import FilePart
from fedstrata.data.unpacking import check_npz, most_bytes

# What a pickled dict of arrays is made of, under the names that numpy gave it over time; all else may be any program.
HARMLESS = {
    *((f"numpy.{core}.multiarray", name) for core in ("core", "_core") for name in ("_reconstruct", "scalar")),
    *((f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}

UNREADABLE = (pickle.UnpicklingError, AttributeError, ImportError, LookupError)  # what bytes can do to a reader


def read_client_files(path: Path) -> tuple[FilePart, FilePart | None] | None:
    """Read a folder of LEAF or PFLlib; None if it is neither."""
    for suffix, read in ((".json", _read_leaf), (".npz", _read_pfllib)):
        train, test = (sorted((path / part).glob(f"*{suffix}"), key=_by_number) for part in ("train", "test"))
        if train:
            return read(train), read(test) if test else None
    alone = sorted(file for file in path.glob("*.json") if _is_leaf(file))
    return (_read_leaf(alone), None) if alone else None


def has_client_files(path: Path) -> bool:
    """Say whether a folder looks like one of LEAF or PFLlib, without reading a file."""
    alone = any(path.glob("*.json")) and not any(child.is_dir() for child in path.iterdir())
    return alone or any(any((path / "train").glob(f"*{suffix}")) for suffix in (".json", ".npz"))


def _by_number(path: Path) -> tuple[int, str]:
    return (int(path.stem), "") if path.stem.isdecimal() else (-1, path.stem)


def _is_leaf(path: Path) -> bool:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, Mapping) and {"users", "user_data"} <= set(content)


def _read_leaf(files: Sequence[Path]) -> FilePart:
    held: dict[str, tuple[Any, Any]] = {}
    for path in files:
        try:
            content = json.loads(path.read_text())
            for user in content["users"]:
                own = content["user_data"][user]
                if str(user) in held:
                    raise RequestError(f"{path}: user {user} occurs twice")
                held[str(user)] = own["x"], own["y"]
        except (LookupError, TypeError, ValueError, RecursionError) as error:
            said = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise RequestError(f"{path} is not a file of LEAF, or is damaged: {said}") from None
    return _joined(held, files[0].parent)


def _read_pfllib(files: Sequence[Path]) -> FilePart:
    held = {}
    for path in files:
        own = _dict_in(path)
        if lacking := [key for key in ("x", "y") if key not in own]:
            raise RequestError(f"{path} has no {lacking[0]}; it has: {', '.join(map(str, own))}")
        held[path.stem] = own["x"], own["y"]
    return _joined(held, files[0].parent)


def _joined(held: Mapping[str, tuple[Any, Any]], where: Path) -> FilePart:
    """Put clients' samples together, with the name of its client at each."""
    try:
        parts = {client: (_numbers(x, client, where), np.asarray(y)) for client, (x, y) in held.items()}
    except (ValueError, OverflowError) as error:
        raise RequestError(f"{where} holds samples or labels that are no arrays: {error}") from None
    parts = {client: (x, y) for client, (x, y) in parts.items() if y.ndim == 0 or len(y)}
    if not parts:
        raise RequestError(f"{where} holds no samples")
    for client, (x, y) in parts.items():
        if y.ndim != 1 or x.ndim == 0 or len(x) != len(y):
            count = len(x) if x.ndim else 0
            raise RequestError(f"{where}: client {client} has {count} samples, and labels of shape {y.shape}")
    if len(shapes := {x.shape[1:] for x, _ in parts.values()}) > 1:
        raise RequestError(f"{where}: clients hold samples of different shapes: {sorted(shapes)}")
    clients = np.repeat(list(parts), [len(y) for _, y in parts.values()])
    x, y = (np.concatenate([part[i] for part in parts.values()]) for i in (0, 1))
    return FilePart(x, y, clients)


def _numbers(x: Any, client: str, where: Path) -> np.ndarray:
    try:
        array = np.asarray(x)
    except ValueError as error:
        raise RequestError(f"{where}: samples of client {client} must all have the same shape: {error}") from None
    if array.dtype.kind not in "biuf" and array.size:
        raise RequestError(f"{where}: samples of client {client} are text, not numbers; turn them into numbers first")
    return array


class _Harmless(pickle.Unpickler):
    """Reads arrays, and refuses what else a pickle might start."""

    def find_class(self, module: str, name: str) -> Any:
        """Look up a name, if it is one of numpy's arrays."""
        if (module, name) not in HARMLESS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not part of an array")
        return super().find_class(module, name)


def _dict_in(path: Path) -> Mapping[str, Any]:
    """Read the dict that PFLlib pickles into an npz file."""
    try:
        check_npz(path, path, most_bytes(path.stat().st_size))
        with zipfile.ZipFile(path) as archive, archive.open("data.npy") as file:
            return _unpickled(file)
    except KeyError:
        raise RequestError(f"{path} has no array `data`, as the files of PFLlib have") from None
    except (ValueError, TypeError, MemoryError, *UNREADABLE, *DAMAGE) as error:
        raise RequestError(f"{path} cannot be read as a file of PFLlib: {error}") from None


def _unpickled(file: IO[bytes]) -> Mapping[str, Any]:
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    version = np.lib.format.read_magic(file)
    if version not in read:
        raise ValueError(f"numpy's format {version} is not known")
    shape, _, dtype = read[version](file)
    if dtype.kind != "O" or shape != ():
        raise ValueError("`data` is not a dict")
    content = _Harmless(file).load()
    content = content.item() if isinstance(content, np.ndarray) else content
    if not isinstance(content, Mapping):
        raise ValueError("`data` is not a dict")
    return content
