"""Noise on labels and features: the oracles and properties of part D."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstrata import testing
from fedstrata.core import registry
from fedstrata.core.errors import RequestError
from fedstrata.core.rng import Streams
from fedstrata.data import noise
from fedstrata.data.federation import Federation
from fedstrata.data.noise import FeatureNoise, LabelNoise

STREAMS = Streams(3)


def wrong(part, y, clients, classes, streams=STREAMS):
    y = np.asarray(y)
    before = y.copy()
    x = np.zeros((len(y), 2), dtype=np.float32)
    got_x, got = part.apply(x, y, [np.asarray(c, dtype=np.int64) for c in clients], classes, streams)
    assert got_x is x
    assert np.array_equal(y, before)
    return got


def test_the_parts_have_names_and_the_form_of_parts():
    assert sorted(noise.PARTS) == ["feature-noise", "label-noise"]
    for name in noise.PARTS:
        part = registry.build("noises", name, {}, "data.noise")
        assert isinstance(part, noise.Noise)
        testing.conformance.check_part(part)


# ---- labels ------------------------------------------------------------------------------------------------------


def test_three_of_ten_labels_change_and_none_to_itself():
    y = np.arange(10)
    assert (wrong(LabelNoise(rate=0.3), y, [np.arange(10)], 10) != y).sum() == 3


@pytest.mark.parametrize("kind", ["symmetric", "pair"])
def test_every_client_has_its_fraction(kind):
    y, clients = np.arange(100) % 3, np.split(np.arange(100), [10, 25, 25])
    changed = wrong(LabelNoise(rate=0.3, type=kind), y, clients, 3) != y
    assert [int(changed[rows].sum()) for rows in clients] == [3, 4, 0, 22]  # .3 of 15 and of 75, half to even


def test_the_fraction_of_all_samples_together():
    y, clients = np.arange(2000) % 4, np.split(np.arange(2000), 200)
    changed = wrong(LabelNoise(rate=0.25, scope="global"), y, clients, 4) != y
    by_client = [int(changed[rows].sum()) for rows in clients]
    assert (sum(by_client), len(set(by_client)) > 3) == (500, True)


def test_a_pair_is_the_next_label():
    assert wrong(LabelNoise(rate=1.0, type="pair"), [0, 1, 2], [[0, 1, 2]], 3).tolist() == [1, 2, 0]


def test_symmetric_is_uniform_over_the_others_and_symmetric_all_over_all():
    y = np.full(40000, 2)
    others = np.bincount(wrong(LabelNoise(rate=1.0), y, [np.arange(40000)], 5), minlength=5) / 40000
    assert others == pytest.approx([0.25, 0.25, 0, 0.25, 0.25], abs=0.01)
    everything = np.bincount(wrong(LabelNoise(rate=1.0, type="symmetric-all"), y, [np.arange(40000)], 5)) / 40000
    assert everything == pytest.approx([0.2] * 5, abs=0.01)


def test_no_noise_gives_the_same_array_back():
    y = np.arange(10)
    assert wrong(LabelNoise(rate=0.0), y, [np.arange(10)], 10) is y
    assert wrong(LabelNoise(rate=1.0), y, [[], []], 10) is y


def test_small_label_types_do_not_overflow():
    y = np.arange(256, dtype=np.uint8)
    got = wrong(LabelNoise(rate=1.0), y, [np.arange(256)], 256)
    assert got.dtype == np.uint8
    assert (got != y).all()


def test_one_class_is_refused():
    with pytest.raises(RequestError, match="with 1 class there is no wrong label"):
        wrong(LabelNoise(), [0, 0], [[0, 1]], 1)


@given(
    rate=st.floats(0, 1),
    kind=st.sampled_from(["symmetric", "symmetric-all", "pair"]),
    scope=st.sampled_from(["client", "global"]),
    labels=st.lists(st.integers(0, 3), min_size=1, max_size=40),
    ends=st.lists(st.integers(0, 40), max_size=3).map(sorted),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_only_rows_of_clients_change_and_labels_stay_labels(rate, kind, scope, labels, ends):
    y = np.array(labels)
    clients = np.split(np.arange(len(y)), ends)[1:]  # the first part is nobody's
    part = LabelNoise(rate=rate, type=kind, scope=scope)
    got = wrong(part, y, clients, 4)
    assert got.tolist() == wrong(part, y, clients, 4).tolist()
    assert set(got.tolist()) <= set(range(4))
    held = np.concatenate([[], *clients]).astype(int)
    assert np.array_equal(np.delete(got, held), np.delete(y, held))
    if kind != "symmetric-all":
        groups = [held] if scope == "global" else clients
        assert [int((got[g] != y[g]).sum()) for g in groups] == [round(rate * len(g)) for g in groups]


def test_what_a_sample_draws_does_not_depend_on_others():
    """More samples, other labels elsewhere, another deal of the same rows: a client's labels change alike."""
    part, rows = LabelNoise(rate=0.5), np.arange(20, 40)
    y, z = np.arange(60) % 5, np.concatenate([np.zeros(20, int), np.arange(20, 40) % 5, np.ones(60, int)])
    alone = wrong(part, y, [rows], 5)[rows]
    among = wrong(part, z, [np.arange(20), rows[::-1], np.arange(40, 100)], 5)[rows]
    assert alone.tolist() == among.tolist()
    assert alone.tolist() != wrong(part, y, [rows], 5, Streams(4))[rows].tolist()


