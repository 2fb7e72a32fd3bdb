"""How much a packed file may unpack to: a few kilobytes can stand for gigabytes, and whoever wrote them knows that.

Data that are worth training on do not shrink to a two-hundredth; tables and images that do are small. What unpacks to
more is refused before it is in memory. The measure is the file on the disk, also for archives inside archives.
"""

from __future__ import annotations

import gzip
import io
import lzma
import zipfile
from pathlib import Path
from typing import IO

from fedstrata.core.errors import DamagedError

TIMES = 200  # how much larger than the file on the disk
ALWAYS = 1 << 28  # bytes that any file may unpack to
PIXELS = 1 << 26  # of one image: 8192 x 8192
PIECE = 1 << 20  # bytes that are unpacked at a time


def most_bytes(packed: int) -> int:
    """Return what a file of so many bytes may unpack to."""
    return max(ALWAYS, TIMES * packed)


def refuse(what: object, most: int) -> DamagedError:
    """Say why something is not unpacked."""
    return DamagedError(
        f"{what} unpacks to more than {most:,} bytes, and more than {TIMES} times its size: it is damaged, or made to "
        "fill the memory; if it is neither, unpack it first"
    )


def unpack_gzip(data: bytes, what: object, most: int) -> bytes:
    """Undo gzip."""
    return _bounded(gzip.GzipFile(fileobj=io.BytesIO(data)), what, most)


def unpack_xz(data: bytes, what: object, most: int) -> bytes:
    """Undo xz."""
    return _bounded(lzma.LZMAFile(io.BytesIO(data)), what, most)


def check_zip(archive: zipfile.ZipFile, what: object, most: int) -> None:
    """Refuse an archive whose files say that they are too long; zipfile reads none further than that."""
    if any(info.file_size > most for info in archive.infolist()):
        raise refuse(what, most)


def check_npz(file: str | Path | IO[bytes], what: object, most: int) -> None:
    """Refuse arrays that are too long, all of them together; a file that is no archive holds one, as long as itself."""
    if not zipfile.is_zipfile(file):
        return
    with zipfile.ZipFile(file) as archive:
        if sum(info.file_size for info in archive.infolist()) > most:
            raise refuse(what, most)


def _bounded(file: gzip.GzipFile | lzma.LZMAFile, what: object, most: int) -> bytes:
    data = bytearray()
    with file:
        while piece := file.read(PIECE):
            data += piece
            if len(data) > most:
                raise refuse(what, most)
    return bytes(data)
