"""A federation: built from whatever the user holds, data by index, and a server that knows only what was declared."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from fedstrata.core.errors import PartError, RequestError
from fedstrata.core.rng import Streams
from fedstrata.data.federation import Federation
from fedstrata.data.partitions.base import hold_out
from fedstrata.data.partitions.dirichlet import DirichletClass
from fedstrata.data.partitions.iid import Iid
from fedstrata.data.partitions.labels import LabelsPerClient

NAN = float("nan")
X = np.arange(24, dtype=np.float32).reshape(12, 2)
Y = np.arange(12) % 3
ROWS = [[0, 1, 2, 3, 4], [5, 6], [7, 8, 9, 10, 11]]
TEST = (X[:6], Y[:6])
PIXELS = X.astype(np.uint8)


class Pairs(Dataset):
    """A data set that only offers what torch asks for: a length and items."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def build(x=X, y=Y, clients=ROWS, **how):
    return Federation.from_arrays(x, y, clients, **({"test": TEST} | how))


# ---- building ----------------------------------------------------------------------------------------------------


def test_rows_of_each_client_become_counts_and_sizes():
    federation = build()
    assert len(federation) == 3
    assert federation.train_split.sizes.tolist() == [5, 2, 5]
    assert federation.counts.tolist() == [[2, 2, 1], [1, 0, 1], [1, 2, 2]]  # labels are row mod 3
    client = federation.client(1)
    assert (client.id, client.samples, client.classes, client.speed) == (1, 2, 3, 1.0)
    assert (client.rows.tolist(), client.labels.tolist()) == ([5, 6], [2, 0])


def test_rows_are_sorted_whatever_the_order_they_are_given_in():
    assert build(clients=[[4, 0, 2], [11, 5]]).train_split[0].tolist() == [0, 2, 4]


@pytest.mark.parametrize("y", [Y, Y.tolist(), torch.tensor(Y), torch.tensor(Y, dtype=torch.uint8), Y.astype(float)])
@pytest.mark.parametrize("x", [X, X.tolist(), torch.tensor(X), X.astype(np.float64), X[:, ::-1][:, ::-1]])
def test_arrays_lists_and_tensors_give_the_same_federation(x, y):
    federation = build(x, y)
    assert np.array_equal(federation.train.x.numpy(), X)
    assert federation.train.y.tolist() == Y.tolist()
    assert federation.train.y.dtype == torch.int64
    assert federation.classes == (0, 1, 2)


@pytest.mark.parametrize(
    "data", [TensorDataset(torch.tensor(X), torch.tensor(Y)), Pairs(X, Y), Pairs(X, Y.tolist()), (X, Y)]
)
def test_a_torch_dataset_gives_what_its_arrays_give(data):
    assert Federation.from_dataset(data, ROWS, test=TEST).fingerprint == build().fingerprint


def test_one_data_set_a_client():
    clients = [(X[:5], Y[:5]), TensorDataset(torch.tensor(X[5:7]), torch.tensor(Y[5:7])), Pairs(X[7:], Y[7:])]
    federation = Federation.from_clients(clients, test=[(X[:1], Y[:1]), (X[1:3], Y[1:3]), (X[3:6], Y[3:6])])
    assert torch.equal(federation.train.x, torch.tensor(X))
    assert [federation.train_split[i].tolist() for i in range(3)] == ROWS
    assert [federation.test_split[i].tolist() for i in range(3)] == [[0], [1, 2], [3, 4, 5]]


def test_all_clients_may_share_one_test_set():
    federation = Federation.from_clients({"bonn": (X[4:], Y[4:]), "kiel": (X[4:], Y[4:])}, test=(X[:4], Y[:4]))
    assert federation.names == ("bonn", "kiel")
    assert federation.test.y.tolist() == Y[:4].tolist()
    assert federation.train_split.sizes.tolist() == [len(Y) - 4] * 2


def test_one_data_set_a_client_may_hold_out_a_share():
    federation = Federation.from_clients([(X, Y), (X, Y)], test=0.25)
    assert len(federation.test) == 6  # 8 samples a label, 2 of each held out
    assert federation.train_split.sizes.sum() == 18
    assert federation.test_split.sizes.sum() == 6


