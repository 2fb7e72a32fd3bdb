"""Hugging Face data sets, Flower's partitioners as partitions, and ours as partitioners of Flower's."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image as Pillow

import fedstrata
from fedstrata.core.rng import Streams
from fedstrata.data.partitions.base import Labelled

pytest.importorskip("datasets")
pytest.importorskip("flwr_datasets")

TRAIN = Labelled(np.repeat(np.arange(5), 80), np.repeat([f"site {i}" for i in range(8)], 50))
TEST = Labelled(np.repeat(np.arange(5), 20), np.repeat([f"site {i}" for i in range(5)], 20))


def deal(partitioner, clients=6, seed=0, **options):
    part = fedstrata.make_part("partitions", "flwr", partitioner=partitioner, **options)
    return part.deal(TRAIN, TEST, clients, Streams(seed)("partition"))


@pytest.mark.parametrize(
    ("partitioner", "options"),
    [
        ("DirichletPartitioner", {"alpha": 0.3}),
        ("IidPartitioner", {}),
        ("PathologicalPartitioner", {"num_classes_per_partition": 2}),
        ("ShardPartitioner", {"num_shards_per_partition": 2}),
        ("LinearPartitioner", {}),
        ("SizePartitioner", {"partition_sizes": (10, 20, 30, 40, 50, 60)}),
    ],
)
def test_a_partitioner_of_flower_deals_every_sample_to_at_most_one_client(partitioner, options):
    dealt = deal(partitioner, **options)
    rows = np.concatenate(dealt.train)
    assert len(dealt.train) == len(dealt.test) == 6
    assert len(np.unique(rows)) == len(rows) <= 400
    for client in range(6):
        trained, tested = TRAIN.labels[dealt.train[client]], TEST.labels[dealt.test[client]]
        assert set(tested) <= set(trained)  # tested on what it trains on
    again, other = deal(partitioner, **options), deal(partitioner, seed=1, **options)
    assert all(map(np.array_equal, dealt.train, again.train))
    assert not all(map(np.array_equal, dealt.train, other.train))


def test_it_deals_what_flower_itself_deals():
    """Two classes a client, and sizes as asked for: by Flower's own rules."""
    dealt = deal("PathologicalPartitioner", num_classes_per_partition=2)
    assert [len(set(TRAIN.labels[rows])) for rows in dealt.train] == [2] * 6
    sizes = deal("SizePartitioner", partition_sizes=(10, 20, 30, 40, 50, 60)).train
    assert list(map(len, sizes)) == [10, 20, 30, 40, 50, 60]


def test_clients_as_the_data_name_them_are_tested_on_their_own():
    dealt = deal("NaturalIdPartitioner", clients=None)
    assert len(dealt.train) == 8
    for trained, tested in zip(dealt.train, dealt.test, strict=True):
        assert set(TEST.groups[tested]) <= set(TRAIN.groups[trained])
    assert sorted(np.concatenate(dealt.test)) == list(range(100))


@pytest.mark.parametrize(
    ("partitioner", "options", "said"),
    [
        ("IidPartitioner", {"alpha": 0.3}, "data.partition.alpha is no option of IidPartitioner; allowed: none"),
        ("PathologicalPartitioner", {}, "data.partition.num_classes_per_partition is required"),
        ("DirichletPartitioner", {"min_partition_size": 300}, "DirichletPartitioner refuses"),
        ("SizePartitioner", {"partition_sizes": (10, 20)}, "deals to 2; leave it out"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(partitioner, options, said):
    with pytest.raises(fedstrata.RequestError, match=said):
        deal(partitioner, **options)


def test_an_experiment_names_a_partitioner_of_flower():
    asked = {"kind": "flwr", "partitioner": "DirichletPartitioner", "alpha": 0.3}
    run = fedstrata.train(overrides={"data.partition": asked, "data.clients": 8, "train.rounds": 1})
    assert run.events()[0]["clients"] == 8
    with pytest.raises(fedstrata.RequestError, match=r"needs data\.clients"):
        fedstrata.train(overrides={"data.partition": asked, "train.rounds": 1})


@pytest.mark.parametrize(("kind", "options"), [("dirichlet-class", {"alpha": 0.3}), ("natural", {}), ("shards", {})])
def test_ours_deals_in_flower_as_it_does_here(kind, options):
    from datasets import Dataset  # noqa: PLC0415

    from fedstrata.flower_strategy import FedstrataPartitioner  # noqa: PLC0415

    clients = None if kind == "natural" else 5
    ours = fedstrata.make_part("partitions", kind, **options)
    dealt = ours.deal(TRAIN, Labelled(TRAIN.labels[:0], TRAIN.groups[:0]), clients, Streams(7)("partition"))
    theirs = FedstrataPartitioner(kind, clients, partition_by="digit", group_by="writer", seed=7, **options)
    theirs.dataset = Dataset.from_dict({"digit": TRAIN.labels, "writer": TRAIN.groups, "row": np.arange(400)})
    assert theirs.num_partitions == len(dealt.train)
    for i, rows in enumerate(dealt.train):
        assert theirs.load_partition(i)["row"][:] == rows.tolist()


# ---- Hugging Face data sets ----------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path):
    """Images with class names and writers, as `save_to_disk` writes them."""
    from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, Value  # noqa: PLC0415

    rng = np.random.default_rng(0)
    kinds = Features({"image": Image(), "label": ClassLabel(names=["cat", "dog"]), "writer": Value("string")})

    def make(samples):
        labels = [i % 2 for i in range(samples)]
        pictures = [Pillow.fromarray((rng.random((8, 8)) * 100 + 100 * y).astype(np.uint8)) for y in labels]
        columns = {"image": pictures, "label": labels, "writer": [f"w{i % 3}" for i in range(samples)]}
        return Dataset.from_dict(columns, features=kinds)

    both = DatasetDict({"train": make(90), "test": make(30)})
    both.save_to_disk(tmp_path / "both")
    both["train"].save_to_disk(tmp_path / "one")
    return tmp_path


def test_a_folder_of_save_to_disk_is_trained_on_by_name(saved):
    data = {"name": "hf", "path": str(saved / "both"), "clients": 3}
    run = fedstrata.train({"data": data, "train": {"rounds": 3, "clients_per_round": "all"}})
    start = run.events()[0]
    assert (start["samples"], start["test_samples"], start["classes"]) == (90, 30, ["cat", "dog"])
    assert run.summary["accuracy"] > 0.9


def test_a_column_names_clients_and_a_test_set_is_held_out(saved):
    data = {"name": "hf", "path": str(saved / "one"), "client": "writer", "test": 0.3}
    run = fedstrata.train({"data": data, "train": {"rounds": 1}})
    start = run.events()[0]
    assert start["clients"] == 3
    assert start["samples"] + start["test_samples"] == 90
    assert start["test_samples"] == 28  # 0.3 of 45, for each label


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "needs data.path"),
        ({"path": "nowhere"}, "is no folder"),
        ({"path": ".", "hub": "mnist"}, "needs data.path"),
        ({"path": "both", "label": "kind"}, 'data.label = "kind" is no column; there are image, label, writer'),
        ({"path": "both", "train": "training"}, 'data.train = "training" is no split; there are train, test'),
        ({"path": "both", "test": 0.5}, "there is a split test"),
        ({"path": "."}, "cannot be loaded"),
    ],
)
def test_a_wrong_request_is_refused(saved, options, said, monkeypatch):
    monkeypatch.chdir(saved)
    with pytest.raises(fedstrata.RequestError, match=said):
        fedstrata.make_part("datasets", "hf", **options).load()
