"""The user's own data: arrays, tables and folders of images, and what is refused."""

from __future__ import annotations

import importlib
import mmap
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from light import LIGHT
from PIL import Image
from sklearn.datasets import load_diabetes

import fedstrata
from fedstrata import Column, Experiment
from fedstrata.config.build import build_federation
from fedstrata.core import registry
from fedstrata.core.errors import RequestError
from fedstrata.data import store
from fedstrata.data.formats import images
from fedstrata.data.sets.own import Own, keep


def refused(said: str, **options):
    with pytest.raises(RequestError, match=said):
        registry.build("datasets", "own", options, "data").load()


# ---- arrays --------------------------------------------------------------------------------------------------------


def test_arrays_with_clients_and_a_held_out_test_set(tmp_path):
    x = np.arange(200.0).reshape(100, 2)
    np.savez("a.npz", x=x, y=np.arange(100) % 4, client=np.arange(100) // 10)
    arrays = Own("a.npz").load()
    assert arrays.x.dtype == np.float32
    assert np.bincount(arrays.test_y).tolist() == [5, 5, 5, 5]
    assert np.array_equal(arrays.groups, arrays.x[:, 0] // 2 // 10), "a client keeps its samples"
    assert sorted([*arrays.x[:, 0], *arrays.test_x[:, 0]]) == x[:, 0].tolist(), "arrays are taken as they are"
    assert np.array_equal(Own("a.npz").load().x, arrays.x), "the same samples every time"
    assert len(Own("a.npz", test=0.5).load().test_y) == 48, "half of each class: round(12.5) is 12"


def test_arrays_with_a_test_set_of_their_own():
    np.savez("a.npz", x=np.ones((4, 3)), y=["b", "a", "a", "b"], test_x=np.zeros((2, 3)), test_y=["a", "b"])
    arrays = Own("a.npz").load()
    assert arrays.y.tolist() == ["b", "a", "a", "b"]
    assert arrays.test_x.tolist() == np.zeros((2, 3)).tolist()
    assert arrays.groups is None
    refused(r"data.test = 0.3, but a.npz has a test set of its own", path="a.npz", test=0.3)


def test_images_in_arrays_stay_bytes():
    pixels = np.random.default_rng(0).integers(0, 256, (20, 3, 8, 8), dtype=np.uint8)
    np.savez("a.npz", x=pixels, y=np.arange(20) % 2)
    arrays = Own("a.npz").load()
    assert arrays.x.dtype == np.uint8
    assert (arrays.scale, arrays.mean) == ("federated", None), "clients find mean and deviation once they hold them"
    np.savez("b.npz", x=pixels[:, 0], y=np.arange(20) % 2)
    assert Own("b.npz").load().x.shape == (16, 1, 8, 8)
    np.savez("c.npz", x=pixels.transpose(0, 2, 3, 1), y=np.arange(20) % 2)
    refused(r"images are \[n, channels, height, width\]; transpose\(0, 3, 1, 2\)", path="c.npz")


TESTED = {"test_x": [[1.0, 2.0], [3.0, 4.0]], "test_y": [0, 1]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"y": None}, "has no array y; it has: x"),
        ({"y": [0, 1, 0]}, "must have an entry a sample"),
        ({"y": [[0], [1], [0], [1]]}, r"labels must be one-dimensional, one a sample; got shape \(4, 1\)"),
        ({"y": [[0, 1], [0, 0], [0, 1], [1, 0]]}, "labels must be one-dimensional"),
        ({"y": [[0, 1], [1, 0], [0, 1], [1, 0]]}, r"labels are one-hot, \[n, 2\]; .*argmax"),
        ({"y": [[1, 1], [1, 0], [0, 1], [1, 0]]}, "several labels a sample, .* multi-label"),
        ({"y": [0.5, 1, 0, 1]}, "labels must be classes, but 0.5 is a quantity"),
        ({"y": [np.nan, 1, 0, 1]}, "1 labels are missing, the first at row 0"),
        ({"x": [[1, 2], [3, np.nan], [1, 2], [np.inf, 0]]}, "2 samples hold missing or infinite values, .* row 1"),
        ({"x": ["a", "b", "c", "d"]}, "x must hold numbers"),
        ({"client": [7, 7, 7, 7]}, "names one client, 7; at least 2 are needed"),
        ({"client": [7.0, np.nan, 1, 1]}, "none may be missing"),
        ({"client": ["", "a", "b", "b"]}, "1 clients are missing, the first at row 0"),
        ({"client": [[1], [2], [1], [2]]}, r"clients must have an entry a sample; they have shape \(4, 1\)"),
        (TESTED | {"test_client": [1, 2]}, "must both name their clients, or neither"),
        (TESTED | {"client": [1, 2, 1, 2]}, "must both name their clients, or neither"),
        (TESTED | {"client": [1, 2, 1, 2], "test_client": [1, np.nan]}, "none may be missing"),
        (TESTED | {"client": list("abab"), "test_client": ["a", ""]}, "1 clients are missing, the first at row 1"),
        (TESTED | {"client": [1, 2, 1, 2], "test_client": [[1], [2]]}, r"they have shape \(2, 1\)"),
        (TESTED | {"client": [1, 2, 1, 2], "test_client": ["1", "2"]}, "both be text or both be numbers"),
        ({"test_x": [[1.0, 2.0]]}, "needs test_x and test_y, or neither"),
        (
            {"test_x": [[1.0]], "test_y": [0]},
            r"training samples have shape \(2,\), .* test samples \(1,\)",
        ),
    ],
)
def test_arrays_that_are_refused(change, said):
    arrays = {"x": np.ones((4, 2)), "y": [0, 1, 0, 1]} | change
    np.savez("a.npz", **{k: v for k, v in arrays.items() if v is not None})
    refused(said, path="a.npz")


