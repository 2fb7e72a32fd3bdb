"""Features of a table that no network learns well from are told: to whoever gives them, and in the run."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from sklearn.datasets import load_wine
from torch import nn
from torch.utils.data import TensorDataset

import fedstrata
from fedstrata import Federation, Inputs
from fedstrata.data.feature_checks import describe_sizes
from fedstrata.remote.site.source import source

UNEVEN = "features are not on one scale near 1"


def wine() -> list[tuple[np.ndarray, np.ndarray]]:
    x, y = load_wine(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    return [(x[rows].astype(np.float32), y[rows]) for rows in np.array_split(order, 4)]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ([[0.7, -1680.0], [1.0, 3.0]], "values of feature 1 go up to 1680, those of feature 0 up to 1, and"),
        ([[0.001, 1.0], [0.002, 0.5]], "values of feature 1 go up to 1, those of feature 0 up to 0.002"),
        ([[3000.0], [5000.0]], "values of feature 0 go up to 5000, and networks"),
        ([[1e-5], [0.0]], "values of feature 0 go up to 1e-05"),
        ([[0.0, 1.0], [0.0, 2.0]], None),  # a constant of 0 does no harm
        ([[0.0, 0.5], [0.99, -49.0]], None),
        ([[0.0], [0.0]], None),
    ],
)
def test_sizes_that_are_far_from_1_or_from_each_other_are_named(columns, said):
    found = describe_sizes(torch.tensor(columns), Inputs())
    assert found is None if said is None else said in found


def test_only_features_of_a_table_as_a_network_sees_them_are_looked_at():
    x = torch.tensor([[0.5, 2000.0], [0.1, 3.0]])
    assert describe_sizes(x, Inputs(mean=(0.0, 0.0), std=(1.0, 1000.0))) is None
    assert describe_sizes(x[:, None], Inputs()) is None  # signals
    assert describe_sizes(x.long(), Inputs()) is None  # tokens
    assert describe_sizes(x[:0], Inputs()) is None
    assert describe_sizes(x, Inputs(scale=100.0), ["age", "income"]).startswith(
        f"{UNEVEN}: values of income go up to 20,"
    )


def test_pixels_that_lost_their_type_are_told_of():
    """uint8 is divided by 255; the same pixels as floats are not, and a run blamed its rate."""
    pixels = np.random.default_rng(0).integers(0, 256, (40, 1, 8, 8)).astype(np.float32)
    y = np.arange(40) % 2
    with pytest.warns(UserWarning, match=r"pixels go up to 255, as float32, .* give uint8, x / 255, or scale="):
        raw = Federation.from_arrays(pixels, y, 2, partition="iid")
    asked = {"train.rounds": 1, "train.clients_per_round": "all", "engine.workers": 1}
    run = fedstrata.train(federation=raw, model=nn.Sequential(nn.Flatten(), nn.Linear(64, 2)), overrides=asked)
    assert run.summary["remarks"][0].startswith("data: pixels go up to 255")
    assert not any("train.lr" in remark for remark in run.summary["remarks"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for x in (pixels / 255, (pixels - 128) / 50, pixels.astype(np.uint8), pixels.reshape(40, 1, 64)):
            Federation.from_arrays(x, y, 2, partition="iid")
        Federation.from_arrays(pixels, y, 2, partition="iid", scale="federated")
        Federation.from_arrays(pixels, y, 2, partition="iid", inputs=Inputs(scale=255))


@pytest.mark.parametrize(("scale", "said"), [("none", True), ("federated", False), ("per-client", False)])
def test_a_site_whose_raw_features_stay_so_doubts_them(scale, said, tmp_path):
    x, y = wine()[0]
    np.savez(tmp_path / "own.npz", x=x, y=y)
    doubts = source({"name": "own", "path": str(tmp_path / "own.npz"), "scale": scale}, 0).doubts
    assert [UNEVEN in doubt for doubt in doubts] == [True] * said
    assert ['data.scale = "federated" brings each' in doubt for doubt in doubts] == [True] * said, "its owner's key"
    assert not any("scale=" in doubt for doubt in doubts)


def test_a_site_s_own_table_is_looked_at_through_its_gaps(tmp_path):
    rows = [f"{1000 + i},{'' if i == 3 else 0.1 * i},{'ill' if i % 2 else 'well'}" for i in range(20)]
    (tmp_path / "own.csv").write_text("\n".join(["patient_id,dose,label", *rows]))
    data = {"name": "own", "path": str(tmp_path / "own.csv"), "fill": "median"}
    (ids,) = source(data, 0).doubts
    assert ids.startswith("patient_id: every row has its own value")
    sizes, _ = source(data | {"scale": "none"}, 0).doubts
    assert "values of patient_id go up to 1019, those of dose up to 1.9" in sizes


def test_whoever_gives_such_arrays_is_warned_at_that_line_and_told_what_to_give():
    parts = wine()
    for give in (
        lambda: Federation.from_clients(parts),
        lambda: Federation.from_arrays(*parts[0], 2, partition="iid"),
        lambda: Federation.from_dataset(TensorDataset(*map(torch.from_numpy, parts[0])), 2, partition="iid"),
    ):
        with pytest.warns(
            UserWarning, match=f'{UNEVEN}: values of feature 12 .*scale="federated".*scale="none"'
        ) as seen:
            give()
        assert [warning.filename for warning in seen] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for scale in ("federated", "per-client", "none"):
            Federation.from_clients(parts, scale=scale)


def test_a_run_on_them_says_so_and_blames_no_rate():
    module = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 3))
    asked = {"train.rounds": 8, "train.clients_per_round": "all", "engine.workers": 1}
    with pytest.warns(UserWarning, match=UNEVEN):
        raw = Federation.from_clients(wine())
    run = fedstrata.train(federation=raw, model=module, overrides=asked)
    before, seen = run.summary["remarks"]
    assert before.startswith(f"data: {UNEVEN}")
    assert seen.endswith('the data, whose features are not on one scale; try scale="federated"')
    assert "train.lr" not in seen
    even = Federation.from_clients(wine(), scale="federated")
    run = fedstrata.train(federation=even, model=module, overrides=asked)
    assert run.summary["remarks"] == []
    assert run.summary["accuracy"] > 0.9
    x, y = load_wine(return_X_y=True)
    assert (run.predict(x) == y).mean() > 0.9  # raw inputs


def test_arrays_in_a_file_are_told_of_too(tmp_path, cli):
    x, y = load_wine(return_X_y=True)
    np.savez(tmp_path / "wine.npz", x=x, y=y)
    given = {"data.name": "own", "data.path": str(tmp_path / "wine.npz"), "data.clients": 4, "train.rounds": 1}
    sets = [part for key, value in given.items() for part in ("--set", f"{key}={value}")]
    _, _, err = cli("run", *sets, "--out", str(tmp_path / "run"))
    assert f"warning: data: {UNEVEN}" in err
    assert 'data.scale = "federated" brings each' in err
    assert "scale=" not in err, "whoever names a file sets a key, and gives no argument"
    _, _, err = cli("run", *sets, "--set", "data.scale=federated", "--out", str(tmp_path / "scaled"))
    assert UNEVEN not in err


def test_a_run_whose_data_are_hidden_tells_nothing_of_them():
    with pytest.warns(UserWarning, match=UNEVEN):
        raw = Federation.from_clients([(x * np.float32(1e-4), y) for x, y in wine()])
    module = nn.Sequential(nn.Linear(13, 8), nn.ReLU(), nn.Linear(8, 3))
    asked = {"train.rounds": 1, "train.clients_per_round": "all", "privacy.aggregate": "masked"}
    run = fedstrata.train(federation=raw, model=module, overrides=asked)
    assert not [event for event in run.events() if UNEVEN in str(event.get("why"))]
