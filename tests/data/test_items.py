"""Data sets from Python: dicts, loaders, Hugging Face objects, images of Pillow, and clients with names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

import fedstrata
from fedstrata import Federation, RequestError
from fedstrata.report import tables
from fedstrata.report.figures.clients import participation

HALVES = [range(0, 10), range(10, 20)]


class Dicts(Dataset):
    """Items as dicts, as many people write them."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class HuggingFace(Dicts):
    """What a `datasets.Dataset` shows: dict items, and `features` with names of the classes."""

    features: ClassVar = {"image": None, "label": SimpleNamespace(names=["cat", "dog"])}


def grey(value: int, mode: str = "L") -> Image.Image:
    return Image.new(mode, (5, 4), value if mode == "L" else (value, 0, 7))


def test_items_may_be_dicts():
    items = [{"features": torch.full((3,), float(i)), "target": i % 2, "id": i} for i in range(20)]
    federation = Federation.from_dataset(Dicts(items), HALVES, test=0.0)
    assert federation.train.x[7].tolist() == [7, 7, 7]
    assert federation.classes == (0, 1)


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"a": 1, "label": 0}, "items of the data set have a, label; none of them could be the sample"),
        ({"x": 1, "image": 1, "label": 0}, "2 of them could be the sample: call one of them x"),
        ({"x": [1.0]}, "none of them could be the label"),
    ],
)
def test_dicts_that_cannot_be_told_apart_are_refused(item, said):
    with pytest.raises(RequestError, match=said):
        Federation.from_dataset(Dicts([item] * 20), HALVES)
    with pytest.raises(RequestError, match="item 1 of the data set has no x or no label"):
        Federation.from_dataset(Dicts([{"x": [1.0], "label": 0}, {"x": [1.0]}]), HALVES)


def test_a_loader_gives_every_item_once_and_in_order():
    pairs = TensorDataset(torch.arange(20.0)[:, None], torch.arange(20) % 2)
    federation = Federation.from_dataset(
        DataLoader(pairs, batch_size=3, shuffle=True, drop_last=True), HALVES, test=0.0
    )
    assert federation.train.x.flatten().tolist() == list(range(20))
    with pytest.raises(RequestError, match=r"in its own way \(collate_fn\); give its data set instead"):
        Federation.from_dataset(DataLoader(pairs, collate_fn=list), HALVES)


def test_a_hugging_face_data_set_has_images_and_names_of_classes():
    data = HuggingFace([{"image": grey(i, "RGB" if i == 3 else "L"), "label": i % 2} for i in range(20)])
    federation = Federation.from_dataset({"train": data, "test": data}, HALVES)
    assert federation.train.x.shape == (20, 3, 4, 5)
    assert federation.train.x.dtype == torch.uint8
    assert federation.classes == ("cat", "dog")
    assert federation.tests == 20
    only_grey = HuggingFace([{"image": grey(i), "label": i % 2} for i in range(20)])
    assert Federation.from_dataset(only_grey, HALVES).train.x.shape == (20, 1, 4, 5)
    with pytest.raises(RequestError, match="data sets are train, validation; allowed: train, and test if any"):
        Federation.from_dataset({"train": data, "validation": data}, HALVES)


def test_what_is_no_data_set_is_refused():
    for strange in (iter([1]), {1, 2}, 7):
        with pytest.raises(RequestError, match="a data set must be a pair"):
            Federation.from_dataset(strange, HALVES)


# ---- clients with names, partitions by name -------------------------------------------------------------------------


def hospital(seed: int, rows: int = 20):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, 3)), np.arange(rows) % 2


def test_clients_keep_their_names():
    federation = Federation.from_clients({"kiel": hospital(0), "bonn": hospital(1, 10)})
    assert federation.names == ("kiel", "bonn"), "in the order in which they are given"
    tests = {"bonn": hospital(2, 4), "kiel": hospital(3, 6)}
    federation = Federation.from_clients({"kiel": hospital(0), "bonn": hospital(1, 10)}, test=tests)
    assert federation.test_split.sizes.tolist() == [6, 4]
    with pytest.raises(RequestError, match="the same ones in test"):
        Federation.from_clients({"kiel": hospital(0), "bonn": hospital(1)}, test={"kiel": hospital(2)})
    with pytest.raises(RequestError, match="client bonn: a data set must be a pair"):
        Federation.from_clients({"kiel": hospital(0), "bonn": 7})


def test_one_data_set_of_torch_is_the_test_set_of_all():
    """Its items, or the batches of a loader, were taken for one test set a client."""
    x, y = (torch.from_numpy(part) for part in hospital(2, 6))
    pairs, dicts = TensorDataset(x, y), Dicts([{"x": a, "y": b} for a, b in zip(x, y, strict=True)])
    clients = [hospital(0), hospital(1), hospital(3)]
    for test in (pairs, dicts, Subset(pairs, range(6)), DataLoader(pairs, batch_size=2)):
        for federation in (
            Federation.from_clients(clients, test=test),
            Federation.from_clients({"a": clients[0], "b": clients[1], "c": clients[2]}, test=test),
            Federation.from_dataset(TensorDataset(*map(torch.as_tensor, clients[0])), HALVES, test=test),
        ):
            assert torch.equal(federation.test.x, x.to(federation.test.x.dtype))
            assert federation.test_split.sizes.tolist() == [0] * len(federation)
    each = Federation.from_clients(clients, test=[pairs, pairs, pairs])
    assert each.test_split.sizes.tolist() == [6, 6, 6]