def test_a_bad_sample_is_found_where_it_stands_in_the_file():
    x = np.ones((50, 2))
    x[[40, 45]] = np.nan
    np.savez("a.npz", x=x, y=np.arange(50) % 2)
    refused("2 samples hold missing or infinite values, the first at row 40", path="a.npz")


def test_arrays_of_objects_and_broken_files_are_refused(tmp_path):
    np.savez("a.npz", x=np.ones((2, 2)), y=np.array([{}, 1], dtype=object))
    refused("it holds Python objects instead of plain arrays", path="a.npz")
    whole = Path("a.npz").read_bytes()
    Path("a.npz").write_bytes(whole[: len(whole) // 2])
    refused("a.npz cannot be read", path="a.npz")
    refused("data.path is required")
    refused('data.path = "nowhere.csv" does not exist', path="nowhere.csv")
    Path("a.mat").write_text("")
    refused(r"a.mat is not of a known kind; allowed: .npz, .csv", path="a.mat")


# ---- tables --------------------------------------------------------------------------------------------------------


def table(path: str = "t.csv", mark: str = ",", rows: int = 40) -> None:
    lines = [mark.join(["age", "site", "label", '"height, cm"', "constant"])]
    lines += [
        mark.join([str(20 + i), f"h{i % 4}", f'"{"yes" if i % 3 else "no"}"', f"{1.5 * i:.2e}", "3"])
        for i in range(rows)
    ]
    Path(path).write_text("\ufeff" + "\r\n".join(lines) + "\r\n", encoding="utf-8")


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_a_table_with_labels_and_clients(mark):
    table(mark=mark)
    arrays = Own("t.csv", client="site").load()
    assert arrays.x.shape == (32, 3)
    assert set(arrays.y) == {"yes", "no"}
    assert set(arrays.groups) == {"h0", "h1", "h2", "h3"}
    assert [column.name for column in arrays.preprocessing.columns] == ["age", "height, cm", "constant"]
    assert np.array_equal(arrays.x[:, 0] - 20, arrays.x[:, 1] / 1.5), "as in the file; clients scale what they hold"
    assert (arrays.x[:, 2] == 3).all()


def test_a_column_that_is_called_2_is_named_with_or_without_quotes():
    Path("t.csv").write_text("0,1,2,3\n" + "1.0,2.5,0,7.5\n4.0,3.5,1,8.5\n" * 10)
    for label, drop in (("2", ["3"]), (2, [3])):
        arrays = registry.build("datasets", "own", {"path": "t.csv", "label": label, "drop": drop}, "data").load()
        assert sorted(set(arrays.y.tolist())) == [0, 1]
        assert arrays.x.shape[1] == 2
    refused(r"data.label = 2.5 is not valid; allowed: text", path="t.csv", label=2.5)


def test_labels_that_look_like_whole_numbers_are_numbers():
    Path("t.csv").write_text("a,kind\n1,10\n2,9\n3,10\n4,9\n")
    assert set(Own("t.csv", label="kind", test=0).load().y.tolist()) == {9, 10}
    Path("t.csv").write_text("a,kind\n1,1.0\n2,0.0\n3,1.0\n4,0.0\n")
    assert set(Own("t.csv", label="kind", test=0).load().y.tolist()) == {0, 1}
    Path("t.csv").write_text("a,kind\n1,1\n2,x\n")
    assert set(Own("t.csv", label="kind", test=0).load().y.tolist()) == {"1", "x"}


def test_two_spellings_of_a_label_are_refused_with_their_counts():
    rows = ["Benign"] * 3 + ["benign"] * 2 + ["malign"] * 4
    Path("t.csv").write_text("a,label\n" + "".join(f"{i},{label}\n" for i, label in enumerate(rows)))
    refused("t.csv: label 'Benign' of 3 rows is 'benign' in 2 others: use one name", path="t.csv")
    np.savez("t.npz", x=np.ones((9, 2)), y=np.array(rows))
    assert len({*Own("t.npz", test=0).load().y}) == 3, "classes of images may be A and a"


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("a,b,kind\n1,2,0\n", {}, 'data.label = "label" is not a column of t.csv; its columns: a, b, kind'),
        ("a,b,kind\n1,2,0\n", {"label": "kind", "client": "c"}, 'data.client = "c" is not a column'),
        ("a,b,label\n1,7,0\n2,y,1\n", {}, 'column b holds numbers, but "y" at line 3'),
        ("a,b,label\n1,,0\n2,NA,1\n3,nan,1\n", {}, "3 values are missing, in column b; .* data.fill"),
        ("a,b,label\n1,x,0\n2,,1\n,y,1\n", {}, "1 values are missing, in column a;"),
        ("a,b,label\n1,inf,0\n2,4,1\n", {}, "column b holds 1 infinite values, .* line 2"),
        ("a,b,label\n1,2,0\n", {"drop": ["c"]}, 'data.drop = "c" is not a column of t.csv'),
        ("a,b,label\n1,2,0\n", {"drop": ["label"]}, 'data.drop = "label" is the column of labels'),
        ("a,label\n1,0.5\n2,1.25\n", {}, "labels must be classes, but 0.5 is a quantity"),
        ("a,b,label\n1,2,0\n2,1\n", {}, "line 3 has 2 fields instead of 3"),
        ("a,b,label\n1,2,0\n2,1,0,5\n", {}, "line 3 has 4 fields instead of 3"),
        ('a,b,"label"\n1,2,0\n2,1,0,5\n', {}, "line 3 has 4 fields instead of 3"),
        ("a,b,label\n1,2,0\n2,1,\n", {}, "1 labels are missing, the first at line 3"),
        ("a,b,label\n1,2,0\n2,2,1\n", {"client": "b"}, "names one client, 2; at least 2 are needed"),
        ("a,b,label\n1,2,0\n2,2,1\n", {"client": "label"}, 'are both "label"'),
        ("a,a,label\n1,2,0\n", {}, "has column a more than once"),
        ("label\n1\n", {}, "no columns beside label: no features"),
        ("a,label\n", {}, "t.csv has no rows"),
        ("a,b,label\n1_000,2,0\n2,1,1\n", {}, 'column a holds numbers, but "1_000" at line 2'),
        ("a,b,label\n1,\u0663,0\n2,1,1\n", {}, 'column b holds numbers, but "\u0663" at line 2'),
        ("", {}, "t.csv is empty"),
    ],
)
def test_tables_that_are_refused(text, options, said):
    Path("t.csv").write_text(text)
    refused(said, path="t.csv", **options)