@pytest.mark.parametrize("share", [0, 0.0])
def test_nothing_is_held_out_if_the_share_is_zero(share):
    assert Federation.from_clients([(X, Y), (X, Y)], test=share).train_split.sizes.tolist() == [12, 12]


@pytest.mark.parametrize("empty", [(X[:0], Y[:0]), Pairs(X[:0], Y[:0])], ids=["pair", "dataset"])
def test_a_client_may_have_nothing(empty):
    federation = Federation.from_clients([(X, Y), empty], test=[TEST, empty])
    assert federation.train_split.sizes.tolist() == [12, 0]
    assert federation.client_info(frozenset(), Streams(0)).holders.tolist() == [0]


@pytest.mark.parametrize("clients", [4, np.int64(4)], ids=["int", "numpy"])
def test_a_number_of_clients_is_dealt_out_by_the_partition(clients):
    federation = build(clients=clients, partition=Iid())
    assert federation.train_split.sizes.tolist() == [3, 3, 3, 3]
    assert federation.test_split.sizes.tolist() == [2, 2, 1, 1]
    assert np.sort(federation.train_split.rows).tolist() == list(range(12))


def test_the_seed_decides_the_partition_and_the_held_out_samples():
    def fingerprint(seed):
        return build(clients=3, partition=Iid(), test=0.25, seed=seed).fingerprint

    assert fingerprint(0) == fingerprint(0)
    assert fingerprint(0) != fingerprint(1)


def test_the_fingerprint_tells_data_labels_and_owners_apart():
    other_x, other_y = X.copy(), Y.copy()
    other_x[0, 0], other_y[0] = 99, 1
    moved = [ROWS[0] + [5], [6], ROWS[2]]
    prints = {f.fingerprint for f in (build(), build(other_x), build(y=other_y), build(clients=moved))}
    assert len(prints) == 4
    assert build().fingerprint in prints


# ---- labels, groups, speeds --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "classes"),
    [
        (["dog", "cat", "owl"], ("cat", "dog", "owl")),
        ([7, -1, 300], (-1, 7, 300)),
        ([2.0, 0.0, 9.0], (0, 2, 9)),
    ],
)
@pytest.mark.parametrize("as_objects", [False, True])
def test_strings_and_gaps_are_mapped_and_the_map_is_kept(names, classes, as_objects):
    y = np.array(names * 4, dtype=object if as_objects else None)
    federation = build(y=y, test=(X[:2], y[:2]))
    assert federation.classes == classes
    assert [federation.classes[i] for i in federation.labels] == names * 4
    assert [federation.classes[i] for i in federation.test.y] == names[:2]


def test_test_labels_follow_the_map_of_the_training_labels():
    federation = build(y=["a", "b", "c"] * 4, test=(X[:2], ["c", "c"]))  # alone, "c" would be class 0
    assert federation.test.y.tolist() == [2, 2]


def test_groups_of_the_test_set_are_kept():
    federation = build(groups=["home"] * 12, test=(X[:3], Y[:3], ["lab", "home", "lab"]))
    assert federation.test.groups.tolist() == ["lab", "home", "lab"]
    assert federation.train.groups.tolist() == ["home"] * 12


def test_groups_go_with_the_samples_that_are_held_out():
    federation = build(groups=X[:, 0].astype(int), test=0.25)
    assert len(federation.test) == 3
    assert federation.test.groups.tolist() == federation.test.x[:, 0].tolist()


def test_speeds_are_known_to_the_client_and_to_a_server_that_asks():
    federation = build(speeds=[1, 0.5, 4])
    assert federation.client(2).speed == 4.0
    assert federation.client_info(frozenset({"speeds"}), Streams(0)).speeds.tolist() == [1.0, 0.5, 4.0]
    assert build().client_info(frozenset({"speeds"}), Streams(0)).speeds.tolist() == [1.0, 1.0, 1.0]


# ---- shared data -------------------------------------------------------------------------------------------------


