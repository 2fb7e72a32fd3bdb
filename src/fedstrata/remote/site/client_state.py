"""What a site remembers of its client's state, on disk, so that a process that was killed goes on where it was.

FOLDER/RUN/data                  what the state belongs to: another set of samples begins without any
FOLDER/RUN/ROUND-STEP.safetensors    the state after that step
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save

from fedstrata.client.site_client import Versions
from fedstrata.core.messages import Tag, Tensors
from fedstrata.core.storage.files import make_folder, write_atomically

RUNS = 8  # whose states are kept: the newest


class StateOnDisk(Versions):
    """The state of one client in one run."""

    def __init__(self, folder: Path, run: str, data: str):
        super().__init__()
        self._folder = folder / sha256(run.encode()).hexdigest()[:32]
        whose = self._folder / "data"
        if self._folder.exists() and (not whose.exists() or whose.read_text() != data):
            shutil.rmtree(self._folder)
        _forget_old(self._folder)
        make_folder(self._folder, 0o700)
        write_atomically(whose, data.encode())
        for file in self._folder.glob("*.safetensors"):
            try:
                self.by_tag[_tag(file)] = load(file.read_bytes())
            except (SafetensorError, ValueError):  # cut off by a kill: as good as not there, and asked for again
                file.unlink()

    def keep(self, versions: Mapping[Tag | None, Tensors]) -> None:
        """Keep these and no others, here and on disk."""
        before = self.by_tag
        super().keep(versions)
        for tag, tensors in versions.items():
            if tag is not None and before.get(tag) is not tensors:
                write_atomically(self._file(tag), save({k: v.contiguous().cpu() for k, v in tensors.items()}))
        for tag in before.keys() - versions.keys():
            if tag is not None:
                self._file(tag).unlink(missing_ok=True)

    def _file(self, tag: Tag) -> Path:
        return self._folder / f"{tag[0]}-{tag[1]}.safetensors"


def _tag(file: Path) -> Tag:
    round, step = file.stem.split("-")
    return int(round), int(step)


def _forget_old(present: Path) -> None:
    """Make room: of runs that nobody goes on with, nobody tells a site."""
    if present.parent.is_dir():
        others = sorted((f for f in present.parent.iterdir() if f != present), key=lambda f: f.stat().st_mtime)
        for old in others[: max(len(others) - RUNS + 1, 0)]:
            shutil.rmtree(old)