def test_a_mark_that_only_python_takes_for_the_end_of_a_line():
    Path("t.csv").write_text("a,label\n1,x\u2028y\n2,z\n3,x\u2028y\n4,z\n", encoding="utf-8")
    assert set(Own("t.csv", test=0).load().y.tolist()) == {"x\u2028y", "z"}


def test_what_numpy_cannot_read_at_once_is_read_word_by_word(monkeypatch):
    def broken(*_, **__):
        raise ValueError("the words of numpy")

    table()
    fast = Own("t.csv", client="site").load()
    monkeypatch.setattr(np, "loadtxt", broken)
    slow = Own("t.csv", client="site").load()
    for field in ("x", "y", "groups"):
        assert np.array_equal(getattr(fast, field), getattr(slow, field))


def test_columns_are_standardised_before_they_are_shortened():
    """Seconds since 1970 differ by less than float32 can tell apart."""
    Path("t.csv").write_text("t,c,label\n" + "".join(f"{1_700_000_000 + i},0.1,{i % 2}\n" for i in range(50)))
    asked = {"name": "own", "path": "t.csv", "clients": 4, "partition": "iid"}
    federation = build_federation(Experiment.of({"data": asked}))
    x, test_x = federation.train.x.numpy(), federation.test.x.numpy()
    assert x.dtype == test_x.dtype == np.float32
    seconds = np.sort(np.concatenate([x[:, 0], test_x[:, 0]]))
    assert len(np.unique(seconds)) == 50
    assert np.allclose(np.diff(seconds), np.diff(seconds)[0], rtol=1e-3)
    assert x[:, 0].std() == pytest.approx(1)
    assert np.allclose(x[:, 1], 0, atol=1e-9), "a constant column is 0, though its mean is rounded"
    Path("t.csv").write_text("t,label\n1e200,0\n1,1\n2,0\n")
    refused("column t holds 1 infinite values, or such that float32 cannot hold", path="t.csv", test=0)