def test_samples_are_shared_and_clients_are_views():
    federation = build()
    assert np.shares_memory(federation.train.x.numpy(), X)
    for i in range(3):
        assert np.shares_memory(federation.client(i).rows, federation.train_split.rows)
        assert np.shares_memory(federation.train_split[i], federation.train_split.rows)


def test_many_clients_cost_one_index_each():
    clients = 10_000
    x, y = np.zeros((clients, 1), np.float32), np.arange(clients) % 2
    federation = build(x, y, clients, partition=Iid(), test=(x[:2], y[:2]))
    assert federation.train_split.rows.nbytes == 8 * clients
    assert federation.train_split.starts.nbytes == 8 * (clients + 1)
    assert federation.client(9_999).samples == 1


# ---- what the server knows ---------------------------------------------------------------------------------------

KNOWN = {"sizes": [5, 2, 5], "counts": [[2, 2, 1], [1, 0, 1], [1, 2, 2]], "speeds": [1, 2, 3]}
BYTES = {"sizes": 8 * 3, "counts": 4 * 9, "speeds": 8 * 3}


@pytest.mark.parametrize("needs", [(), ("sizes",), ("counts",), ("speeds",), ("sizes", "counts"), tuple(KNOWN)])
def test_the_client_info_shows_what_was_declared_and_charges_for_it(needs):
    client_info = build(speeds=[1, 2, 3]).client_info(frozenset(needs), Streams(0))
    assert (client_info.clients, client_info.classes) == (3, 3)
    assert client_info.setup_bytes == sum(BYTES[name] for name in needs)
    for name, value in KNOWN.items():
        if name in needs:
            assert getattr(client_info, name).tolist() == value
        else:
            with pytest.raises(RequestError, match=rf'client_info\.{name} without declaring.*"{name}".*needs'):
                getattr(client_info, name)


def test_what_the_client_info_has_not_is_answered_with_what_it_has():
    client_info = build().client_info(frozenset({"sizes"}), Streams(0))
    said = (
        r"client_info\.samples, which is not there; there are clients, .*, where its `needs` names them, sizes, labels"
    )
    with pytest.raises(PartError, match=said):
        _ = client_info.samples
    assert not hasattr(client_info, "samples")  # as of any object
    assert copy.copy(client_info).sizes is client_info.sizes


def test_the_tie_break_is_a_seeded_permutation():
    key = [build(clients=np.arange(12)[:, None]).client_info(frozenset(), Streams(s)).key.tolist() for s in (0, 0, 1)]
    assert sorted(key[0]) == list(range(12))
    assert key[0] == key[1] != key[2]


# ---- held out, left out ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("share", "held"), [(0.0, [0, 0]), (0.2, [4, 1]), (0.5, [10, 2]), (0.99, [20, 4])])
def test_the_same_share_of_every_label_is_held_out(share, held):
    labels = np.array([0] * 20 + [1] * 4)  # round half to even: .2 * 4 -> 1, .99 * 4 -> 4
    train, test = hold_out(np.arange(24), labels, share, Streams(0)("hold-out"))
    assert np.bincount(labels[test], minlength=2).tolist() == held
    assert np.sort(np.concatenate([train, test])).tolist() == list(range(24))


def test_held_out_samples_stay_with_their_client_and_are_never_trained_on():
    federation = build(test=0.25)
    assert len(federation.test) == 3  # a quarter of 4 samples, for each of 3 labels
    for client, rows in enumerate(ROWS):
        trained = federation.train_split[client].tolist()
        tested = (federation.test.x[federation.test_split[client]][:, 0].numpy() / 2).astype(int).tolist()
        assert sorted(trained + tested) == rows
    assert federation.left_out == 0


def test_without_test_rows_clients_have_no_test_data_of_their_own():
    federation = build()
    assert federation.test_split.sizes.tolist() == [0, 0, 0]
    assert len(federation.test) == 6


@pytest.mark.parametrize("as_array", [False, True])
def test_test_rows_of_each_client(as_array):
    rows = [[5, 0], [1, 2], [3, 4]]
    federation = build(test_clients=np.array(rows) if as_array else rows)
    assert [federation.test_split[i].tolist() for i in range(3)] == [[0, 5], [1, 2], [3, 4]]


