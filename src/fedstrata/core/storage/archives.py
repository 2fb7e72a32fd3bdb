"""Archives that come from elsewhere: what is in them lands in one folder, and nowhere else."""

from __future__ import annotations

import tarfile
from pathlib import Path, PurePosixPath


def unpack(archive: tarfile.TarFile, folder: Path) -> None:
    """Unpack files and folders, and refuse anything else; Python's own filter, from 3.11.4 on, is used where it is."""
    for member in archive.getmembers():
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts or not (member.isfile() or member.isdir()):
            raise tarfile.TarError(f"{member.name!r} is no file or folder of it")
    if hasattr(tarfile, "data_filter"):
        archive.extractall(folder, filter="data")
    else:
        archive.extractall(folder)