def test_a_table_in_parquet_is_the_same_as_in_csv():
    arrow = pytest.importorskip("pyarrow")
    parquet = importlib.import_module("pyarrow.parquet")
    table()
    columns = {"age": [20 + i for i in range(40)], "site": [f"h{i % 4}" for i in range(40)]}
    columns |= {"label": ["yes" if i % 3 else "no" for i in range(40)], "height, cm": [1.5 * i for i in range(40)]}
    columns |= {"constant": [3] * 40}
    parquet.write_table(arrow.table(columns), "t.parquet")
    ours, theirs = (Own(path, client="site").load() for path in ("t.parquet", "t.csv"))
    for field in ("x", "y", "groups", "test_x", "test_y", "test_groups"):
        assert np.array_equal(getattr(ours, field), getattr(theirs, field)), field
    refused("data.label = .* its columns: age, site", path="t.parquet", label="kind")
    ours, theirs = (Own(path).load() for path in ("t.parquet", "t.csv"))
    assert ours.preprocessing == theirs.preprocessing
    assert np.array_equal(ours.x, theirs.x), "with the site as four features"
    parquet.write_table(arrow.table({"a": [1, None], "label": [0, 1]}), "t.parquet")
    refused("1 values are missing, in column a", path="t.parquet")
    parquet.write_table(arrow.table({"a": [[1], [2]], "b": [1, 2], "label": [0, 1]}), "t.parquet")
    refused(r'column a holds list, .* data.drop = \["a"\]', path="t.parquet")
    Path("t.parquet").write_bytes(b"PAR1")
    refused("cannot be read as Parquet", path="t.parquet")


