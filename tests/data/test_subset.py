"""Some of the training samples of a data set: every label in proportion, the same for a seed, and named by the run."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedstrata
from fedstrata import Arrays, Count, DataSet, Experiment, RequestError
from fedstrata.config.build import build_federation
from fedstrata.data.subset import in_proportion, take_some


@dataclass(frozen=True)
class Sized(DataSet):
    """A data set with an option `samples` of its own: so many of each of two labels."""

    samples: Count = 30

    def load(self):
        x, y = np.arange(2 * self.samples, dtype=np.float32)[:, None], np.arange(2 * self.samples) % 2
        return Arrays(x, y, x[:2], y[:2])


def arrays(counts):
    y = np.random.default_rng(0).permutation(np.repeat(np.array(["ant", "bee", "cat"]), counts))
    x = np.arange(len(y), dtype=np.float32)[:, None]
    return Arrays(x, y, x[:3], y[:3], groups=np.arange(len(y)) % 4, test_groups=np.arange(3))


def digits(**asked):
    return build_federation(Experiment.of({"data": {"clients": 4, **asked}}))


@pytest.mark.parametrize(
    ("counts", "samples", "shares"),
    [
        ([100, 50, 50], 20, [10, 5, 5]),
        ([100, 50, 50], 200, [100, 50, 50]),
        ([70, 20, 10], 3, [1, 1, 1]),
        ([97, 2, 1], 5, [3, 1, 1]),
        ([50, 30, 20], 11, [6, 3, 2]),
    ],
)
def test_labels_are_taken_in_proportion_and_none_is_lost(counts, samples, shares):
    assert in_proportion(np.array(counts), samples).tolist() == shares
    some = take_some(arrays(counts), samples, "x", seed=1)
    assert np.unique(some.y, return_counts=True)[1].tolist() == shares


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=12), st.floats(0, 1))
def test_any_number_is_shared_out_whole(counts, part):
    samples = len(counts) + round(part * (sum(counts) - len(counts)))
    shares = in_proportion(np.array(counts), samples)
    assert shares.sum() == samples
    assert ((shares >= 1) & (shares <= counts)).all()


def test_samples_keep_order_label_and_group_and_the_test_set_stays():
    whole = arrays([40, 30, 30])
    some = take_some(whole, 50, "x", seed=1)
    rows = some.x[:, 0].astype(int)
    assert (np.diff(rows) > 0).all()
    assert (some.y == whole.y[rows]).all()
    assert (some.groups == whole.groups[rows]).all()
    assert some.test_x is whole.test_x
    again, other = take_some(whole, 50, "x", seed=1), take_some(whole, 50, "x", seed=2)
    assert (again.x == some.x).all()
    assert (other.x != some.x).any()


@pytest.mark.parametrize("samples", [1, 9, 1439])
def test_a_number_that_cannot_be_taken_is_refused(samples):
    said = f"data.samples = {samples} is not valid; allowed: 10, the number of labels, to 1438, the number of training"
    with pytest.raises(RequestError, match=said):
        digits(samples=samples)


def test_a_federation_of_some_samples_has_so_many_and_another_fingerprint():
    some = digits(samples=300)
    assert (some.samples + some.left_out, some.tests) == (300, digits().tests)
    assert some.fingerprint == digits(samples=300).fingerprint != digits().fingerprint
    assert digits(samples=1438).fingerprint == digits().fingerprint


def test_own_tables_too(tmp_path):
    lines = [f"{i},{i % 7},{'yes' if i % 3 else 'no'}" for i in range(90)]
    (tmp_path / "own.csv").write_text("\n".join(["a,b,label", *lines]))
    some = digits(name="own", path=str(tmp_path / "own.csv"), samples=30, partition="iid")
    assert some.samples == 30
    assert some.counts.sum(0).tolist() == [10, 20]


def test_the_option_of_a_set_comes_before_the_key():
    path = f"{__name__}:Sized"
    asked = Experiment.of({"data": {"name": path, "samples": 8, "clients": 2, "partition": "iid"}})
    assert build_federation(asked).samples == 16
    assert build_federation(Experiment.of(asked.dump())).samples == 16
    assert Experiment.of({"data": {"name": path}}).data.samples == 30


def test_a_run_and_an_inspection_say_how_many(tmp_path):
    overrides = {"data.samples": 200, "data.clients": 4, "data.partition": "iid", "train.rounds": 1}
    run = fedstrata.train(overrides=overrides, out=tmp_path / "run")
    assert run.events()[0]["samples"] == 200
    assert "samples = 200" in (run.path / "experiment.toml").read_text()
    assert "samples" not in Experiment.of().dump()["data"]
    assert fedstrata.inspect(overrides=overrides).measures.samples == 200
