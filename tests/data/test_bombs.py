"""Small files that stand for gigabytes: refused before they are in memory, whichever way they come."""

from __future__ import annotations

import gzip
import io
import lzma
import struct
import tarfile
import tracemalloc
import zipfile
import zlib

import numpy as np
import pytest
from PIL import Image

from fedstrata.core.errors import RequestError
from fedstrata.data import unpacking
from fedstrata.data.files import Files
from fedstrata.data.formats.arrays import read_npz
from fedstrata.data.formats.image_folder import list_folder, read_folder
from fedstrata.data.formats.images import read_image
from fedstrata.data.formats.tabular import open_parquet
from fedstrata.data.packs import read_npz as read_pack

ZEROS = bytes(1 << 20)
MANY = 64  # times a mebibyte: enough beyond the bound of these tests


@pytest.fixture(autouse=True)
def bound(monkeypatch):
    """Let 4 MiB be what any file may unpack to, so that bombs of tests are small ones."""
    monkeypatch.setattr(unpacking, "ALWAYS", 4 << 20)


def refused(read, why="unpacks to more than"):
    """Let something be read that must be refused, without taking it in."""
    tracemalloc.start()
    try:
        with pytest.raises(RequestError, match=why):
            read()
        assert tracemalloc.get_traced_memory()[1] < 24 << 20
    finally:
        tracemalloc.stop()


def repeated(compressor):
    packed = b"".join([*(compressor.compress(ZEROS) for _ in range(MANY)), compressor.flush()])
    assert len(packed) < 100_000
    return packed


def zipped(path, method=zipfile.ZIP_DEFLATED, name="x.bin"):
    with zipfile.ZipFile(path, "w", method) as archive, archive.open(name, "w") as file:
        for _ in range(MANY):
            file.write(ZEROS)
    return path


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip(tmp_path, method):
    path = zipped(tmp_path / "bomb.zip", method)
    refused(lambda: Files(path).read("x.bin"))


def test_a_zip_inside_a_zip(tmp_path):
    inner = zipped(tmp_path / "inner.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "outer.zip", "w") as archive:
        archive.writestr("inner.zip", inner)
    refused(lambda: Files(tmp_path / "outer.zip").inside("inner.zip"))


@pytest.mark.parametrize(
    ("name", "packed"),
    [
        ("x.csv.gz", lambda: repeated(zlib.compressobj(wbits=31))),
        ("x.npz.xz", lambda: repeated(lzma.LZMACompressor())),
    ],
)
@pytest.mark.parametrize("archived", [False, True])
def test_a_packed_file(tmp_path, name, packed, archived):
    (tmp_path / name).write_bytes(packed())
    path = tmp_path
    if archived:
        path = tmp_path / "files.zip"
        with zipfile.ZipFile(path, "w") as archive:
            archive.write(tmp_path / name, name)
    refused(lambda: Files(path).read(name))


@pytest.mark.parametrize("says", [1 << 26, 1 << 50])
def test_a_tar(tmp_path, says):
    """Its member is long, or says so."""
    member = tarfile.TarInfo("x.bin")
    member.size = says
    packing = zlib.compressobj(wbits=31)
    pieces = [packing.compress(member.tobuf()), *(packing.compress(ZEROS) for _ in range(MANY)), packing.flush()]
    (tmp_path / "bomb.tar.gz").write_bytes(b"".join(pieces))
    refused(lambda: Files(tmp_path / "bomb.tar.gz"))


def test_arrays(tmp_path):
    path = zipped(tmp_path / "bomb.npz", name="x.npy")
    refused(lambda: read_npz(path))
    (tmp_path / "bomb.npz.xz").write_bytes(lzma.compress(path.read_bytes()))
    refused(lambda: read_pack(Files(tmp_path / "bomb.npz.xz"), "*.npz.xz"))


def test_arrays_that_only_say_that_they_are_long(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (1 << 55,)})
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", header.getvalue())
    with pytest.raises(RequestError, match="cannot be read"):
        read_npz(tmp_path / "x.npz")


def test_a_table_of_one_value(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    with parquet.ParquetWriter(tmp_path / "x.parquet", pyarrow.schema([("a", pyarrow.int8())])) as writer:
        for _ in range(MANY):
            writer.write_table(pyarrow.table({"a": np.zeros(1 << 16, np.int8)}))
    assert (tmp_path / "x.parquet").stat().st_size < 50_000
    refused(lambda: open_parquet(tmp_path / "x.parquet"))


def image(width, height):
    """Return a PNG whose header says so many pixels, and that has none."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [9_000, 13_000, 40_000, 2_000_000_000])
def test_an_image(tmp_path, side):
    refused(lambda: read_image(image(side, side), None, 3), "pixels; allowed|too large")
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "a.png").write_bytes(image(side, side))
    refused(lambda: read_folder(list_folder(tmp_path)[0][0], size=8), r"a\.png cannot be read as an image")


def test_an_image_that_would_start_another_program():
    """Pillow hands PostScript to Ghostscript, whatever the file is called."""
    with pytest.raises(RequestError, match="of a format that is not known"):
        read_image(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n", None, 3)


def test_honest_files_are_read(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "a.png")
    assert read_image((tmp_path / "a.png").read_bytes(), None, 3).shape == (3, 32, 32)
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"1" * (3 << 20)))
    assert len(Files(tmp_path / "b.gz").read("b.gz")) == 3 << 20, "a thousand times its size, and small all the same"
