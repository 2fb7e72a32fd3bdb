"""What is done to raw inputs: columns, encoders, gaps, scales; and that a file can hold it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedstrata import Column, Federation, Inputs, Preprocessing, RequestError

AGE, SMOKES = Column("age", fill=40.0), Column("smokes", values=("no", "yes"))


def test_columns_are_found_by_name_and_encoded_in_order():
    done = Preprocessing((AGE, SMOKES))
    assert done.features == ("age", "smokes = no", "smokes = yes")
    raw = {"smokes": ["yes", "no", None], "id": [7, 8, 9], "age": ["30", "?", " 50 "]}
    assert done.encode(raw).tolist() == [[30, 0, 1], [40, 1, 0], [50, 0, 0]]
    assert done.apply(np.array([["30", "yes"]], dtype=object)).tolist() == [[30, 0, 1]]


def test_numbers_name_a_value_as_words_do():
    zone = Preprocessing((Column("zone", values=("1", "2")),))
    assert zone.encode({"zone": [1.0, 2.0]}).tolist() == zone.encode({"zone": ["1", "2"]}).tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({"age": [1]}, "column smokes is missing; there are: age"),
        ({"age": [1], "smokes": ["often"]}, 'column smokes: "often" did not occur in training; known: no, yes'),
        ({"age": ["old"], "smokes": ["no"]}, 'column age holds numbers: "old" is none'),
        ({"age": [1, 2], "smokes": ["no"]}, "different lengths"),
        (np.ones((2, 3)), r"a table of shape \(2, 3\) does not fit; 2 columns are needed: age, smokes"),
    ],
)
def test_tables_that_do_not_fit_are_refused(raw, said):
    with pytest.raises(RequestError, match=said):
        Preprocessing((AGE, SMOKES)).apply(raw)


def test_a_missing_number_is_refused_where_nothing_stands_in_for_it():
    with pytest.raises(RequestError, match="column age: 2 values are missing, the first at row 1"):
        Preprocessing((Column("age"),)).apply({"age": [1.0, None, float("nan")]})


def test_images_are_scaled_by_channel_as_training_scales_them():
    inputs = Inputs(scale=255.0, mean=(0.5, 0.25), std=(0.1, 0.2))
    pixels = torch.randint(0, 256, (3, 2, 4, 4), dtype=torch.uint8)
    done = Preprocessing.of(inputs, (2, 4, 4))
    assert torch.allclose(done.apply(pixels), inputs(pixels, torch.float32), atol=1e-6)
    with pytest.raises(RequestError, match=r"samples have shape \(2, 5, 4\); the model was trained on \(2, 4, 4\)"):
        done.apply(np.zeros((1, 2, 5, 4), np.uint8))


def test_large_numbers_keep_their_differences():
    done = Preprocessing(mean=(1.7e9,), std=(0.5,))
    assert done.apply(np.array([[1.7e9], [1.7e9 + 1]])).tolist() == [[0], [2]]


def test_tokens_stay_as_they_are():
    tokens = np.array([[3, 1], [2, 2]])
    assert torch.equal(Preprocessing().apply(tokens), torch.from_numpy(tokens))


def test_new_data_are_scaled_by_their_own_statistics_where_every_client_was():
    x = Preprocessing(per_client=True).apply(np.array([[1.0, 7.0], [3.0, 7.0]]))
    assert x.tolist() == [[-1, 0], [1, 0]]


@pytest.mark.parametrize(
    "done",
    [
        Preprocessing(),
        Preprocessing((AGE, SMOKES), (3,), mean=(0.1, 0.2, 0.3), std=(1.0, 2.0, 3.0)),
        Preprocessing(shape=(3, 8, 8), scale=255.0, mean=(0.5,) * 3, std=(0.25,) * 3),
        Preprocessing(per_client=True),
    ],
)
def test_it_can_be_written_and_read_back(done):
    assert Preprocessing.from_json(done.to_json()) == done


def test_a_federation_carries_it():
    x, y = np.random.default_rng(0).integers(0, 256, (20, 1, 4, 4)).astype(np.uint8), np.arange(20) % 2
    federation = Federation.from_arrays(x, y, [range(10), range(10, 20)])
    assert federation.preprocessing == Preprocessing(shape=(1, 4, 4), scale=255.0)
    given = Federation.from_arrays(x, y, [range(10), range(10, 20)], preprocessing=Preprocessing(scale=2.0))
    assert given.preprocessing.scale == 2.0