def test_text_columns_become_features_and_dropped_ones_none():
    Path("t.csv").write_text("id,zone,age,label\nA1,city,3,0\nB7,sea,4,1\nC3,,5,0\nD4,city,NA,1\n")
    arrays = Own("t.csv", drop=("id",), fill="median", test=0).load()
    zone, age = arrays.preprocessing.columns
    assert (zone, age) == (Column("zone", ("city", "sea")), Column("age", fill="median"))
    assert np.array_equal(arrays.x, [[1, 0, 3], [0, 1, 4], [0, 0, 5], [1, 0, np.nan]], equal_nan=True)
    keep("mine", Own("t.csv", drop=("id",), fill="median", test=0))
    assert Own("mine").load().preprocessing == arrays.preprocessing
    assert Own("mine").load().scale == "federated"
    towns = "town,label\n" + "".join(f"town {i % 101},{i % 2}\n" for i in range(303))
    Path("t.csv").write_text(towns)
    refused(r'column town is text with 101 different values, more than 100: .* data.drop = \["town"\]', path="t.csv")


def test_where_text_is_missing_its_features_are_0_in_training_and_in_use():
    Path("t.csv").write_text("zone,age,label\ncity,3,0\n,4,1\nNA,5,0\nsea,6,1\n")
    arrays = Own("t.csv", test=0).load()
    assert arrays.x.tolist() == [[1, 0, 3], [0, 0, 4], [0, 0, 5], [0, 1, 6]]
    raw = {"zone": ["city", "", "NA", "sea"], "age": [3, 4, 5, 6]}
    assert np.array_equal(arrays.preprocessing.encode(raw), arrays.x)


@pytest.mark.parametrize(("values", "rows"), [(21, 41), (60, 60)])
def test_text_with_a_value_of_its_own_in_most_rows_is_no_feature(values, rows):
    """Numbers of patients and dates became up to 100 features."""
    text = "visit,label\n" + "".join(f"P{i % values:03},{i % 2}\n" for i in range(rows))
    Path("t.csv").write_text(text)
    refused(rf'visit is text with {values} different values in {rows} rows: .* data.drop = \["visit"\]', path="t.csv")


@pytest.mark.parametrize(("values", "rows"), [(20, 20), (21, 42), (100, 300)])
def test_text_whose_values_come_again_is_a_category(values, rows):
    Path("t.csv").write_text("zone,label\n" + "".join(f"z{i % values},{i % 2}\n" for i in range(rows)))
    assert Own("t.csv", test=0).load().x.shape == (rows, values)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["50,3", "51", "7,25"], 'column w looks like numbers with a comma in them, such as "50,3"; write them with a'),
        (["1,250", "950", "n"], 'with a comma in them, such as "1,250"'),
        (["1.250,5", "-2,5"], "with a comma in them"),
        (["50.3 kg", "51 KG", "7kg"], 'with a unit behind them, such as "50.3 kg"; write .* in the same unit'),
        (["5 %", "7,5%", "high"], "with a unit behind them"),
        (["5 mg/dl", "7 mg/dl"], "with a unit behind them"),
        ([f"{age}y" for age in range(30)], "values that are names must begin with a letter"),
    ],
)
def test_numbers_with_decimal_commas_or_units_are_no_categories(values, said):
    rows = [f'{i},"{value}",{i % 2}\n' for i, value in enumerate(values * 20)]
    Path("t.csv").write_text("a,w,label\n" + "".join(rows))
    refused(said, path="t.csv")


@pytest.mark.parametrize(
    "values",
    [
        ["1A", "2A", "3A"],
        ["2b", "T2", "x"],
        ["C50.1", "C50.2", "I10"],
        ["5 mg", "7 kg"],
        ["1st", "2nd", "3rd", "4th"],
        ["10-20", "20-30"],
        ["50 kg", "light", "heavy"],
        ["<5", ">100"],
    ],
)
def test_codes_stay_categories(values):
    rows = [f'{i},"{value}",{i % 2}\n' for i, value in enumerate(values * 20)]
    Path("t.csv").write_text("a,w,label\n" + "".join(rows))
    assert Own("t.csv").load().preprocessing.columns[1] == Column("w", tuple(sorted(values)))