def test_samples_of_no_client_are_counted_as_left_out():
    assert build(clients=[[0, 1], [5], [7]]).left_out == 8
    dropped = build(clients=2, partition=LabelsPerClient(labels=1, unowned="drop"))
    assert dropped.left_out == 4  # the samples of label 2
    assert dropped.counts.tolist() == [[4, 0, 0], [0, 4, 0]]


# ---- refusals ----------------------------------------------------------------------------------------------------


def bad(x, row, value):
    changed = np.array(x, dtype=object if value in (None, "") or isinstance(x, list) else float)
    changed[row] = value
    return changed


@pytest.mark.parametrize(
    "labels",
    [
        bad(Y, 4, None),
        bad(Y, 4, NAN),
        bad(Y, 4, ""),
        bad(["a", "b", "c"] * 4, 4, NAN),
        bad(["a", "b", "c"] * 4, 4, None),
        ["a", "b", "c", "a", "", "c"] * 2,
        ["a", "b", "c", "a", NAN, "c"] * 2,
        ["a", "b", "c", "a", None, "c"] * 2,
        torch.tensor([0, 1, 2, 0, NAN, 2] * 2),
    ],
    ids=repr,
)
def test_missing_labels_are_counted_and_the_first_is_named(labels):
    count = len(labels) // 6 if not isinstance(labels, np.ndarray) else 1
    with pytest.raises(RequestError, match=rf"^{count} labels are missing, the first at row 4"):
        build(y=labels)


@pytest.mark.parametrize("value", [NAN, np.inf, -np.inf])
@pytest.mark.parametrize("to", [np.asarray, torch.tensor])
def test_features_that_are_not_finite_are_refused(value, to):
    x = X.copy()
    x[3, 1] = x[7, 0] = value
    with pytest.raises(RequestError, match="2 samples hold NaN or infinite features, the first at row 3"):
        build(to(x))
    with pytest.raises(RequestError, match="the first at row 3"):
        build(test=(to(x), Y))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"clients": [[0, 12], [5]]}, "row 12.*12 samples"),
        ({"clients": [[0, -1], [5]]}, "row -1"),
        ({"test_clients": [[0], [6], [1]]}, "row 6.*6 samples"),
        ({"clients": [[0, 1], [1, 2]]}, "same row"),
        ({"clients": [[0, 1, 0], [2]]}, "row"),
        ({"test_clients": [[0], [0], [1]]}, "same row"),
        ({"test_clients": [[0], [1]]}, "different numbers of clients"),
        ({"clients": []}, "no client has any training samples"),
        ({"clients": [[], []], "test_clients": [[], []]}, "no client has any training samples"),
        ({"clients": 2}, "clients = 2.*partition"),
        ({"clients": 0, "partition": Iid()}, "clients = 0 must be at least 1"),
        ({"clients": 13, "partition": Iid()}, "clients = 13 but there are only 12"),
        ({"y": Y[:11]}, "12 samples but 11 labels"),
        ({"groups": ["a"] * 11}, "12 samples but 11 groups"),
        ({"test": (PIXELS, Y)}, "the test set has samples of type uint8, the training set of type float32"),
        ({"x": PIXELS}, "the training set has samples of type uint8, the test set of type float32"),
        ({"partition": "iid"}, "clients says already who holds what.*or leave the partition out"),
        ({"clients": ["a", "b", "c"] * 4, "partition": Iid()}, "clients says already"),
        ({"clients": ["a", "b", None] * 4, "test": 0.2}, "4 owners are missing, the first at row 2; drop those rows"),
        ({"clients": np.array([1, 2, NAN] * 4), "test": 0.2}, "4 owners are missing, the first at row 2"),
        ({"clients": {"a": [0, 1], "b": [2]}, "partition": {"kind": "iid"}}, "clients says already"),
        ({"test": (X[:3], Y[:2])}, "3 samples but 2 labels"),
        ({"y": np.zeros((12, 2), int)}, r"one-dimensional.*\(12, 2\)"),
        ({"y": Y + 0.5}, "labels must be classes, but 0.5 is a quantity"),
        ({"y": np.array((Y + 0.5).tolist(), dtype=object)}, "labels must be classes, but 0.5 is a quantity"),
        ({"y": np.zeros(12, int), "test": (X[:1], [0])}, "1 class; at least 2"),
        ({"test": (X[:3], [0, 1, 9])}, r"test labels \[9\] do not occur in the training data"),
        ({"test": (X[:3, :1], Y[:3])}, "shape"),
        ({"x": X[:, 0]}, "shape|dimension"),
        ({"x": [[1.0], [1.0, 2.0]] * 6}, "shape|length"),
        ({"x": np.array([["a", "b"]] * 12)}, "number"),
        ({"x": X[:0], "y": Y[:0], "test": 0.2}, "no .*samples"),
        ({"test": 1.0}, r"test = 1\.0 must be a fraction from 0 to below 1"),
        ({"test": -0.1}, r"test = -0\.1 must be a fraction"),
        ({"test": NAN}, "test = nan must be a fraction"),
        ({"speeds": [1, 2]}, "one number > 0 for each of the 3 clients"),
        ({"speeds": [1, 2, 0]}, "one number > 0"),
        ({"speeds": [1, 2, -3]}, "one number > 0"),
        ({"speeds": [1, 2, NAN]}, "one number > 0"),
        ({"speeds": [1, 2, np.inf]}, "one number > 0"),
        ({"speeds": [[1, 2]] * 3}, "one number > 0"),
        ({"speeds": ["slow", "slow", "fast"]}, "one number > 0"),
    ],
)
def test_a_federation_that_cannot_be_is_refused_with_the_reason(how, said):
    with pytest.raises(RequestError, match=said):
        build(**how)


