"""A copy of a run folder while the run goes on, from which it can be resumed.

A run replaces its checkpoint after every round, and removes the files of the one before. So the files that CURRENT
names are opened first, all of them: what is open stays whole, whatever becomes of its name. The events are copied after
them, because a checkpoint must not run ahead of its events.
"""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack, suppress
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from fedstrata.core.errors import RequestError

CHECKPOINT, CURRENT, EVENTS, SUMMARY = "checkpoint", "CURRENT", "events.jsonl", "summary.json"
LEFT = ("*.part", "lock")  # what only a process needs
CALM = 3  # copies at most until one is taken during which the run wrote no checkpoint
OFTEN = 100  # times at most that the files of a checkpoint are opened, each of which takes next to no time
PIECE = 1 << 20


def copy_run(run: Path, place: Path) -> None:
    """Copy a run folder, so that its files fit each other; `place` is not there yet."""
    for _ in range(CALM):  # the last try counts in any case: the run may be quick, or its disk bad
        before = _moment(run)
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        _copy(run, place, SUMMARY)  # first: it promises models, which a run writes before it
        whole = _copy_checkpoint(run / CHECKPOINT, place / CHECKPOINT)
        _copy(run, place, EVENTS)
        _copy_others(run, place)
        if whole and _moment(run) == before:
            return


def _moment(run: Path) -> tuple[bytes, bytes]:
    """Return what changes with every checkpoint, and when a run is finished or goes on."""
    return _content(run / CHECKPOINT / CURRENT), _content(run / SUMMARY)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _copy_checkpoint(folder: Path, place: Path) -> bool:
    """Copy the checkpoint that CURRENT names; say whether its files are what it says."""
    if not folder.is_dir():
        return True
    place.mkdir()
    for _ in range(OFTEN):
        current = _content(folder / CURRENT)
        with ExitStack() as files:
            try:
                names = _named(folder, current)
                held = {name: files.enter_context((folder / name).open("rb")) for name in names}
            except FileNotFoundError:  # there is a later one by now
                continue
            found = {name: _write(file, place / name) for name, file in held.items()}
        if current:
            (place / CURRENT).write_bytes(current)
        for path in folder.glob("sum-*"):  # what sites gave for the round after it; the next checkpoint removes them
            if path.suffix != ".part":
                _copy(folder, place, path.name)
        return all(names[name] in (None, digest) for name, digest in found.items())
    raise RequestError(
        f"{folder} changes faster than it can be copied; try again, or leave the folders of runs out: --no-runs"
    )


def _named(folder: Path, current: bytes) -> dict[str, str | None]:
    """Return the files of a checkpoint, the manifest and those that it names, with their SHA-256.

    Of a checkpoint that cannot be read, whatever is there: that it is damaged is for whoever resumes the run to say.
    """
    if not current:
        return {}
    try:
        entry = json.loads(current)
        told = json.loads((folder / Path(entry["file"]).name).read_bytes())
        entries = [entry, told["server"], *told.get("stored", {}).values(), *(file for _, _, file in told["clients"])]
        return {Path(each["file"]).name: each["sha256"] for each in entries}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {path.name: None for path in folder.iterdir() if path.is_file() and path.name != CURRENT}


def _copy_others(run: Path, place: Path) -> None:
    """Copy what is neither checkpoint nor events; what is gone meanwhile is not needed."""
    for path in sorted(run.rglob("*")):
        name = path.relative_to(run)
        known = name.parts[0] == CHECKPOINT or str(name) in (EVENTS, SUMMARY)
        if not known and path.is_file() and not any(path.match(pattern) for pattern in LEFT):
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            _copy(run, place, str(name))


def _copy(run: Path, place: Path, name: str) -> None:
    with suppress(FileNotFoundError):
        shutil.copy2(run / name, place / name)


def _write(file: BinaryIO, path: Path) -> str:
    digest = sha256()
    with path.open("wb") as copy:
        while piece := file.read(PIECE):
            digest.update(piece)
            copy.write(piece)
    return digest.hexdigest()
