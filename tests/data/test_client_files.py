"""Folders of LEAF and PFLlib, and images in Parquet files."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedstrata import Experiment
from fedstrata.config.build import build_federation
from fedstrata.core import registry
from fedstrata.core.errors import RequestError
from fedstrata.data.sets.own import Own

PARTS = ("train", "test")


def refused(said: str, **options):
    with pytest.raises(RequestError, match=said):
        registry.build("datasets", "own", options, "data").load()


def leaf(folder: str = "leaf", **change) -> None:
    for part, rows in zip(PARTS, (6, 2), strict=True):
        Path(folder, part).mkdir(parents=True)
        users = {
            name: {"x": [[i, 2.0, s] for i in range(rows)], "y": [i % 2 for i in range(rows)]}
            for s, name in enumerate(("ada", "bo"))
        }
        content = {"users": list(users), "num_samples": [rows] * 2, "user_data": users, **change}
        Path(folder, part, f"all_data_{part}.json").write_text(json.dumps(content))


def pfllib(folder: str = "pfl", clients: int = 12, rows: int = 6) -> None:
    for part in PARTS:
        Path(folder, part).mkdir(parents=True)
        for client in range(clients):
            own = {"x": np.full((rows, 1, 4, 4), client, np.float32), "y": np.arange(rows) % 3}
            with Path(folder, part, f"{client}.npz").open("wb") as file:  # as PFLlib writes them
                np.savez_compressed(file, data=own)
    Path(folder, "config.json").write_text(json.dumps({"num_clients": clients}))


def test_a_folder_of_leaf():
    leaf()
    arrays = Own("leaf").load()
    assert arrays.x.shape == (12, 3)
    assert set(arrays.groups) == {"ada", "bo"}
    assert np.array_equal(arrays.x[:, 2], arrays.groups == "bo")
    assert len(arrays.test_y) == 4
    federation = build_federation(Experiment.of({"data": {"name": "own", "path": "leaf", "partition": "natural"}}))
    assert federation.names == ("ada", "bo")


def test_a_folder_of_leaf_without_a_test_set():
    leaf()
    Path("leaf/train/all_data_train.json").rename("all_data.json")
    Path("flat").mkdir()
    Path("all_data.json").rename("flat/all_data.json")
    Path("flat/notes.json").write_text("[]")
    arrays = Own("flat").load()
    assert (len(arrays.y), len(arrays.test_y)) == (10, 2)


def test_folders_of_leaf_that_are_refused():
    leaf("a", users=["ada", "eve"])
    refused("all_data_train.json is not a file of LEAF, or is damaged: no 'eve'", path="a")
    leaf("b", user_data={"ada": {"x": ["to be"], "y": [0]}, "bo": {"x": ["or not"], "y": [1]}})
    refused("samples of client ada are text, not numbers", path="b")
    leaf("c", user_data={"ada": {"x": [[1.0]], "y": [0]}, "bo": {"x": [[1.0, 2.0]], "y": [1]}})
    refused("clients hold samples of different shapes", path="c")
    leaf("d", user_data={"ada": {"x": [[1.0]], "y": [0, 1]}, "bo": {"x": [[1.0]], "y": [1]}})
    refused("client ada has 1 samples, and labels of shape", path="d")


def test_a_folder_of_pfllib():
    pfllib()
    arrays = Own("pfl").load()
    assert arrays.x.shape == (72, 1, 4, 4)
    assert list(dict.fromkeys(arrays.groups)) == [str(i) for i in range(12)], "2 comes before 10"
    assert np.array_equal(arrays.groups.astype(int), arrays.x[:, 0, 0, 0])
    refused("data.size = 8 scales images; pfl holds none", path="pfl", size=8)


class Evil:
    """A pickle that would run a program."""

    def __reduce__(self):
        return os.mkdir, ("run",)


def test_a_file_that_would_run_a_program_is_refused_and_runs_none():
    pfllib(clients=2)
    for data, said in (
        ({"x": Evil(), "y": [0]}, "it asks for .*mkdir, which is not part of an array"),
        ({"x": np.ones((2, 2))}, "0.npz has no y; it has: x"),
        ([1, 2], "`data` is not a dict"),
    ):
        np.savez("pfl/train/0.npz", data=np.array(data, dtype=object))
        refused(said, path="pfl")
    np.savez("pfl/train/0.npz", x=np.ones(3))
    refused("has no array `data`", path="pfl")
    Path("pfl/train/0.npz").write_bytes(b"no archive")
    refused("cannot be read as a file of PFLlib", path="pfl")
    assert not Path("run").exists()


# ---- images in Parquet ---------------------------------------------------------------------------------------------


def photo(value: int, mode: str = "L", size: tuple[int, int] = (5, 4)) -> bytes:
    file = io.BytesIO()
    Image.new(mode, size, value if mode == "L" else (value, 0, 0)).save(file, "PNG")
    return file.getvalue()


def photos(images: list[bytes | None], labels: list[int], names: list[str] | None = None) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = arrow.table(
        {
            "image": [{"bytes": data, "path": None} for data in images],
            "label": labels,
            "camera": [f"c{i % 2}" for i in range(len(labels))],
        }
    )
    if names is not None:
        about = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(about)})
    parquet.write_table(table, "p.parquet")


def test_images_in_parquet():
    photos([photo(i) for i in range(10)], [i % 2 for i in range(10)], ["cat", "dog"])
    arrays = Own("p.parquet", client="camera", test=0).load()
    assert arrays.x.shape == (10, 1, 4, 5)
    assert arrays.x[:, 0, 0, 0].tolist() == list(range(10))
    assert arrays.y.tolist() == ["cat", "dog"] * 5
    assert set(arrays.groups) == {"c0", "c1"}
    assert arrays.scale == "federated"
    photos([photo(i, "RGB" if i else "L", (5 + i, 4)) for i in range(10)], [i % 2 for i in range(10)])
    refused("images have different sizes: row 0 is 5 x 4, row 1 is 6 x 4; give a data.size", path="p.parquet")
    arrays = Own("p.parquet", size=8, test=0).load()
    assert arrays.x.shape == (10, 3, 8, 8)
    assert arrays.y.tolist() == [0, 1] * 5


def test_images_in_parquet_that_are_refused():
    photos([photo(1), None], [0, 1])
    refused("1 images are missing, the first at row 1", path="p.parquet")
    photos([photo(1), b"no image"], [0, 1])
    refused("an image cannot be read", path="p.parquet")
    photos([photo(1), photo(2)], [0, 1])
    refused(
        'data.label = "kind" is not a column of p.parquet; its columns: image, label', path="p.parquet", label="kind"
    )
    refused("data.drop and data.fill are about features of a table", path="p.parquet", drop=["camera"])