def test_a_test_set_in_a_file_of_its_own():
    Path("t.csv").write_text("a,zone,label\n" + "".join(f"{i},{'xy'[i % 2]},{i % 2}\n" for i in range(10)))
    Path("e.csv").write_text("zone,label,a\ny,1,4\nx,0,5\n")
    arrays = Own("t.csv", test_path="e.csv").load()
    assert len(arrays.y) == 10
    assert arrays.test_x.tolist() == [[4, 0, 1], [5, 1, 0]], "columns are found by name"
    refused("data.test = 0.5, but", path="t.csv", test_path="e.csv", test=0.5)
    refused('data.test_path = "no.csv" does not exist', path="t.csv", test_path="no.csv")
    Path("e.csv").write_text("zone,label,a\nz,1,4\n")
    refused('e.csv: column zone: "z" did not occur in training; known: x, y', path="t.csv", test_path="e.csv")
    Path("e.csv").write_text("label,a\n1,4\n")
    refused("e.csv lacks column zone; both tables need the same columns", path="t.csv", test_path="e.csv")
    Path("e.csv").write_text("label,a,zone,more\n1,4,x,1\n")
    refused("e.csv has column more beside those of the training data", path="t.csv", test_path="e.csv")
    Path("e.csv").write_text("label,a,zone\n1,,x\n")
    refused("e.csv: 1 values are missing in column a", path="t.csv", test_path="e.csv")
    np.savez("e.npz", x=np.ones((2, 3)), y=[0, 1])
    refused("data.test_path = e.npz must be of the kind of data.path = t.csv", path="t.csv", test_path="e.npz")


def test_a_quantity_is_no_label():
    x, y = load_diabetes(return_X_y=True)
    np.savez("a.npz", x=x, y=y)
    refused("the labels are 214 different numbers for 442 samples, which looks like a quantity", path="a.npz")
    Path("t.csv").write_text("a,price\n" + "".join(f"{i},{i}.5\n" for i in range(30)))
    refused("labels must be classes, but 0.5 is a quantity", path="t.csv", label="price")


def test_other_names_of_arrays():
    np.savez("a.npz", X_train=np.ones((4, 2)), y_train=[0, 1, 0, 1], X_test=np.zeros((2, 2)), y_test=[0, 1])
    arrays = Own("a.npz").load()
    assert (len(arrays.y), len(arrays.test_y)) == (4, 2)


def test_without_pyarrow_the_way_to_get_it_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    Path("t.parquet").write_bytes(b"PAR1")
    refused(r"Parquet needs pyarrow; get it with: pip install 'fedstrata\[parquet\]'", path="t.parquet")


# ---- images --------------------------------------------------------------------------------------------------------


def picture(path: str, mode: str = "RGB", size: tuple[int, int] = (6, 4), value: int = 9) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value, 0, 255)).save(path)


def test_a_folder_a_class():
    for kind in ("cat", "dog"):
        for i in range(5):
            picture(f"pets/{kind}/{i}.png", value=i)
    Path("pets/cat/notes.txt").write_text("not an image")
    arrays = Own("pets").load()
    assert arrays.x.shape == (8, 3, 4, 6)
    assert arrays.x.dtype == np.uint8
    assert sorted(arrays.y.tolist()) == ["cat"] * 4 + ["dog"] * 4
    assert set(arrays.x[:, 2].ravel()) == {255}
    assert arrays.groups is None


def test_a_folder_a_client_and_class_and_grey_images():
    for client in ("north", "south"):
        for kind in ("cat", "dog"):
            for i in range(5):
                picture(f"pets/{client}/{kind}/{i}.png", mode="L", value=10 * (client == "north") + i)
    arrays = Own("pets").load()
    assert arrays.x.shape == (16, 1, 4, 6)
    assert np.array_equal(arrays.groups == "north", arrays.x[:, 0, 0, 0] >= 10)


