"""Files as their publishers distribute them: a folder, or an archive that need not be unpacked."""

from __future__ import annotations

import fnmatch
import io
import lzma
import tarfile
import tempfile
import weakref
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from fedstrata.core.errors import DamagedError, RequestError
from fedstrata.data import store
from fedstrata.data.unpacking import check_zip, most_bytes, refuse, unpack_gzip, unpack_xz

# An encrypted zip is a RuntimeError, an unknown compression a NotImplementedError, which is one too.
DAMAGE = (EOFError, OSError, RuntimeError, tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error)


class Files:
    """Named files inside a folder, a zip (also .whl), a tar (also .tgz) or a .deb; a single file is a folder of one."""

    say: Callable[[str], None] = staticmethod(lambda _: None)  # told how far reading is, where it takes long

    def __init__(self, path: Path):
        if not path.exists():
            raise RequestError(f"{path} does not exist")
        self.path = path
        self._zip = self._tar = None
        self._members: dict[str, tarfile.TarInfo] = {}
        self._most = most_bytes(0 if path.is_dir() else path.stat().st_size)  # bytes of what is unpacked
        try:
            if path.is_dir():
                self.names = sorted(str(p.relative_to(path)) for p in path.rglob("*") if p.is_file())
            elif zipfile.is_zipfile(path):
                self._zip = zipfile.ZipFile(path)
                check_zip(self._zip, path, self._most)
                self.names = sorted(n for n in self._zip.namelist() if not n.endswith("/"))
            elif path.suffix == ".deb" or tarfile.is_tarfile(path):
                self._tar = _debian(path) if path.suffix == ".deb" else tarfile.open(path)  # noqa: SIM115  kept open
                weakref.finalize(self, self._tar.close)
                self._members = {m.name: m for m in _members(self._tar, path, self._most) if m.isfile()}
                self.names = sorted(self._members)
            elif path.suffix in (".zip", ".whl", ".tar", ".tgz") or path.name.endswith((".tar.gz", ".tar.xz")):
                raise EOFError("the archive cannot be opened")
            else:
                self.path, self.names = path.parent, [path.name]
        except DAMAGE as error:
            raise DamagedError(f"{path} is damaged or incomplete: {error}") from None

    def find(self, *patterns: str) -> list[str]:
        """Return the files whose path ends like one of the patterns; `*` and `?` as in a shell."""
        return [n for n in self.names if any(fnmatch.fnmatch(f"/{n}", f"*/{p}") for p in patterns)]

    def one(self, *patterns: str) -> str | None:
        """Return the only file that fits; None if none does."""
        found = self.find(*patterns)
        if len(found) > 1:
            raise RequestError(f"{self.path} holds several files like {patterns[0]}: {', '.join(found[:3])}")
        return found[0] if found else None

    def read(self, name: str) -> bytes:
        """Read a file; .gz and .xz are unpacked."""
        try:
            if self._zip is not None:
                data = self._zip.read(name)
            elif self._tar is not None:
                self._tar = self._unpacked(self._tar)
                member = self._tar.extractfile(self._members[name])
                assert member is not None
                data = member.read()
            else:
                data = (self.path / name).read_bytes()
            most = self._most if self._zip or self._tar else most_bytes(len(data))
            if name.endswith(".gz"):
                return unpack_gzip(data, name, most)
            return unpack_xz(data, name, most) if name.endswith(".xz") else data
        except (*DAMAGE, ValueError, MemoryError, OverflowError) as error:
            raise DamagedError(f"{self.path}: {name} is damaged or incomplete: {error}") from None

    def inside(self, name: str) -> Files:
        """Open an archive that lies inside this one."""
        if self._zip is None and self._tar is None:
            inner = Files(self.path / name)
            inner.say = self.say
            return inner
        inner = Files.__new__(Files)
        inner.path, inner._tar, inner.say, inner._most = self.path / name, None, self.say, self._most
        try:
            inner._zip = zipfile.ZipFile(io.BytesIO(self.read(name)))
            check_zip(inner._zip, inner.path, self._most)
        except DAMAGE as error:
            raise DamagedError(f"{self.path}: {name} is damaged or incomplete: {error}") from None
        inner.names = sorted(n for n in inner._zip.namelist() if not n.endswith("/"))
        return inner

    def reach(self, *patterns: str) -> Files:
        """Return the zip inside, at any depth, that holds such a file; these files if they hold it, or none does."""
        if not self.find(*patterns):
            for name in self.find("*.zip"):
                inner = self.inside(name).reach(*patterns)
                if inner.find(*patterns):
                    return inner
        return self

    def _unpacked(self, tar: tarfile.TarFile) -> tarfile.TarFile:
        """Unpack a compressed tar once into a file without a name: there, to seek back is not to begin anew."""
        packed = tar.fileobj
        if packed is None or isinstance(packed, io.BufferedReader | io.BufferedRandom):
            return tar
        try:
            store.folder().mkdir(parents=True, exist_ok=True)
            plain = tempfile.TemporaryFile(dir=store.folder())  # noqa: SIM115  read from for as long as this lives
            weakref.finalize(self, plain.close)
            packed.seek(0)
            while chunk := packed.read(1 << 20):
                plain.write(chunk)
            plain.seek(0)
        except OSError as error:
            if error.errno is None:  # the tar itself is damaged
                raise
            raise RequestError(
                f"{self.path} cannot be unpacked in the data folder {store.folder()}: {error}; "
                "set FEDSTRATA_DATA to another"
            ) from None
        tar.close()
        return tarfile.open(fileobj=plain, mode="r:")


def _members(tar: tarfile.TarFile, path: Path, most: int) -> Iterator[tarfile.TarInfo]:
    """Go through a tar; one that is longer than it may be is not read to its end."""
    while (member := tar.next()) is not None:
        if tar.offset > most:  # where the next one begins
            raise refuse(path, most)
        yield member


def _debian(path: Path) -> tarfile.TarFile:
    """Open what a Debian package installs: deb(5), an ar archive of which one member is the tar `data.tar.*`."""
    with path.open("rb") as file:
        if file.read(8) != b"!<arch>\n":
            raise EOFError("this is not a Debian package")
        while len(header := file.read(60)) == 60:
            name, size = header[:16].decode("ascii", "replace").rstrip(" /"), header[48:58].strip()
            if not size.isdigit():
                break
            if name.startswith("data.tar"):
                return tarfile.open(fileobj=io.BytesIO(file.read(int(size))))
            file.seek(int(size) + int(size) % 2, 1)  # members begin at even places
    raise EOFError("there is no data.tar in it")
