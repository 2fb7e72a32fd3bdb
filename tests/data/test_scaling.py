"""Features on one scale: by sums over all clients, by every client's own statistics, as given, or not at all."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import fedstrata
from fedstrata import Column, Experiment, Federation, Inputs, Preprocessing, RequestError
from fedstrata.config.build import build_federation
from fedstrata.data.statistics import Answers, Exchanges, mean_and_deviation, medians
from fedstrata.privacy.features import from_words, to_words
from fedstrata.remote.site.source import source

SMALL = {"train.rounds": 2, "train.clients_per_round": "all", "train.epochs": 1}


def dealt(rows: int, seed: int = 0, clients: int = 5) -> list[np.ndarray]:
    order = np.random.default_rng(seed).permutation(rows)
    return [order[i::clients] for i in range(clients)]


def among(x: np.ndarray, clients: list[np.ndarray], exchanges: Exchanges | None = None):
    return (exchanges or Exchanges()).among([Answers(lambda rows=rows: x[rows]) for rows in clients])


def skewed(rows: int = 200) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(rows, 4)) * [1e-3, 1.0, 50.0, 3e4] + [1.7e9, 0.0, -3.0, 1e6]
    return x, np.arange(rows) % 3


# ---- from sums -----------------------------------------------------------------------------------------------------


def test_means_and_deviations_from_sums_are_those_of_the_pooled_rows():
    x, _ = skewed()
    mean, std = mean_and_deviation(among(x[:, 1:], dealt(len(x))))
    assert np.allclose(mean, x[:, 1:].mean(0), rtol=1e-12, atol=1e-12)
    assert np.allclose(std, x[:, 1:].std(0), rtol=1e-12, atol=0)


def test_channels_of_signals_and_images_have_one_each():
    x = np.random.default_rng(0).normal(2, 3, (30, 4, 7))
    mean, std = mean_and_deviation(among(x, dealt(30)))
    assert np.allclose(mean, x.mean((0, 2)), rtol=1e-12)
    assert np.allclose(std, x.std((0, 2)), rtol=1e-12)
    pixels = np.random.default_rng(0).integers(0, 256, (30, 3, 5, 5)).astype(np.uint8)
    mean, std = mean_and_deviation(among(pixels, dealt(30)))
    assert np.allclose(mean, (pixels / 255).mean((0, 2, 3)), rtol=1e-12)
    assert np.allclose(std, (pixels / 255).std((0, 2, 3)), rtol=1e-12)


def test_only_sums_are_brought():
    x, _ = skewed(50)
    exchanges = Exchanges()
    mean_and_deviation(among(x, dealt(50), exchanges))
    assert [brought.shape for _, brought in exchanges.brought] == [(5, 5), (5, 4)], "how many and sums, then squares"


@settings(max_examples=60, deadline=None)
@given(
    arrays(np.float64, st.tuples(st.integers(1, 40), st.integers(1, 3)), elements=st.floats(-1e30, 1e30)),
    st.integers(1, 4),
)
def test_medians_from_counts_are_those_of_the_pooled_rows(x, clients):
    found = medians(among(x, dealt(len(x), clients=clients)))
    assert np.allclose(found, np.median(x, axis=0), rtol=1e-15, atol=0)


def test_medians_pass_over_gaps():
    x = np.array([[1.0, np.nan], [np.nan, np.nan], [5.0, np.nan], [2.0, np.nan]])
    found = medians(among(x, [np.arange(2), np.arange(2, 4)]))
    assert found[0] == 2.0
    assert np.isnan(found[1])


# ---- federations ---------------------------------------------------------------------------------------------------


def test_a_federation_is_scaled_by_all_clients_as_pooled_z_scores_are():
    x, y = skewed()
    test_x, test_y = skewed(30)
    federation = Federation.from_arrays(x, y, dealt(len(x)), test=(test_x, test_y), scale="federated")
    done = federation.preprocessing
    pooled = (test_x - x.mean(0)) / x.std(0)
    assert np.allclose(done.scaled(test_x)[:, 1:], pooled[:, 1:], rtol=1e-12, atol=1e-12)
    assert torch.equal(federation.test.x, done.apply(test_x)), "what a model's file holds does the same to new data"
    assert torch.equal(federation.train.x, done.apply(x))
    assert federation.inputs == Inputs()
    assert federation.features_told.scaled == 4
    assert federation.client_info(frozenset(), fedstrata.Streams(0)).setup_bytes == 5 * (5 + 4) * 8


def test_what_is_held_out_or_held_by_nobody_tells_nothing():
    x, y = skewed()
    rows = [np.arange(0, 50), np.arange(50, 100)]
    federation = Federation.from_arrays(x, y, rows, test=(x[:9], y[:9]), scale="federated")
    assert np.allclose(federation.preprocessing.mean, x[:100].mean(0), rtol=1e-12)


def test_images_are_scaled_on_the_device_by_what_clients_found():
    x, y = np.random.default_rng(0).integers(0, 200, (40, 1, 6, 6)).astype(np.uint8), np.arange(40) % 2
    federation = Federation.from_arrays(x, y, dealt(40), test=(x, y), scale="federated")
    assert federation.train.x.dtype == torch.uint8
    assert federation.inputs.mean == pytest.approx([(x / 255).mean()], rel=1e-12)
    seen = federation.inputs(federation.train.x, torch.float32)
    assert torch.allclose(seen, federation.preprocessing.apply(x), atol=1e-6)


def test_every_client_by_its_own_statistics():
    x, y = skewed()
    rows = dealt(len(x))
    federation = Federation.from_arrays(x, y, rows, test=0.2, scale="per-client")
    own = federation.train.x.numpy()[federation.train_split[2]]
    assert np.allclose(own.mean(0), 0, atol=1e-4)
    assert np.allclose(own.std(0), 1, atol=1e-4)
    assert federation.features_told is None, "the server is told nothing"
    assert federation.preprocessing.per_client


def test_samples_of_the_server_are_scaled_too():
    x, y = skewed()
    federation = Federation.from_arrays(
        x, y, 4, partition=fedstrata.make_part("partitions", "iid"), proxy=30, scale="federated"
    )
    assert abs(federation.proxy.x.mean(0)).max() < 1


def test_scales_that_are_refused():
    x, y = skewed()
    with pytest.raises(RequestError, match='scale = "pooled"; allowed: "federated", "per-client", "none"'):
        Federation.from_arrays(x, y, dealt(len(x)), scale="pooled")
    with pytest.raises(RequestError, match="images take"):
        Federation.from_arrays(np.zeros((20, 1, 4, 4), np.uint8), y[:20], dealt(20), scale="per-client")
    with pytest.raises(RequestError, match="tokens"):
        Federation.from_arrays(np.ones((20, 4), np.int64), y[:20], dealt(20), scale="federated")


def test_gaps_are_filled_before_features_are_scaled():
    x, y = skewed()
    x[::7, 1] = np.nan
    asked = Preprocessing((Column("a"), Column("b", fill="median"), Column("c", fill=5.0), Column("d")))
    federation = Federation.from_arrays(x, y, dealt(len(x)), test=(x, y), preprocessing=asked, scale="none")
    middle = float(np.nanmedian(x[:, 1]))
    assert federation.preprocessing.columns[1].fill == middle
    assert federation.train.x[0, 1] == pytest.approx(middle)
    assert federation.features_told.medians == ("b",)
    with pytest.raises(RequestError, match="29 samples hold NaN"):
        Federation.from_arrays(x, y, dealt(len(x)), scale="none")


# ---- runs ----------------------------------------------------------------------------------------------------------


def patients(path: str = "patients.csv") -> None:
    rng = np.random.default_rng(0)
    lines = ["age,pressure,smokes,diagnosis"]
    for i in range(120):
        age, ill = rng.integers(20, 80), i % 2
        pressure = "" if i % 11 == 5 else f"{120 + 30 * ill + rng.normal(0, 5):.3f}"
        lines.append(f"{age},{pressure},{['no', 'yes', 'once'][i % 3]},{'ill' if ill else 'well'}")
    Path(path).write_text("\n".join(lines) + "\n")


def asked(**more):
    table = {"data.name": "own", "data.path": "patients.csv", "data.label": "diagnosis", "data.fill": "median"}
    return {**table, "data.clients": 4, "data.partition": "iid", **SMALL, **more}


def test_a_run_says_and_charges_what_clients_told_of_their_features():
    patients()
    run = fedstrata.train(overrides=asked())
    summary = run.summary
    told = " ".join(summary["privacy"]["server"])
    assert "it is told, of every client: the sum of each of 5 features" in told
    assert "how many values of columns age, pressure lie below thresholds" in told
    assert "which values of column smokes each client has" in told
    assert "means and deviations of 5 features" in " ".join(summary["privacy"]["other clients"])
    setup = next(event for event in run.events() if event["event"] == "setup")
    assert "features" in setup["told"]
    federation = build_federation(Experiment.of(None, **asked()))
    assert summary["bytes_setup"] == setup["bytes_up"] == federation.features_told.nbytes


def test_masked_sums_give_the_same_model_and_are_said_and_charged():
    patients()
    how = {"privacy.aggregate": "masked", "train.seed": 1}
    run = fedstrata.train(overrides=asked(**how))
    told = " ".join(run.summary["privacy"]["server"])
    assert "it is told, over all clients, by masked sums: the sum of each of 5 features" in told
    masked = next(event for event in run.events() if event["event"] == "features_masked")
    assert masked["sums"] == 1 + 16 + 2
    assert run.summary["bytes_setup"] >= masked["bytes_up"] > 0
    plain = fedstrata.train(overrides=asked(**{"train.seed": 1}))
    assert run.summary["accuracy"] == pytest.approx(plain.summary["accuracy"], abs=0.05)


exact = st.floats(-1e30, 1e30).filter(lambda number: number == 0 or abs(number) > 1e-20)  # to their last bit


@settings(max_examples=60, deadline=None)
@given(arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(1, 3)), elements=exact))
def test_numbers_in_words_add_up_to_the_last_bit(brought):
    words = to_words(brought, counts=False)
    assert (words == np.round(words)).all()
    total = from_words(words.sum(0), brought.shape[1])
    assert total.tolist() == [math.fsum(column) for column in brought.T]


def test_epsilon_does_not_cover_what_is_told_of_features():
    patients()
    noise = {"privacy.dp": {"clip": 1.0, "noise": 1.0}}
    told = " ".join(fedstrata.train(overrides=asked(**noise)).summary["privacy"]["server"])
    assert "What it is told of features is exact: epsilon does not cover it." in told


def test_nothing_is_told_where_clients_scale_by_themselves_or_the_scale_is_given():
    patients()
    alone = {"data.fill": 120.0, "data.drop": ["smokes"]}
    for scale in ({"data.scale": "per-client"}, {"data.scale": "given", "data.mean": [50, 130], "data.std": [20, 15]}):
        federation = build_federation(Experiment.of(None, **asked(**alone, **scale)))
        assert federation.features_told is None
    assert federation.preprocessing.mean == (50, 130)
    assert federation.preprocessing.columns == (Column("age", fill=120.0), Column("pressure", fill=120.0))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"data.scale": "given"}, 'data.scale = "given" needs data.mean and data.std'),
        ({"data.mean": [1.0]}, 'data.scale = "given" needs data.mean and data.std'),
        ({"data.scale": "given", "data.mean": [1.0], "data.std": [1.0]}, "data.mean has 1 numbers; .* 5 features: age"),
        ({"data.scale": "given", "data.mean": [0] * 5, "data.std": [1, 1, 1, 1, 0]}, "data.std = 0"),
        ({"data.scale": "pooled"}, 'data.scale = "pooled" is not valid; allowed: "federated"'),
    ],
)
def test_options_that_do_not_fit_are_refused(options, said):
    patients()
    with pytest.raises(RequestError, match=said):
        build_federation(Experiment.of(None, **asked(**options)))


def test_features_of_a_site_stay_raw_until_all_sites_agree_on_a_scale():
    patients()
    site = source({"name": "own", "path": "patients.csv", "label": "diagnosis", "fill": "median"}, 0)
    assert site.unscaled == "federated"
    assert site.features_told is None
    assert site.preprocessing.mean is None
    assert 20 < site.train.x[:, 0].mean() < 80, "years, as the table has them"
    with pytest.raises(RequestError, match="noise on features comes after they are scaled"):
        source(
            {"name": "own", "path": "patients.csv", "label": "diagnosis", "fill": 1.0, "noise": ["feature-noise"]}, 0
        )