def test_folders_of_training_and_test_images_are_no_clients():
    for part, count in (("train", 3), ("test", 2)):
        for kind in ("cat", "dog"):
            for i in range(count):
                picture(f"pets/{part}/{kind}/{i}.png")
    arrays = Own("pets").load()
    assert (len(arrays.y), len(arrays.test_y)) == (6, 4)
    assert arrays.groups is None


def test_a_large_folder_is_never_copied_into_memory(monkeypatch):
    for kind in ("cat", "dog"):
        for i in range(5):
            picture(f"pets/{kind}/{i}.png", value=i)
    small = Own("pets").load()
    monkeypatch.setattr(images, "IN_MEMORY", 0)
    large = Own("pets").load()
    for field in ("x", "test_x"):
        assert isinstance(getattr(large, field).base, mmap.mmap), field
        assert np.array_equal(getattr(large, field), getattr(small, field))


def test_a_size_is_only_for_folders_of_images():
    table()
    np.savez("a.npz", x=np.ones((4, 2)), y=[0, 1, 0, 1])
    for path in ("t.csv", "a.npz"):
        refused(f"data.size = 8 scales the images of a folder; {path} is not one", path=path, size=8)
    keep("mine", Own("a.npz"))
    refused(r'data.size: data.path = "mine" was imported, which settled it', path="mine", size=8)


def test_folders_that_are_refused():
    picture("a/cat/1.png")
    picture("a/dog/1.png", size=(5, 4))
    refused(r"different sizes: cat/1.png is 6 x 4, dog/1.png is 5 x 4; give a size .* data.size = 4", path="a")
    assert Own(path="a", size=8, test=0.0).load().x.shape == (2, 3, 8, 8)
    picture("b/cat/1.png")
    picture("b/dog/far/1.png")
    refused("CLASS/image.png or CLIENT/CLASS/image.png throughout; cat/1.png is elsewhere", path="b")
    Path("c").mkdir()
    refused("c holds no images", path="c")
    picture("d/only/cat/1.png")
    picture("d/only/dog/1.png")
    refused("names one client, only", path="d")
    picture("e/cat/1.png")
    picture("e/dog/1.png")
    Path("e/cat/2.png").write_bytes(b"no image")
    refused("cat/2.png: this is not an image", path="e")
    whole = Path("a/cat/1.png").read_bytes()
    picture("f/dog/1.png")
    Path("f/cat").mkdir()
    Path("f/cat/1.png").write_bytes(whole[:-30])
    refused("cat/1.png: the image is damaged", path="f")
    refused("data.label is about columns of a table; a is not one", path="a", label="kind")


# ---- imported, and trained on --------------------------------------------------------------------------------------


def test_imported_data_is_loaded_by_its_name():
    table()
    keep("patients", Own("t.csv", client="site", test=0.25))
    Path("t.csv").unlink()
    arrays = Own("patients").load()
    assert len(arrays.test_y) == round(0.25 * 14) + round(0.25 * 26)
    assert set(arrays.groups) == {"h0", "h1", "h2", "h3"}
    refused(r'data.client: data.path = "patients" was imported, which settled it', path="patients", client="site")
    refused(r'data.path = "patient" is unknown \(did you mean "patients"\?\)', path="patient")
    refused(r'data.path = "patient.csv" does not exist', path="patient.csv")
    for name in ("../up", "", ".hidden", "a b"):
        with pytest.raises(RequestError, match="allowed: letters, digits"):
            keep(name, Own("t.csv"))


def test_what_cannot_be_read_is_not_imported():
    Path("t.csv").write_text("a,kind\n1,2\n")
    with pytest.raises(RequestError, match="is not a column"):
        keep("patients", Own("t.csv"))
    assert store.names() == []
    assert not [p for p in store.folder().iterdir() if p.name.startswith(".")]


def test_a_run_on_a_table_where_every_client_is_itself():
    table(rows=120)
    asked = {"data.name": "own", "data.path": "t.csv", "data.client": "site", "data.partition": {"kind": "natural"}}
    asked |= LIGHT | {"train.rounds": 2, "train.clients_per_round": "all"}
    done = fedstrata.train(overrides=asked, out="run")
    assert done.summary["client_updates"] == 8