@pytest.mark.parametrize(
    ("clients", "said"),
    [
        ([(X, Y), (X[:, :1], Y)], r"different shapes: \[\(1,\), \(2,\)\]"),
        ([Pairs(X, Y), Pairs([X[0], X[1, :1]], [0, 1])], "shape"),
        ([(X, Y[:3]), (X, Y)], "client 0: 12 samples but 3 labels"),
        ([(X[1:], Y), (X, Y[1:])], "client 0: 11 samples but 12 labels"),  # 23 of both
        ({"kiel": (X, Y), "bonn": (X, Y[:0])}, "client bonn: 12 samples but 0 labels"),
        ([(X, Y), (PIXELS, Y)], "client 1 has samples of type uint8, client 0 of type float32.*such as x / 255"),
        ([(X, Y), (X, [0, 1, NAN] * 4)], "client 1: 4 labels are missing, the first at row 2"),
        ([], "no .*samples"),
        ([Pairs([], [])], "no .*samples"),
    ],
)
def test_clients_whose_data_cannot_be_joined_are_refused(clients, said):
    with pytest.raises(RequestError, match=said):
        Federation.from_clients(clients)


@pytest.mark.parametrize(("labels", "warned"), [((-1, 0, 1, 2), 1), ((-1, 0, 1), 0), ((-1, 1), 0), ((0, 1, 2, 3), 0)])
def test_a_label_of_minus_one_before_the_others_is_warned_of(labels, warned, recwarn):
    federation = build(y=np.resize(labels, 12), test=0.0)
    assert federation.classes == labels
    assert ["label -1 is taken as a class" in str(w.message) for w in recwarn] == [True] * warned


@pytest.mark.parametrize("x", [torch.eye(12).to_sparse(), SimpleNamespace(toarray=None)])
def test_sparse_features_are_refused_with_what_to_do(x):
    with pytest.raises(RequestError, match=r"features must be dense.* give x.toarray\(\), or x.to_dense\(\)"):
        build(x=x)


@pytest.mark.parametrize(
    ("tests", "said"),
    [
        ([(X[1:], Y), (X, Y[1:])], "test of client bonn: 11 samples but 12 labels"),
        ([(X, Y), (PIXELS, Y)], "test of client kiel has samples of type uint8, test of client bonn of type float32"),
        ([(PIXELS, Y), (PIXELS, Y)], "the test set has samples of type uint8, the training set of type float32"),
    ],
)
def test_clients_whose_test_data_cannot_be_joined_are_refused(tests, said):
    with pytest.raises(RequestError, match=said):
        Federation.from_clients({"bonn": (X, Y), "kiel": (X, Y)}, test=dict(zip(("bonn", "kiel"), tests, strict=True)))