def test_one_data_set_is_not_taken_for_many_clients():
    pairs = TensorDataset(*map(torch.as_tensor, hospital(0)))
    for data in (pairs, DataLoader(pairs, batch_size=10)):  # of two batches, which became two clients
        with pytest.raises(RequestError, match=r"clients is one data set, \w+: .* Federation.from_dataset"):
            Federation.from_clients(data)


def test_owners_rows_and_groups_name_clients_too():
    x, y = hospital(0)
    assert Federation.from_arrays(x, y, ["b", "a"] * 10).names == ("a", "b")
    assert Federation.from_arrays(x, y, {"a": range(10), "b": range(10, 20)}).names == ("a", "b")
    assert Federation.from_arrays(x, y, HALVES).names is None
    by_group = Federation.from_arrays(x, y, None, partition="natural", groups=["north"] * 10 + ["south"] * 10)
    assert by_group.names == ("north", "south")


def test_names_are_in_tables_figures_and_inspections():
    federation = Federation.from_clients({"kiel": hospital(0), "bonn": hospital(1, 10)}, scale="federated")
    run = fedstrata.train(federation=federation, overrides={"train.rounds": 2, "train.clients_per_round": "all"})
    assert run.events()[0]["names"] == ["kiel", "bonn"]
    told = fedstrata.RunData.read(run.path)
    assert {row[1] for row in tables.clients(told).rows} == {"kiel", "bonn"}
    drawn = participation(told)
    assert set(drawn.data[0].y) == {"kiel", "bonn"}
    assert fedstrata.inspect(federation=federation).table.clients == ("kiel", "bonn")


def test_partitions_by_name():
    x, y = hospital(0, 100)
    by_part = fedstrata.make_part("partitions", "dirichlet-class", alpha=0.3)
    ours, theirs = (
        Federation.from_arrays(x, y, 4, partition=partition, seed=3)
        for partition in ({"kind": "dirichlet-class", "alpha": 0.3}, by_part)
    )
    assert ours.fingerprint == theirs.fingerprint
    with pytest.raises(RequestError, match=r'partition\.kind = "dirichlet" is unknown'):
        Federation.from_arrays(x, y, 4, partition="dirichlet")
    with pytest.raises(RequestError, match=r"partition\.alfa is not an option"):
        Federation.from_arrays(x, y, 4, partition={"kind": "dirichlet-class", "alfa": 0.3})


def test_a_sample_of_several_arrays_is_refused():
    items = [((torch.ones(3), torch.ones(2)), i % 2) for i in range(20)]
    with pytest.raises(RequestError, match="client 0: a sample must be one array, tensor or image, not a tuple"):
        Federation.from_clients([Dicts(items)])


class Random(Dataset):
    """Draws something anew each time a sample is read, as augmentation does."""

    def __len__(self):
        return 20

    def __getitem__(self, i):
        return torch.rand(3), i % 2


def test_samples_that_differ_each_time_they_are_read_are_warned_of():
    with pytest.warns(UserWarning, match="each is read only once: crops, flips .* set train.augment"):
        Federation.from_dataset(Random(), HALVES, scale="none")
    gaps = TensorDataset(torch.full((20, 3), float("nan")), torch.arange(20) % 2)
    with pytest.raises(RequestError, match="hold NaN"):  # and no warning: a gap is not another gap
        Federation.from_dataset(gaps, HALVES)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (["b", "a"], "has the columns of {} in another order; they are taken by position"),
        (["a", "c"], "has other columns than {}: b, c; they are taken by position"),
    ],
)
def test_data_frames_whose_columns_differ_are_refused(columns, said):
    pandas = pytest.importorskip("pandas")
    x, y = np.arange(24.0).reshape(12, 2) / 24, np.arange(12) % 3
    one, other = pandas.DataFrame(x, columns=["a", "b"]), pandas.DataFrame(x, columns=columns)
    same, differing = (one, y), (other, y)
    assert len(Federation.from_clients([same, same], test=same)) == 2
    with pytest.raises(RequestError, match=f"^client 1 {said.format('client 0')}"):
        Federation.from_clients([same, differing])
    with pytest.raises(RequestError, match=f"^test {said.format('client 0')}"):
        Federation.from_clients([same, same], test=differing)
    with pytest.raises(RequestError, match=f"^test of client 0 {said.format('client 0')}"):
        Federation.from_clients([same], test=[differing])
    with pytest.raises(RequestError, match=f"^test {said.format('x')}"):
        Federation.from_arrays(one, y, [range(0, 6), range(6, 12)], test=differing)
