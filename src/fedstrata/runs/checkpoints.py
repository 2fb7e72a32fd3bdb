"""Checkpoints that survive a kill at any moment.

A checkpoint is a manifest `NNNNNN.json` and files it names with their checksums: the server's arrays, one file for each
client whose state changed since the last time, and one for each `Stored` tensor that is new. Everything is written and
synced first; then CURRENT is replaced in one rename; then files that the new manifest does not name are removed.

A run does not wait for the disk: what a checkpoint holds is put aside between two rounds, and written while the next
round is run (`BackgroundWriter`). One is written at a time, so a kill costs at most the round that was under way
and the one before.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from fedstrata.core.engine import ClientStates
from fedstrata.core.errors import RequestError
from fedstrata.core.messages import Tag, Tensors, to_host_aside
from fedstrata.core.storage import tree
from fedstrata.core.storage.files import make_folder, sync_folder, write_atomically, writing_to
from fedstrata.core.storage.stored import Stored
from fedstrata.core.tensor_file import tensor_pieces

WRITERS = 4  # files that are hashed and written at a time


@dataclass(frozen=True)
class Snapshot:
    """What a checkpoint will hold, as it was between two rounds: nothing in it changes any more."""

    round: int
    state: Any  # in JSON form, without its arrays
    arrays: Tensors
    stored: Mapping[str, Stored]  # likewise by name; they never change
    changed: ClientStates  # a client's new state is a new tensor, so these are not copied
    about: Mapping[str, Any]


class Checkpoints:
    """The checkpoints of a run folder."""

    def __init__(self, path: Path):
        self.path = path
        self._clients: dict[int, tuple[Tag, dict[str, str]]] = {}

    def take(
        self,
        round: int,
        state: Any,
        client_states: ClientStates,
        about: Mapping[str, Any],
        unchanging: Collection[Tensor] = (),
    ) -> Snapshot:
        """Put aside what a checkpoint holds; `state` may change from here on, but for some tensors in it."""
        aside: tree.Arrays = {}
        server_tree = tree.flatten(state, aside)
        changed = {
            client: client_states[client]
            for client in client_states
            if client not in self._clients or self._clients[client][0] != client_states[client][0]
        }
        kept = {id(tensor) for tensor in unchanging}
        stored = {name: value for name, value in aside.items() if isinstance(value, Stored)}
        tensors = {name: value for name, value in aside.items() if isinstance(value, Tensor)}
        arrays = {name: tensor if id(tensor) in kept else tensor.clone() for name, tensor in tensors.items()}
        return Snapshot(round, server_tree, arrays, stored, changed, about)

    def put(self, snapshot: Snapshot) -> None:
        """Write a checkpoint; the old one stays valid until this one is safe."""
        with writing_to(self.path), ThreadPoolExecutor(WRITERS) as writers:
            make_folder(self.path)
            stem = f"{snapshot.round:06d}"
            names = {c: f"client-{c}-{tag[0]}-{tag[1]}.safetensors" for c, (tag, _) in snapshot.changed.items()}
            written = writers.map(lambda c: self._put_tensors(names[c], snapshot.changed[c][1]), names)
            files = writers.map(
                lambda name: self._put_stored(f"{stem}-{name}.safetensors", snapshot.stored[name]), snapshot.stored
            )
            server = self._put_tensors(f"{stem}.safetensors", snapshot.arrays)
            stored = dict(zip(snapshot.stored, files, strict=True))
            new = {c: (snapshot.changed[c][0], file) for c, file in zip(names, written, strict=True)}
            clients = {**self._clients, **new}
            manifest = {
                "round": snapshot.round,
                "state": snapshot.state,
                "server": server,
                "stored": stored,
                "clients": [[client, tag, file] for client, (tag, file) in clients.items()],
                **snapshot.about,
            }
            entry = self._put(f"{stem}.json", json.dumps(manifest).encode())
            sync_folder(self.path)
            write_atomically(self.path / "CURRENT", json.dumps(entry).encode())
            self._clients = clients
            for name, one in snapshot.stored.items():
                self._lay_down(one, stored[name])
            own = [server, *stored.values(), *(file for _, file in clients.values())]
            used = {"CURRENT", entry["file"], *(file["file"] for file in own)}
            list(writers.map(_remove, [path for path in self.path.iterdir() if path.name not in used]))

    def write(self, round: int, state: Any, client_states: ClientStates, about: Mapping[str, Any]) -> None:
        """Take a snapshot and write it, at once."""
        self.put(self.take(round, state, client_states, about))

    def read(self, manifest: Mapping[str, Any], like: Any) -> tuple[Any, ClientStates]:
        """Read a checkpoint into a state shaped like `like`."""
        with self._reading():
            arrays: tree.Arrays = {**load(self._get(manifest["server"]))}
            arrays |= {name: self._lay_down(Stored(), entry) for name, entry in manifest.get("stored", {}).items()}
            state = tree.restore(manifest["state"], arrays, like)
            if type(state) is not type(like):
                raise TypeError(f"its state is a {type(state).__name__}")
            self._clients = {int(c): ((tag[0], tag[1]), file) for c, tag, file in manifest["clients"]}
        return state, self.client_states()

    def client_states(self) -> ClientStates:
        """Return the clients' state as the newest checkpoint holds it; each client's is read when it is asked for."""
        return _Stored(self, self._clients)

    def client(self, entry: Mapping[str, str]) -> Tensors:
        """Read one client's state."""
        with self._reading():
            return load(self._get(entry))

    def manifest(self, **about: Any) -> dict[str, Any] | None:
        """Read what the newest checkpoint says about itself; `about` are the types of what was said beside it."""
        current = self.path / "CURRENT"
        if not current.exists():
            return None
        with self._reading():
            manifest: dict[str, Any] = json.loads(self._get(json.loads(current.read_text())))
            expected = {"round": int, "server": dict, "clients": list, **about}
            if wrong := [name for name, kind in expected.items() if not isinstance(manifest[name], kind)]:
                raise ValueError(f"its {wrong[0]} cannot be read")
            return manifest

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Refuse files that are no checkpoint of ours, whatever they are; a part's own state has its own words."""
        try:
            yield
        except tree.StateError as error:
            if error.path.count(".") > 1:  # a part's own: whoever knows the parts names it
                raise
            raise RequestError(f"{self.path} holds a damaged checkpoint: {error}") from None
        except (LookupError, TypeError, ValueError, AttributeError, OSError, RecursionError, SafetensorError) as error:
            raise RequestError(f"{self.path} holds a damaged checkpoint: {type(error).__name__}: {error}") from None

    def _put_stored(self, name: str, one: Stored) -> dict[str, str]:
        """Write a tensor, unless an earlier checkpoint did."""
        return one.entry if one.folder == self.path else self._put_tensors(name, {"tensor": one.read()})

    def _lay_down(self, one: Stored, entry: dict[str, str]) -> Stored:
        return one.rest_in(self.path, entry, lambda: load(self._get(entry))["tensor"])

    def _put_tensors(self, name: str, tensors: Tensors) -> dict[str, str]:
        return self._put(name, *tensor_pieces(to_host_aside(tensors)))

    def _put(self, name: str, *content: bytes | memoryview) -> dict[str, str]:
        digest = sha256()
        for piece in content:
            digest.update(piece)
        write_atomically(self.path / name, *content, sync=False)
        return {"file": name, "sha256": digest.hexdigest()}

    def _get(self, entry: Mapping[str, str]) -> bytes:
        path = self.path / Path(entry["file"]).name
        if not path.exists():
            raise RequestError(f"{path} is missing; the checkpoint cannot be used")
        content = path.read_bytes()
        if sha256(content).hexdigest() != entry["sha256"]:
            raise RequestError(f"{path} is damaged: its checksum does not match")
        return content


class BackgroundWriter:
    """Writes checkpoints one after another while the run goes on. What goes wrong is raised by the next call."""

    def __init__(self, checkpoints: Checkpoints):
        self._checkpoints = checkpoints
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._aside: list[Snapshot] = []  # at most one; taken out to be written, so that nothing holds it afterwards
        self._under_way: Future[None] | None = None

    def write(
        self,
        round: int,
        state: Any,
        client_states: ClientStates,
        about: Mapping[str, Any],
        unchanging: Collection[Tensor] = (),
    ) -> None:
        """Put aside what a checkpoint holds, and have it written once the one before is safe."""
        self.wait()
        self._aside.append(self._checkpoints.take(round, state, client_states, about, unchanging))
        self._under_way = self._thread.submit(self._put_aside)

    def _put_aside(self) -> None:
        self._checkpoints.put(self._aside.pop())

    def wait(self) -> None:
        """Wait until everything that was put aside is safe on disk."""
        if self._under_way is not None:
            under_way, self._under_way = self._under_way, None
            under_way.result()

    def close(self) -> None:
        """Wait for the last checkpoint, and end."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()


def _remove(path: Path) -> None:
    with suppress(FileNotFoundError):
        path.unlink()


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