def test_clients_that_a_column_names_keep_their_rows_unless_something_else_is_asked():
    asked = {"data.name": "own", "data.path": "patients.csv", "data.client": "hospital"}
    kind = {
        case: Experiment.of(None, **asked, **more).data.partition["kind"]
        for case, more in {
            "nothing": {},
            "clients": {"data.clients": 5},
            "partition": {"data.partition": "iid"},
        }.items()
    }
    assert kind == {"nothing": "natural", "clients": "dirichlet-class", "partition": "iid"}


@pytest.mark.parametrize(
    "day", ["2024-{:02}-01", "{}/1/2024", "1.{}.2024", "2024/{}/1 12:30", "2024-{:02}-01T12:30:59.5Z"]
)
def test_dates_are_no_categories_however_few_they_are(day):
    """A model that knows four days as categories is of no use on the fifth."""
    rows = [f"{i},{day.format(i % 4 + 1)},v1.{i % 3}.20,{i % 2}" for i in range(40)]
    Path("t.csv").write_text("\n".join(["a,day,version,label", *rows]))
    first = day.format(1)
    refused(rf'column day holds dates, such as "{re.escape(first)}": .*data.drop = \["day"\]', path="t.csv")
    assert Own("t.csv", drop=("day",)).load().x.shape == (32, 4)  # versions are categories


def test_all_columns_that_are_no_features_are_named_at_once_with_those_left_out_already():
    rows = [f"{i},P{i:03},2024-01-{i % 28 + 1:02},x,{i % 2}" for i in range(60)]
    Path("t.csv").write_text("\n".join(["a,patient,day,ward,label", *rows]))
    said = (
        r"column patient is text with 60 different values in 60 rows, column day holds dates, such as "
        r'"2024-01-01": .*data.drop = \["ward", "patient", "day"\]'
    )
    refused(said, path="t.csv", drop=("ward",))


def test_text_in_another_encoding_is_refused_with_what_to_do():
    Path("t.csv").write_bytes("name,label\nMüller,1\n".encode("latin-1"))
    refused("not text in UTF-8: .*iconv -f latin1 -t utf-8 t.csv", path="t.csv")


def usual_partition(path):
    return Experiment.of(None, **{"data.name": "own", "data.path": path}).data.partition["kind"]


def test_clients_that_arrays_or_folders_name_keep_their_samples():
    x, y = np.zeros((8, 3)), np.arange(8) % 2
    np.savez("plain.npz", x=x, y=y)
    np.savez("owned.npz", x_train=x, y_train=y, client_train=y)
    for image in (
        "classes/cat/1.png",
        "clients/bonn/cat/1.png",
        "parts/train/bonn/cat/1.png",
        "parts/test/b/cat/1.png",
    ):
        Path(image).parent.mkdir(parents=True)
        Path(image).touch()
    for written in ("leaf/train/all.json", "pfllib/train/0.npz", "alone/all.json"):
        Path(written).parent.mkdir(parents=True)
        Path(written).touch()
    Path("damaged.npz").write_bytes(b"PK")
    own = ("owned.npz", "clients", "parts", "leaf", "pfllib", "alone")
    assert {path: usual_partition(path) for path in own} == dict.fromkeys(own, "natural")
    others = ("plain.npz", "classes", "damaged.npz", "nowhere")
    assert {path: usual_partition(path) for path in others} == dict.fromkeys(others, "dirichlet-class")


def test_clients_of_imported_data_keep_their_samples():
    table(rows=120)
    keep("owned", Own("t.csv", client="site"))
    keep("plain", Own("t.csv"))
    assert usual_partition("owned") == "natural"
    assert usual_partition("plain") == "dirichlet-class"
    done = fedstrata.train(
        overrides={"data.name": "own", "data.path": "owned", "train.rounds": 1, "train.clients_per_round": "all"},
        out="run",
    )
    assert done.summary["client_updates"] == 4