# ---- features ----------------------------------------------------------------------------------------------------


def noisy(part, x, clients, streams=STREAMS):
    y, before = np.zeros(len(x), dtype=np.int64), x.copy()
    got, got_y = part.apply(x, y, [np.asarray(c, dtype=np.int64) for c in clients], 2, streams)
    assert got_y is y
    assert np.array_equal(x, before)
    return got


def test_noise_grows_from_client_to_client():
    x = np.ones((400, 50), dtype=np.float32)
    clients = np.split(np.arange(400), 4)
    got = noisy(FeatureNoise(sigma=0.2), x, clients)
    assert got.dtype == np.float32
    assert [got[c].std() for c in clients] == pytest.approx([0.05, 0.1, 0.15, 0.2], rel=0.05)
    assert [got[c].mean() for c in clients] == pytest.approx([1.0] * 4, abs=0.01)


def test_pixels_keep_their_scale_and_become_floats():
    x = np.full((200, 1, 8, 8), 255, dtype=np.uint8)
    got = noisy(FeatureNoise(sigma=0.1), x, [np.arange(200)])
    assert got.dtype == np.float32
    assert (got.mean(), got.std()) == pytest.approx((255.0, 25.5), rel=0.03)
    assert got.max() > 255  # not clipped


def test_each_client_has_noise_in_its_own_tile():
    x = np.zeros((10, 3, 6, 6), dtype=np.float32)
    got = noisy(FeatureNoise(type="space"), x, np.split(np.arange(10), 5))
    for client in range(5):  # a grid of 3 x 3, tiles of 2 x 2
        row, column = client // 3 * 2, client % 3 * 2
        inside = np.zeros((6, 6), dtype=bool)
        inside[row : row + 2, column : column + 2] = True
        own = got[client * 2 : client * 2 + 2]
        assert (own[:, :, inside] != 0).all()
        assert (own[:, :, ~inside] == 0).all()


def test_tiles_cover_images_that_they_do_not_divide():
    got = noisy(FeatureNoise(type="space"), np.zeros((9, 7, 8), dtype=np.float32), np.arange(9)[:, None])
    assert ((got != 0).sum(0) == 1).all()


def test_no_feature_noise_gives_the_same_array_back():
    x = np.zeros((4, 2), dtype=np.uint8)
    assert noisy(FeatureNoise(sigma=0.0), x, [np.arange(4)]) is x
    assert noisy(FeatureNoise(), x, [[]]) is x


def test_rows_of_nobody_stay_as_they_are():
    x = np.arange(12, dtype=np.float64).reshape(6, 2)
    got = noisy(FeatureNoise(), x, [[4, 1]])
    assert got.dtype == np.float64
    assert np.flatnonzero((got != x).any(1)).tolist() == [1, 4]


def test_the_noise_of_a_sample_is_its_own():
    rng = np.random.default_rng(0)
    x, other = (rng.normal(size=(n, 3)).astype(np.float32) for n in (20, 50))
    other[5:10] = x[5:10]
    alone = noisy(FeatureNoise(), x, [[], np.arange(5, 10)])[5:10]
    among = noisy(FeatureNoise(), other, [np.arange(10, 50), [9, 5, 6, 8, 7]])[5:10]
    assert np.array_equal(alone, among)
    assert not np.array_equal(alone, noisy(FeatureNoise(), x, [[], np.arange(5, 10)], Streams(4))[5:10])


def test_large_data_are_worked_through_in_chunks():
    x = np.zeros((3000, 1500), dtype=np.float32)  # more than one chunk
    got = noisy(FeatureNoise(), x, [np.arange(3000)])
    assert got[2500:].std() == pytest.approx(0.1, rel=0.01)
    assert np.array_equal(got[:10], noisy(FeatureNoise(), x[:10], [np.arange(10)]))


@pytest.mark.parametrize(
    ("part", "x", "said"),
    [
        (FeatureNoise(type="space"), np.zeros((9, 5), np.float32), r'type = "space" .*3 x 3 tiles.*shape \(5,\)'),
        (FeatureNoise(type="space"), np.zeros((9, 1, 2, 9), np.float32), r"9 clients.*\(1, 2, 9\) are too small"),
        (FeatureNoise(), np.zeros((9, 5), np.int64), "features of type int64 are tokens"),
    ],
)
def test_features_that_cannot_be_disturbed_are_refused(part, x, said):
    with pytest.raises(RequestError, match=said):
        noisy(part, x, np.arange(9)[:, None])


def test_options_of_an_object_are_checked_as_those_of_a_table_are():
    federation = Federation.from_arrays(np.zeros((20, 2)), np.arange(20) % 2, [range(20)])
    with pytest.raises(RequestError, match=r"noises.1: LabelNoise.rate = 3 is not valid; allowed: a number <= 1"):
        federation.with_noise([LabelNoise(rate=0.1), LabelNoise(rate=3)])
