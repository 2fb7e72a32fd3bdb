"""A server's state in one file, and back: who may connect, what Flower knows, the book of runs and their folders.

    manifest.json    what made it, and the SHA-256 of every file
    state/           the server's folder under FEDSTRATA_STATE
    keys/            its keys, where that was asked for
    runs/N/          the folders of its runs

The database is copied while it is in use, as one moment has it, and so is each run (`run_copy.py`). Logs and what only
processes need stay behind.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedstrata import __version__
from fedstrata.core.errors import RequestError
from fedstrata.core.storage.archives import unpack
from fedstrata.core.storage.json_log import append
from fedstrata.deploy import state
from fedstrata.deploy.operators.run_copy import copy_run
from fedstrata.deploy.processes import running
from fedstrata.deploy.server.auth_proxy import NODES
from fedstrata.deploy.server.run_book import FILE as BOOK
from fedstrata.deploy.server.run_book import read_booked
from fedstrata.deploy.state import QUEUE
from fedstrata.remote.roll import FILE as ROLL
from fedstrata.remote.server.orders import FILE as ORDERS

FORMAT = 1
MANIFEST = "manifest.json"
CALM = 3  # times at most that the state is copied
KEPT = (NODES, "met.json", "server.json", "run", BOOK, ROLL, ORDERS, "log.jsonl")  # and databases
DATABASES = ("superlink.db", "insecure.db")


def backup(port: int, file: Path, with_keys: bool = False, with_runs: bool = True) -> dict[str, Any]:
    """Write a server's state into a file that only its owner can read; say what is in it."""
    folder = state.of_server(port)
    if not any((folder / name).exists() for name in DATABASES):
        raise RequestError(f"there is no server's state in {folder}: nothing to back up")
    if file.exists():
        raise RequestError(f"{file} is there already; name another file")
    with tempfile.TemporaryDirectory(prefix="backup-", dir=folder) as name:
        place = Path(name)
        told = {"format": FORMAT, "version": __version__, "port": port, "runs": {}, "keys": False}
        _copy_state(folder, place / "state")
        if with_keys and (keys := _keys_of(folder)) is not None:
            shutil.copytree(keys, place / "keys")
            told["keys"] = True
        if with_runs:
            told["runs"] = _copy_runs(folder, place / "runs")
        told["files"] = {str(path.relative_to(place)): _hash(path) for path in _files(place)}
        (place / MANIFEST).write_text(json.dumps(told, indent=2) + "\n")
        _pack(place, file)
    return told


def restore(file: Path, port: int | None = None, runs: Path | None = None, keys: Path | None = None) -> dict[str, Any]:
    """Bring a server's state back to a machine that has none; nothing that is there is written over."""
    try:
        with tarfile.open(file) as archive, tempfile.TemporaryDirectory(prefix="restore-") as name:
            unpack(archive, Path(name))
            return _restore(Path(name), port, runs or Path("runs"), keys)
    except (OSError, tarfile.TarError, EOFError) as error:
        raise RequestError(f"{file} cannot be read: {error}") from None


def _restore(place: Path, port: int | None, runs: Path, keys: Path | None) -> dict[str, Any]:
    told = _checked(place)
    port = port or int(told["port"])
    folder = state.of_server(port)
    if running(folder):
        raise RequestError(f"a server runs on port {port} of this machine; end it first")
    if folder.exists() and any((folder / name).exists() for name in (*DATABASES, NODES)):
        raise RequestError(f"{folder} holds the state of a server; move it away first")
    homes = {number: (runs / Path(old).name).absolute() for number, old in told["runs"].items()}
    if there := [home for home in homes.values() if home.exists()]:
        raise RequestError(f"{there[0]} is there already; name another folder with --runs")
    if told["keys"] and keys is None:
        raise RequestError("the file holds the server's keys; say where they go: --keys DIR")
    if keys is not None and keys.exists():
        raise RequestError(f"--keys {keys} is there already; name another folder")
    state.private(folder)
    shutil.copytree(place / "state", folder, dirs_exist_ok=True)
    for path in (folder, *filter(Path.is_dir, folder.iterdir())):  # archives do not keep the modes of folders
        path.chmod(0o700)
    for number, home in homes.items():
        home.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(place / "runs" / number, home)
    if told["keys"] and keys is not None:
        shutil.copytree(place / "keys", keys)
        keys.chmod(0o700)
    _move(folder, {old: str(homes[number]) for number, old in told["runs"].items()})
    return {"folder": str(folder), "port": port, "runs": [str(home) for home in homes.values()], "keys": told["keys"]}


