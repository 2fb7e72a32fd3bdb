"""The run folder: experiment, events, checkpoints, final model, summary.

experiment.toml     the experiment, resolved
events.jsonl        one JSON object a line; `wall` holds what a clock said and is never compared
checkpoint/         CURRENT names the manifest that counts; see `Checkpoints`
model.safetensors   the final model, tensors by name
summary.json        the outcome
lock                empty; locked while a process runs here
"""

from __future__ import annotations

import errno
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedstrata.core import tree
from fedstrata.core.engine import ClientStates
from fedstrata.core.errors import RequestError
from fedstrata.core.file_lock import is_locked, take_lock
from fedstrata.core.files import sync_folder, write_atomically
from fedstrata.core.messages import Tag, Tensors

LOCK = "lock"


class Run:
    """One run and the folder that holds it. `train` and `resume` give one; `Run("runs/fedavg-1")` reads an old one.

    Parameters
    ----------
    path
        The run folder.

    Attributes
    ----------
    path
        The run folder.
    checkpoints
        What `resume` goes on from.

    Examples
    --------
    >>> import fedstrata
    >>> run = fedstrata.train(overrides={"train.rounds": 2}, out="runs/short")
    >>> run.summary["rounds"], run.summary["stopped"]
    (2, 'all rounds played')
    >>> len(run.curve("accuracy"))
    2
    >>> sorted(run.model())
    ['head.bias', 'head.weight', 'layer0.bias', 'layer0.weight']
    >>> fedstrata.Run("runs/short").events()[-1]["event"]
    'round'
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.checkpoints = Checkpoints(self.path / "checkpoint")

    def __repr__(self) -> str:
        done = self.summary
        said = (
            f"{done['method']}, accuracy {done['accuracy']:.4f} after {done['rounds']} rounds"
            if done
            else "not finished"
        )
        return f"Run({str(self.path)!r}: {said})"

    @classmethod
    def create(cls, path: Path, experiment: str) -> Run:
        """Make a new run folder; one that holds a run already is never touched.

        Parameters
        ----------
        path
            A folder that is empty or not there.
        experiment
            The experiment, as TOML.

        Returns
        -------
        Run

        Raises
        ------
        RequestError
            If `path` is a file, or holds a run or other files.
        """
        if path.is_file():
            raise RequestError(f"{path} is a file; a run needs a folder of its own")
        if path.is_dir() and any(path.iterdir()) and not (path / "experiment.toml").exists():
            raise RequestError(f"{path} holds other files; a run needs a folder of its own")
        if (path / "experiment.toml").exists():
            raise RequestError(
                f"{path} already holds a run: continue it with --resume {path}, or choose another folder"
            )
        with _storage(path):
            path.mkdir(parents=True, exist_ok=True)
            write_atomically(path / "experiment.toml", experiment.encode())
            (path / "events.jsonl").touch()
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> Run:
        """Open an existing run.

        Parameters
        ----------
        path
            Its folder.

        Returns
        -------
        Run

        Raises
        ------
        RequestError
            If it is not a run folder.
        """
        missing = [name for name in ("experiment.toml", "events.jsonl") if not (path / name).is_file()]
        if missing:
            raise RequestError(f"{path} is not a run folder: it has no {' and no '.join(missing)}")
        return cls(path)

    @classmethod
    def claim(cls, root: Path, stem: str) -> Path:
        """Make the next free folder; two processes never get the same one.

        Parameters
        ----------
        root
            Where.
        stem
            Its name, to which a number is added.

        Returns
        -------
        Path
            Such as "runs/fedavg-3".
        """
        with _storage(root):
            root.mkdir(parents=True, exist_ok=True)
            for number in count(1):
                with suppress(FileExistsError):
                    (path := root / f"{stem}-{number}").mkdir()
                    return path
        raise AssertionError("unreachable")

    @contextmanager
    def locked(self) -> Iterator[Run]:
        """Keep other processes from running in this folder; the lock ends with this process at the latest.

        Returns
        -------
        context manager
            Gives the run.

        Raises
        ------
        RequestError
            If another process is running here.
        """
        with _storage(self.path):
            handle = take_lock(self.path / LOCK)
            if handle is None:
                time.sleep(0.05)  # somebody may only have looked whether a run goes on
                handle = take_lock(self.path / LOCK)
        if handle is None:
            raise RequestError(f"another process is running in {self.path}")
        try:
            yield self
        finally:
            os.close(handle)

    @property
    def running(self) -> bool:
        """Whether a process is running in this folder now."""
        return is_locked(self.path / LOCK)

    # ---- events --------------------------------------------------------------------------------------------------

    def log(self, kind: str, *, wall: Mapping[str, Any] | None = None, **fields: Any) -> None:
        """Append an event.

        Parameters
        ----------
        kind
            Of the event.
        wall
            What a clock said: never compared.
        **fields
            What can be written as JSON; a number that is not finite becomes null.
        """
        event = {"event": kind, **fields} | ({"wall": dict(wall)} if wall else {})
        with _storage(self.path), (self.path / "events.jsonl").open("a", newline="\n") as file:
            file.write(json.dumps(finite(event)) + "\n")

    def events(self, wall: bool = True) -> list[dict[str, Any]]:
        """Read the events, one dict each; "event" says which kind.

        Parameters
        ----------
        wall
            False: only what two equal runs share, without clocks and machines.

        Returns
        -------
        list of dict
            "start", "clients" and "engine" come first; then a "round" after every round, with its metrics, its traffic
            so far and its "steps". Whatever did not go as asked is an event of its own, such as "dropped".

        Examples
        --------
        >>> import fedstrata
        >>> run = fedstrata.train(overrides={"train.rounds": 1})
        >>> [event["event"] for event in run.events()]
        ['start', 'clients', 'engine', 'round']
        """
        text = (self.path / "events.jsonl").read_text()
        events = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]  # a kill may cut the last one
        if wall:
            return events
        return [{k: v for k, v in e.items() if k != "wall"} for e in events if e["event"] not in ("resumed", "engine")]

    def sync_events(self) -> int:
        """Make the events safe on disk: a checkpoint must not run ahead of them.

        Returns
        -------
        int
            Their size in bytes.
        """
        with (self.path / "events.jsonl").open("rb") as file:
            os.fsync(file.fileno())
            return os.fstat(file.fileno()).st_size

    def cut_events(self, size: int) -> None:
        """Forget events after a checkpoint: their rounds will be played again.

        Parameters
        ----------
        size
            Bytes to keep.

        Raises
        ------
        RequestError
            If there are fewer.
        """
        with (self.path / "events.jsonl").open("r+b") as file:
            if os.fstat(file.fileno()).st_size < size:
                raise RequestError(
                    f"{self.path}/events.jsonl is shorter than its checkpoint says; the run cannot go on"
                )
            file.truncate(size)

    # ---- results -------------------------------------------------------------------------------------------------

    def write_result(self, model: Tensors, metadata: Mapping[str, Any], summary: Mapping[str, Any]) -> None:
        """Write the final model and the summary, which marks the run as finished.

        Parameters
        ----------
        model
            Tensors by name.
        metadata
            Goes into the model's file.
        summary
            The outcome.
        """
        with _storage(self.path):
            write_atomically(
                self.path / "model.safetensors",
                save(dict(model), {"about": json.dumps(dict(sorted(metadata.items())))}),
            )
            text = json.dumps(finite(summary), indent=2) + "\n"
            write_atomically(self.path / "summary.json", text.encode())

    @property
    def summary(self) -> dict[str, Any]:
        """The outcome; empty while the run is not finished."""
        path = self.path / "summary.json"
        try:
            summary: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        except ValueError as error:
            raise RequestError(f"{path} is damaged: {error}; remove it, and --resume writes it again") from None
        return summary

    def curve(self, metric: str) -> list[float]:
        """Return a metric by evaluated round.

        Parameters
        ----------
        metric
            Such as "accuracy", "balanced_accuracy", "worst10", "loss_test", "loss_train" or "bytes_up".

        Returns
        -------
        list of float
            Shorter than the run where `train.evaluate.every` is more than 1.

        Raises
        ------
        RequestError
            If no round has it.
        """
        rounds = [e for e in self.events() if e["event"] == "round"]
        if rounds and not any(metric in e for e in rounds):
            raise RequestError(f"no round has a {metric}; there are {', '.join(sorted(rounds[-1]))}")
        return [e[metric] for e in rounds if metric in e]

    def model(self) -> dict[str, Tensor]:
        """Read the final model.

        Returns
        -------
        dict
            Tensors by name, for `load_state_dict`.
        """
        return load((self.path / "model.safetensors").read_bytes())


class Checkpoints:
    """Checkpoints that survive a kill at any moment.

    A checkpoint is a manifest `NNNNNN.json` and files it names with their checksums: the server's arrays, and one
    file for each client whose state changed since the last time. Everything is written and synced first; then
    CURRENT is replaced in one rename; then files that the new manifest does not name are removed.
    """

    def __init__(self, path: Path):
        self.path = path
        self._clients: dict[int, tuple[Tag, dict[str, str]]] = {}

    def write(self, round: int, state: Any, client_states: ClientStates, about: Mapping[str, Any]) -> None:
        """Write a checkpoint; the old one stays valid until this one is safe."""
        arrays: dict[str, Tensor] = {}
        server_tree = tree.flatten(state, arrays)
        with _storage(self.path):
            self.path.mkdir(exist_ok=True)
            server = self._put(f"{round:06d}.safetensors", save({k: v.clone() for k, v in arrays.items()}))
            clients = dict(self._clients)
            for client, (tag, tensors) in client_states.items():
                if client not in clients or clients[client][0] != tag:
                    name = f"client-{client}-{tag[0]}-{tag[1]}.safetensors"
                    clients[client] = (
                        tag,
                        self._put(name, save({k: v.contiguous() for k, v in tensors.items()})),
                    )
            manifest = {
                "round": round,
                "state": server_tree,
                "server": server,
                "clients": [[client, tag, file] for client, (tag, file) in clients.items()],
                **about,
            }
            entry = self._put(f"{round:06d}.json", json.dumps(manifest).encode())
            sync_folder(self.path)
            write_atomically(self.path / "CURRENT", json.dumps(entry).encode())
        self._clients = clients
        used = {"CURRENT", entry["file"], server["file"], *(file["file"] for _, file in clients.values())}
        for path in self.path.iterdir():
            if path.name not in used:
                with suppress(FileNotFoundError):
                    path.unlink()

    def read(self, manifest: Mapping[str, Any], like: Any) -> tuple[Any, ClientStates]:
        """Read a checkpoint into a state shaped like `like`."""
        state = tree.restore(manifest["state"], load(self._get(manifest["server"])), like)
        self._clients = {c: ((tag[0], tag[1]), file) for c, tag, file in manifest["clients"]}
        return state, self.client_states()

    def client_states(self) -> ClientStates:
        """Return the clients' state as the newest checkpoint holds it; each client's is read when it is asked for."""
        return _Stored(self, self._clients)

    def client(self, entry: Mapping[str, str]) -> Tensors:
        """Read one client's state."""
        return load(self._get(entry))

    def manifest(self) -> dict[str, Any] | None:
        """Read what the newest checkpoint says about itself."""
        current = self.path / "CURRENT"
        if not current.exists():
            return None
        try:
            entry = json.loads(current.read_text())
            manifest: dict[str, Any] = json.loads(self._get(entry))
            return manifest
        except (KeyError, TypeError, ValueError, SafetensorError) as error:
            raise RequestError(f"{self.path} holds a damaged checkpoint: {error}") from None

    def _put(self, name: str, content: bytes) -> dict[str, str]:
        write_atomically(self.path / name, content, sync=False)
        return {"file": name, "sha256": sha256(content).hexdigest()}

    def _get(self, entry: Mapping[str, str]) -> bytes:
        path = self.path / Path(entry["file"]).name
        if not path.exists():
            raise RequestError(f"{path} is missing; the checkpoint cannot be used")
        content = path.read_bytes()
        if sha256(content).hexdigest() != entry["sha256"]:
            raise RequestError(f"{path} is damaged: its checksum does not match")
        return content


class _Stored(Mapping[int, tuple[Tag, Tensors]]):
    """Client state in files."""

    def __init__(self, checkpoints: Checkpoints, clients: Mapping[int, tuple[Tag, dict[str, str]]]):
        self._checkpoints, self._clients = checkpoints, clients

    def __getitem__(self, client: int) -> tuple[Tag, Tensors]:
        tag, entry = self._clients[client]
        return tag, self._checkpoints.client(entry)

    def __contains__(self, client: object) -> bool:
        return client in self._clients

    def __iter__(self) -> Iterator[int]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)


def finite(value: Any) -> Any:
    """JSON has no NaN: a number that is not finite becomes null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {k: finite(v) for k, v in value.items()}
    return [finite(v) for v in value] if isinstance(value, list | tuple) else value


@contextmanager
def _storage(path: Path) -> Iterator[None]:
    """Say what to do when the disk refuses; what was written before stays valid."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        why = "the disk is full" if full else str(error)
        raise RequestError(f"cannot write to {path}: {why}. What was saved before is still valid") from error