def test_types_that_mean_the_same_may_be_mixed():
    others = [X.astype(t) for t in (np.float64, np.int64, bool)]
    federation = Federation.from_clients([(x, Y) for x in (X, *others)], test=(others[0], Y))
    assert torch.equal(federation.train.x[12:24], torch.tensor(X, dtype=torch.float64))
    assert Federation.from_clients([(PIXELS, Y), (X[:0], Y[:0])], test=0.25).inputs.scale == 255
    assert not len(Federation.from_arrays(PIXELS, Y, ROWS, test=(X[:0], Y[:0])).test), "a test set that holds nothing"


def test_an_empty_data_set_is_refused():
    with pytest.raises(RequestError, match=r"no .*samples"):
        Federation.from_dataset(Pairs([], []), 2, partition=Iid())


@pytest.mark.parametrize("partition", [Iid(), DirichletClass(min_size=0), LabelsPerClient(labels=2)])
def test_a_label_whose_only_sample_is_held_out_is_still_tested(partition):
    federation = build(y=[0] * 6 + [1] * 5 + [2], clients=2, partition=partition, test=0.6)  # round(.6 * 1) = 1
    assert federation.counts.sum(0).tolist() == [2, 2, 0]
    assert np.bincount(federation.test.y, minlength=3).tolist() == [4, 3, 1]


def test_clients_may_be_named_by_one_owner_a_sample_or_by_masks():
    x, y = np.zeros((6, 2), dtype=np.float32), [0, 1] * 3
    by_rows = Federation.from_arrays(x, y, [[0, 3], [1, 2, 4, 5]], test=(x, y))
    by_owner = Federation.from_arrays(x, y, ["a", "b", "b", "a", "b", "b"], test=(x, y))
    mask = np.array([1, 0, 0, 1, 0, 0], dtype=bool)
    by_mask = Federation.from_arrays(x, y, [mask, ~mask], test=(x, y))
    assert by_rows.fingerprint == by_owner.fingerprint == by_mask.fingerprint
    assert repr(by_rows) == "Federation(given: 2 clients, 6 training samples, 2 classes)"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda x, y: Federation.from_arrays(x, y, 2, partition=3), "give a partition, such as partition="),
        (lambda x, y: Federation.from_arrays(x, y, ["a", "b"]), "names 2 owners for 6 samples"),
        (lambda x, y: Federation.from_arrays(x, y, [[0.5, 1], [2]]), "whole numbers or a mask"),
        (lambda x, y: Federation.from_arrays(x, y, [[0], [1]], test=[x, y]), "must be a tuple"),
        (lambda x, y: Federation.from_arrays(x, [0, 1, np.inf] * 2, [[0], [1]]), "labels must be classes"),
        (lambda x, y: Federation.from_arrays(x, [b"a", b"b"] * 3, [[0], [1]]), "text or whole numbers"),
        (lambda x, y: Federation.from_arrays(torch.zeros(6, 2, dtype=torch.complex64), y, [[0], [1]]), "real numbers"),
        (lambda x, y: Federation.from_clients([(x, y, 3)]), "client 0: a data set must be a pair"),
        (lambda x, y: Federation.from_clients([None]), "not NoneType"),
    ],
)
def test_likely_mistakes_are_explained(make, said):
    with pytest.raises(RequestError, match=said):
        make(np.zeros((6, 2), dtype=np.float32), [0, 1] * 3)


def test_awkward_arrays_are_taken():
    y = [0, 1] * 3
    frozen = np.zeros((6, 2), dtype=np.float32)
    frozen.flags.writeable = False
    for x in (
        frozen,
        np.zeros((6, 2), dtype=">f4"),
        torch.zeros(6, 2, dtype=torch.bfloat16),
        torch.zeros(6, 2, requires_grad=True),
    ):
        assert Federation.from_arrays(x, y, [[0, 1], [2, 3, 4, 5]], test=0.3).train.x.dtype == torch.float32