def _checked(place: Path) -> dict[str, Any]:
    """Read the manifest, and hold all files against it."""
    try:
        told: dict[str, Any] = json.loads((place / MANIFEST).read_text())
        if told["format"] != FORMAT:
            raise RequestError(f"the backup has format {told['format']}, and this version reads {FORMAT}")
        wrong = {name for name, digest in told["files"].items() if _hash(place / name) != digest}
        more = {str(path.relative_to(place)) for path in _files(place)} - {*told["files"], MANIFEST}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise RequestError(f"the backup has no {MANIFEST} that can be read, or lacks a file that it names") from None
    if wrong or more:
        raise RequestError(f"the backup was changed: {min(wrong | more)} is not what its manifest says")
    return told


def _copy_state(folder: Path, place: Path) -> None:
    place.mkdir(mode=0o700)
    for _ in range(CALM):  # until nobody was let in or shut out meanwhile: the notes and the database must agree
        before = _stamp(folder / NODES)
        for name in KEPT:
            if (folder / name).exists():
                shutil.copy2(folder / name, place / name)
        for name in DATABASES:
            if (folder / name).exists():
                _copy_database(folder / name, place / name)
        if _stamp(folder / NODES) == before:
            break
    if numbers := [int(path.name.partition(".")[0]) for path in (folder / QUEUE).glob("[0-9]*.*")]:
        (place / QUEUE).mkdir(mode=0o700)
        (place / QUEUE / f"{max(numbers)}.lock").touch()  # what was said to a run must be heard by no later one


def _copy_database(live: Path, copy: Path) -> None:
    with (
        closing(sqlite3.connect(f"file:{live}?mode=ro", uri=True)) as source,
        closing(sqlite3.connect(copy)) as target,
    ):
        source.backup(target)
    copy.chmod(0o600)


def _stamp(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


def _copy_runs(folder: Path, place: Path) -> dict[str, str]:
    """Copy the folders of runs that are still there; give their old places by number."""
    there = [run.path for run in read_booked(folder) if Path(run.path).is_dir()]
    for number, path in enumerate(there):
        copy_run(Path(path), place / str(number))
    return {str(number): path for number, path in enumerate(there)}


def _move(folder: Path, homes: dict[str, str]) -> None:
    """Let the book of runs, and the note of the latest one, name the folders where they are now."""
    known = read_booked(folder)
    (folder / BOOK).unlink(missing_ok=True)
    for run in known:
        append(folder / BOOK, asdict(replace(run, path=homes.get(run.path, run.path))))
    note = folder / "run"
    if note.exists():
        note.write_text(homes.get(note.read_text(), note.read_text()))


def _keys_of(folder: Path) -> Path | None:
    try:
        keys = json.loads((folder / "server.json").read_text())["keys"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Path(keys) if keys and Path(keys).is_dir() else None


def _pack(place: Path, file: Path) -> None:
    part = file.with_name(f".{file.name}.part")
    try:
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as out, tarfile.open(fileobj=out, mode="w:gz") as archive:
            for path in sorted(place.iterdir()):
                archive.add(path, path.name)
        os.replace(part, file)
    except OSError as error:
        raise RequestError(f"{file} cannot be written: {error}") from None
    finally:
        part.unlink(missing_ok=True)


def _files(place: Path) -> Iterator[Path]:
    return (path for path in sorted(place.rglob("*")) if path.is_file())


def _hash(path: Path) -> str:
    digest = sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
