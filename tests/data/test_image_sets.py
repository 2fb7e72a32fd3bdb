"""Image data sets: what all of them have; PACS, Digits-DG and DomainNet from small files in the publishers' formats."""

from __future__ import annotations

import numpy as np
import pytest
from image_files import encoded, fetched, pixels, refused, tarred, write, zipped

from fedstrata.core import registry
from fedstrata.core.errors import RequestError
from fedstrata.data import store
from fedstrata.data.formats.images import read_image
from fedstrata.data.sets.cifar import Cifar10, Cifar100
from fedstrata.data.sets.digits_dg import DigitsDg
from fedstrata.data.sets.domainnet import LISTED, TEN, DomainNet
from fedstrata.data.sets.ham10000 import Ham10000
from fedstrata.data.sets.pacs import CLASSES, IMAGES, Pacs
from fedstrata.data.sets.tiny_imagenet import TinyImageNet

SETS = ("cifar10", "cifar100", "tiny-imagenet", "ham10000", "pacs", "digits-dg", "domainnet")


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


LABELS = (*sorted({*TEN["fedbss"], *TEN["fedbn"]}), "zigzag")  # twenty: one class is in both tens


def domainnet(folder, domains=("clipart", "real"), labels=LABELS):
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


@pytest.mark.parametrize("classes", TEN)
def test_domainnet_ten_classes(src, classes):
    domainnet(src)
    got = fetched(DomainNet(classes=classes, size=8), src)
    assert got.x.shape == got.test_x.shape == (20, 3, 8, 8)
    assert {*got.y} == {*TEN[classes]}
    assert got.groups.tolist() == ["clipart"] * 10 + ["real"] * 10
    assert store.about(f"domainnet-{classes}-8")["complete"] is False


def test_domainnet_has_the_classes_of_fedbss_unless_asked_for_others(src):
    """Those of the paper's section on data; its ball is a basketball, which is what DomainNet has."""
    said = "airplane, clock, axe, ball, bicycle, bird, strawberry, flower, pizza, and bracelet"
    domainnet(src)
    named = {label.replace("basketball", "ball") for label in fetched(DomainNet(size=8), src).y.tolist()}
    assert named == {*said.replace("and ", "").split(", ")}


def test_domainnet_all_classes_and_domains(src):
    domainnet(src, tuple(LISTED))
    got = fetched(DomainNet(classes="all", size=8), src)
    assert len(got.y) == len(got.test_y) == 6 * 20
    assert "zigzag" in got.y
    assert store.about("domainnet-all-8")["complete"] is False
    fetched(DomainNet(size=8), src)
    assert store.about("domainnet-fedbss-8")["complete"] is True


def test_domainnet_refusals(src):
    domainnet(src)
    lines = (src / "real_test.txt").read_text()
    (src / "real_test.txt").write_text(lines.replace("real_003_test", "real_003_gone"))
    refused(DomainNet(), src, r"1 images of real_test\.txt are not there, the first real/bicycle/real_003_gone\.jpg")
    (src / "real_test.txt").write_text("nonsense\n")
    refused(DomainNet(), src, 'a line "nonsense", not DOMAIN/CLASS/FILE NUMBER')
    (src / "real_test.txt").write_text(lines * 10_000)
    refused(DomainNet(), src, r"real_test\.txt lists 200000 images, domainnet has 52041")
    (src / "real_test.txt").unlink()
    refused(DomainNet(), src, r"incomplete: there is no real_test\.txt")
    (src / "real_train.txt").unlink()
    (src / "clipart.zip").write_bytes((src / "clipart.zip").read_bytes()[:-30])
    refused(DomainNet(), src, r"clipart\.zip is damaged or incomplete")
