"""Own data of real sites: columns go by name, features are scaled over all sites, and the model takes raw inputs."""

from __future__ import annotations

import csv
import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from in_process_sites import SITES, Here, Restartable, model
from PIL import Image

import fedstrata
from fedstrata import Column, RequestError
from fedstrata.config.experiment import Experiment
from fedstrata.core.events import describe_fault
from fedstrata.data.statistics import Question
from fedstrata.deploy.keys import make
from fedstrata.privacy.frames import RefusedError, split
from fedstrata.remote.credentials import Credentials
from fedstrata.remote.introduction import Introduction
from fedstrata.remote.protocol import build_reply, read_reply
from fedstrata.remote.server.features import AGREED, other_units
from fedstrata.remote.server.few_sites import settle_sites_per_round, to_submit
from fedstrata.remote.server.session import run_at_sites
from fedstrata.remote.site.feature_questions import FeatureQuestions
from fedstrata.remote.site.source import source

COLUMNS = ("age", "pressure", "smokes", "sodium")
TRAIN = {
    "trust.clip": "none",  # sites as a simulation runs them
    "trust.samples": "none",
    "model.name": "mlp",
    "model.hidden": (8,),
    "train.rounds": 3,
    "train.epochs": 1,
    "train.batch_size": 16,
    "train.clients_per_round": "all",
    "engine.precision": "fp64",
}
WILD = {"train.rounds": 1, "train.lr": 1e4}
SMOKES = {"aachen": ("no", "yes"), "bonn": ("no", "once"), "cologne": ("daily", "no", "yes")}


def kind_of(request: bytes) -> bytes:
    return split(split(request)[2])[0] if split(request)[0] == b"in" else b""


def rows(site: str, count: int = 40, gaps: bool = True) -> list[dict[str, str]]:
    """Return patients of a site, each site's with means of its own."""
    at = SITES.index(site)
    rng, found = np.random.default_rng(at), []
    for i in range(count):
        ill = (i + at) % 2
        pressure = 120 + 10 * at + 40 * ill + rng.normal(0, 5)
        found.append(
            {
                "age": f"{rng.integers(20, 50) + 15 * at}",
                "pressure": "" if gaps and i % 9 == at else f"{pressure:.4f}",
                "smokes": SMOKES[site][i % len(SMOKES[site])],
                "sodium": f"{rng.normal(1e6 * (at + 1), 3e4):.3f}",
                "diagnosis": "ill" if ill else "well",
            }
        )
    return found


def write(path: Path, table: list[dict[str, str]], columns=COLUMNS, **more) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        out = csv.DictWriter(file, [*columns, "diagnosis", *more], extrasaction="ignore")
        out.writeheader()
        out.writerows([row | more for row in table])
    return path


def tables(folder: Path, columns=lambda site: COLUMNS, **how) -> dict[str, Path]:
    """Write a training and a test table a site."""
    for site in SITES:
        found = rows(site, **how)
        write(folder / site / "test.csv", found[30:], columns(site))
        write(folder / site / "train.csv", found[:30], columns(site))
    return {site: folder / site for site in SITES}


def hosts(folders: dict[str, Path], keys: Path | None = None, asked=lambda site: {}, memory: Path | None = None):
    """Make sites that read own tables."""

    def host(site: str, folder: Path) -> Restartable:
        data = {"name": "own", "label": "diagnosis", "fill": "median", "path": str(folder / "train.csv")}
        data = {
            k: v for k, v in (data | {"test_path": str(folder / "test.csv")} | asked(site)).items() if v is not None
        }
        credentials = None if keys is None else Credentials.load(keys / "sites" / site)
        return Restartable(site, lambda: source(data, 0), credentials, None if memory is None else memory / site)

    return {site: host(site, folder) for site, folder in folders.items()}


def at_sites(out: Path, sites, keys: Path | None = None, tamper=lambda name, kind, reply: reply, **more):
    credentials = None if keys is None else Credentials.load(keys / "server")
    experiment = Experiment.of(None, **(TRAIN | more))
    return run_at_sites(Here(sites, tamper), experiment, out, len(SITES), credentials=credentials)


def agreed(run) -> fedstrata.Preprocessing:
    (event,) = [event for event in run.events() if event["event"] == AGREED]
    return fedstrata.Preprocessing.from_json(event["preprocessing"])


def simulated(folder: Path, **more):
    """Run the same split on one machine: one table whose column says who holds a row."""
    both = {"train": [], "test": []}
    for site in SITES:
        found = rows(site)
        both["train"] += [row | {"site": site} for row in found[:30]]
        both["test"] += [row | {"site": site} for row in found[30:]]
    for part, table in both.items():
        write(folder / f"{part}.csv", table, (*COLUMNS, "site"))
    data = {
        "data.name": "own",
        "data.path": str(folder / "train.csv"),
        "data.test_path": str(folder / "test.csv"),
        "data.label": "diagnosis",
        "data.client": "site",
        "data.fill": "median",
    }
    return fedstrata.train(overrides={**TRAIN, **data, **more}, out=folder / "run")


def test_a_run_over_own_tables_equals_the_simulation_on_the_same_split(tmp_path):
    there, here = at_sites(tmp_path / "run", hosts(tables(tmp_path))), simulated(tmp_path / "here")
    assert float((model(there) - model(here)).abs().max()) < 1e-12
    assert there.summary["accuracy"] == pytest.approx(here.summary["accuracy"], abs=1e-12)
    done = agreed(there)
    assert done == here.saved.info.preprocessing
    assert [column.name for column in done.columns] == list(COLUMNS)
    assert done.columns[2].values == ("daily", "no", "once", "yes"), "the values of all sites"
    assert there.summary["bytes_setup"] == here.summary["bytes_setup"]
    told = " ".join(there.summary["privacy"]["server"])
    assert "the sum of each of 7 features" in told
    assert "thresholds that narrow down to the median" in told
    assert "which values of column smokes each client has" in told


def test_columns_go_by_name_whatever_their_order(tmp_path):
    straight = at_sites(tmp_path / "straight", hosts(tables(tmp_path / "a")))
    orders = {"aachen": COLUMNS, "bonn": COLUMNS[::-1], "cologne": (*COLUMNS[2:], *COLUMNS[:2])}
    mixed = at_sites(tmp_path / "mixed", hosts(tables(tmp_path / "b", orders.get)))
    assert torch.equal(model(mixed), model(straight)), "to the last bit"
    assert agreed(mixed) == agreed(straight)


def test_masked_sums_give_the_same_scale_and_are_said_and_charged(tmp_path):
    make(tmp_path / "keys", SITES, ["localhost"])
    folders = tables(tmp_path)
    brought = []

    def tamper(name, kind, reply):
        brought.extend([reply] if kind == "features" else [])
        return reply

    masked = at_sites(
        tmp_path / "masked",
        hosts(folders, tmp_path / "keys"),
        tmp_path / "keys",
        tamper,
        **{"privacy.aggregate": "masked"},
    )
    plain = at_sites(tmp_path / "plain", hosts(folders))
    assert agreed(masked) == agreed(plain), "the same sums, bit for bit"
    assert float((model(masked) - model(plain)).abs().max()) < 1e-4
    assert "over all clients, by masked sums: the sum of each of 7 features" in " ".join(
        masked.summary["privacy"]["server"]
    )
    assert masked.summary["bytes_setup"] > plain.summary["bytes_setup"] > 0
    assert len(brought) == 3 * (1 + 16 + 2)
    assert len(set(brought)) == len(brought), "nobody's answer is another's, or tells that it is 0"


@pytest.mark.parametrize("odd", SITES)
def test_thirteen_other_columns_are_refused_by_the_name_of_their_site(tmp_path, odd):
    """The odd one is named also where it is the first: two of three have the columns of the study."""
    folders = tables(tmp_path)
    wine = [f"wine{i}" for i in range(13)]
    table = [dict.fromkeys(wine, "1.5") | {"diagnosis": "ill" if i % 2 else "well"} for i in range(30)]
    for part in ("train", "test"):
        write(folders[odd] / f"{part}.csv", table, wine)
    with pytest.raises(RequestError, match=f"^site {odd} lacks columns age, pressure, smokes, sodium and has") as said:
        at_sites(tmp_path / "run", hosts(folders))
    others = ", ".join(name for name in SITES if name != odd)
    assert f"wine0, wine1, wine2, wine3, wine4 and 8 more, compared with sites {others}; " in str(said.value)
    assert "\n" not in str(said.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"drop": ["age"]}, "site bonn lacks column age"),
        ({"fill": 0.0}, "site bonn fills gaps with 0.0, site aachen with median; all sites need the same data.fill"),
        ({"scale": "none"}, 'site bonn asks for data.scale = "none", site aachen for "federated"'),
        (
            {"scale": "given", "mean": [0.0] * 5, "std": [1.0] * 5},
            'site bonn asks for data.scale = "given", site aachen for "federated"',
        ),
    ],
)
def test_sites_that_ask_for_something_else_are_refused_by_name(tmp_path, asked, said):
    folders = tables(tmp_path)
    if "mean" in asked:
        asked = {**asked, "mean": [0.0] * 5, "std": [1.0] * 5}
    with pytest.raises(RequestError, match=said):
        at_sites(tmp_path / "run", hosts(folders, asked=lambda site: asked if site == "bonn" else {}))


def test_a_site_with_other_columns_is_left_out_where_enough_others_are_there(tmp_path):
    there = Here(hosts(tables(tmp_path), asked=lambda site: {"drop": ["age"]} if site == "bonn" else {}))
    run = run_at_sites(there, Experiment.of(None, **TRAIN), tmp_path / "run", 2)
    (refused,) = [e for e in run.events() if e["event"] == "site_refused"]
    assert refused["site"] == "bonn"
    assert refused["why"].startswith("it lacks column age, compared with site aachen; all sites need the same")
    assert run.summary["rounds"] > 0


def test_numbers_at_one_site_and_text_at_another_are_refused(tmp_path):
    folders = tables(tmp_path)
    for part in ("train", "test"):
        found = [row | {"smokes": str(i % 2)} for i, row in enumerate(rows("cologne"))]
        write(folders["cologne"] / f"{part}.csv", found)
    with pytest.raises(RequestError, match="column smokes holds numbers at site cologne, and text at site aachen"):
        at_sites(tmp_path / "run", hosts(folders))


def test_the_model_file_of_the_server_takes_raw_tables(tmp_path, cli):
    run = at_sites(tmp_path / "run", hosts(tables(tmp_path)), **{"train.rounds": 12, "train.lr": 0.3})
    new = [row for site in SITES for row in rows(site)]
    path = write(tmp_path / "new.csv", new, ("sodium", "smokes", "pressure", "age"))
    code, _, said = cli("predict", str(run.path), str(path), "-o", str(tmp_path / "out.csv"))
    assert code == 0, said
    said = [row["prediction"] for row in csv.DictReader((tmp_path / "out.csv").read_text().splitlines())]
    right = np.mean([label == row["diagnosis"] for label, row in zip(said, new, strict=True)])
    assert right > 0.9, "scaled by the sites' mean and deviation; raw numbers give one half"
    assert run.summary["accuracy"] > 0.9


@pytest.mark.parametrize("scale", ["per-client", "none", "given"])
def test_other_scales_work_at_sites_and_tell_nothing(tmp_path, scale):
    mean, std = [50.0, 140.0, 2e6], [15.0, 30.0, 1e6]
    how = {"drop": ["smokes"], "fill": 130.0, "scale": scale}
    if scale == "given":
        how |= {"mean": mean, "std": std}
    orders = {"aachen": COLUMNS, "bonn": COLUMNS[::-1], "cologne": COLUMNS}

    def asked(site):
        turned = {key: how[key][::-1] for key in ("mean", "std") if key in how}
        return how | (turned if site == "bonn" else {})

    run = at_sites(tmp_path / "run", hosts(tables(tmp_path, orders.get), asked=asked))
    done = agreed(run)
    assert done.per_client == (scale == "per-client")
    assert done.mean == (tuple(mean) if scale == "given" else None), "by name, as the first site has its columns"
    assert run.summary["bytes_setup"] == 0
    (event,) = [event for event in run.events() if event["event"] == AGREED]
    assert (event["scale"], event["told"]) == (scale, None)


def test_given_means_must_be_the_same_for_a_column_of_that_name(tmp_path):
    how = {"drop": ["smokes"], "scale": "given", "mean": [50.0, 140.0, 2e6], "std": [15.0, 30.0, 1e6]}
    turned = {"mean": how["mean"][::-1], "std": how["std"][::-1]}
    with pytest.raises(RequestError, match="site bonn gives age mean 2e\\+06 and std 1e\\+06, site aachen 50 and 15"):
        at_sites(tmp_path / "run", hosts(tables(tmp_path), asked=lambda site: how | (turned if site == "bonn" else {})))


def test_own_images_of_different_brightness_are_scaled_over_all_sites(tmp_path):
    rng, pixels, folders = np.random.default_rng(0), [], {}
    for at, site in enumerate(SITES):
        folders[site] = tmp_path / site / "images"
        for part, count in (("train", 12), ("test", 4)):
            for i in range(count):
                image = rng.integers(20 + 60 * at, 100 + 60 * at, (6, 6)).astype(np.uint8)
                image[:, :3] //= 1 + i % 2
                place = folders[site] / part / ("left" if i % 2 else "plain")
                place.mkdir(parents=True, exist_ok=True)
                Image.fromarray(image).save(place / f"{i}.png")
                pixels += [image] if part == "train" else []
    only = {"label": None, "fill": None, "test_path": None}
    sites = hosts(folders, asked=lambda site: only | {"path": str(folders[site])})
    run = at_sites(tmp_path / "run", sites)
    done, seen = agreed(run), np.stack(pixels) / 255
    assert done.mean == pytest.approx([seen.mean()], rel=1e-12)
    assert done.std == pytest.approx([seen.std()], rel=1e-12)
    assert run.saved.info.preprocessing == done
    assert run.predict(np.stack(pixels)[:, None]).shape == (36,)


def test_a_run_goes_on_with_the_scale_that_was_agreed_on(tmp_path):
    folders = tables(tmp_path)
    whole = at_sites(tmp_path / "whole", hosts(folders))
    asked = []

    def stop(event):
        if event["event"] == "round" and event["round"] == 1:
            raise KeyboardInterrupt

    experiment = Experiment.of(None, **TRAIN)
    with pytest.raises(KeyboardInterrupt):
        run_at_sites(Here(hosts(folders, memory=tmp_path / "m")), experiment, tmp_path / "part", 3, watch=stop)

    def tamper(name, kind, reply):
        asked.append(kind)
        return reply

    sites = hosts(folders, memory=tmp_path / "m")  # restarted: they know nothing of the run
    again = run_at_sites(Here(sites, tamper), experiment, tmp_path / "part", 3, resumed=True)
    assert float((model(again) - model(whole)).abs().max()) < 1e-12
    assert "features" not in asked, "nothing is found anew"
    assert again.saved.info.preprocessing == whole.saved.info.preprocessing
    assert again.summary["bytes_setup"] == whole.summary["bytes_setup"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda row: {**row, "smokes": "thrice"}, "has other values in column smokes"),
        (
            lambda row: {"weight" if key == "sodium" else key: value for key, value in row.items()},
            "lacks column sodium",
        ),
    ],
    ids=["values", "names"],
)
def test_a_site_that_comes_back_with_other_columns_is_left_out_with_the_reason(tmp_path, change, said):
    folders = tables(tmp_path)
    sites = hosts(folders)
    transport = Here(sites)

    def watch(event):
        if event.get("event") == "round" and event["round"] == 1:
            found = [change(row) for row in rows("bonn")]
            columns = [key for key in found[0] if key != "diagnosis"]
            for part in ("train", "test"):
                write(folders["bonn"] / f"{part}.csv", found, columns)
            sites["bonn"] = sites["bonn"].restarted()

    run = run_at_sites(transport, Experiment.of(None, **TRAIN), tmp_path / "run", 3, watch=watch)
    refused = [event for event in run.events() if event["event"] == "site_refused"]
    assert refused
    assert all(event["site"] == "bonn" and said in event["why"] for event in refused)


def test_a_site_that_does_not_answer_ends_what_has_not_begun(tmp_path):
    def silent(name, kind, reply):
        return None if (name, kind) == ("bonn", "features") else reply

    with pytest.raises(RequestError, match="site bonn: it did not answer in time; all sites are needed to begin"):
        at_sites(tmp_path / "run", hosts(tables(tmp_path)), tamper=silent)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("numbers", [[np.nan] * 3, [1.0], []])
def test_answers_that_cannot_be_are_refused_by_site(tmp_path, numbers):
    wrong = build_reply(np.array(numbers, "<f8").tobytes())
    with pytest.raises(RequestError, match="site bonn says impossible numbers of its features"):
        at_sites(
            tmp_path / "run",
            hosts(tables(tmp_path)),
            tamper=lambda name, kind, reply: wrong if (name, kind) == ("bonn", "features") else reply,
        )


@pytest.mark.parametrize(
    "change",
    [
        {"columns": [{"name": "age"}]},
        {"mean": [1.0], "std": [1.0]},
        {"mean": [0.0] * 5},
        {"scale": 0.0},
        {"columns": [{"name": "x" * 2000}] * 5},
        {"columns": [{"name": "age", "values": ["a", "a"]}, *({"name": str(i)} for i in range(3))]},
        {"more": 1},
    ],
    ids=str,
)
def test_what_a_site_says_of_its_columns_is_not_trusted(tmp_path, change):
    federation = source(
        {"name": "own", "label": "diagnosis", "fill": "median", "path": str(tables(tmp_path)["aachen"] / "train.csv")},
        0,
    )
    said = json.loads(json.dumps(Introduction.of(federation).dump()))
    assert Introduction.read(said, "aachen").preprocessing == federation.preprocessing
    said["preprocessing"] |= change
    with pytest.raises(RequestError, match="site aachen"):
        Introduction.read(said, "aachen")


def test_sums_that_could_be_subtracted_from_earlier_ones_are_not_given(tmp_path):
    names = (*SITES, "dresden")
    make(tmp_path / "keys", names, ["localhost"])
    folders = tables(tmp_path)
    folders["dresden"] = folders["bonn"]
    sites = hosts(folders, tmp_path / "keys")
    how = {"privacy.aggregate": "masked", "train.rounds": 1}
    at_sites(tmp_path / "four", sites, tmp_path / "keys", **how)
    fewer = {name: sites[name] for name in SITES}
    with pytest.raises(RequestError, match="could be subtracted"):
        at_sites(tmp_path / "three", fewer, tmp_path / "keys", **how)
    again = at_sites(tmp_path / "again", sites, tmp_path / "keys", **how)
    assert again.summary["rounds"] == 1


def test_a_site_answers_the_questions_of_one_scale_and_no_more(tmp_path):
    """Thresholds of a server's own choice would read a column value by value."""
    asked, sites = [], hosts(tables(tmp_path))
    transport = Here(sites)
    exchange = transport.exchange

    def listening(requests, *how):
        asked.extend(
            request for name, request in requests.items() if name == "bonn" and kind_of(request) == b"features"
        )
        return exchange(requests, *how)

    transport.exchange = listening
    run_at_sites(transport, Experiment.of(None, **TRAIN | {"train.rounds": 1}), tmp_path / "run", 3)
    kinds = [json.loads(split(split(request)[2])[1])["kind"] for request in asked]
    assert kinds == ["values", *["below"] * 16, "sums", "squares"]
    for request in asked:  # once more
        with pytest.raises(Exception, match="as often as a run needs them"):
            read_reply(sites["bonn"].answer(request), 1)


@pytest.mark.parametrize(
    "change",
    [
        lambda t, k: t + np.uint64(1),
        lambda t, k: t[:, :7],
        lambda t, k: t[:1],
        lambda t, k: np.sort(np.random.default_rng(0).integers(0, 1 << 63, t.shape, np.uint64)),
        lambda t, k: t + np.uint64(1 << 63) if k else t + np.uint64(1 << 60),
    ],
    ids=["shifted", "fewer", "one rank", "any", "another interval"],
)
@pytest.mark.parametrize("at", [0, 2, 15])
def test_thresholds_are_those_of_a_search_that_narrows_down(change, at):
    steps, questions = np.arange(1, 16, dtype=np.uint64), FeatureQuestions()
    found = np.zeros(2, np.uint64)
    for k in range(at + 1):
        shift = np.uint64(60 - 4 * k)
        thresholds = found[:, None] + (steps << shift)
        if k == at:
            with pytest.raises(RefusedError, match="search for medians"):
                questions.check(Question("below", change(thresholds, k)), 1)
        questions.check(Question("below", thresholds), 1)
        found = found + (np.array([7, 9], np.uint64) << shift)


@pytest.mark.parametrize(
    ("asked", "sites", "used"),
    [(None, 3, "all"), (0.5, 3, 2), (0.1, 3, 2), (None, 11, 6), (1, 3, 1), ("all", 3, "all")],
)
def test_no_site_is_left_out_by_rounding(asked, sites, used):
    experiment = Experiment.of(None, **({} if asked is None else {"train.clients_per_round": asked}))
    submitted = Experiment.of(tomllib.loads(to_submit(experiment)))
    assert settle_sites_per_round(submitted, sites).train.clients_per_round == used


def test_three_sites_all_take_part_unless_the_experiment_says_otherwise(tmp_path):
    table = {"model": {"name": "mlp"}, "train": {"rounds": 2, "epochs": 1}}
    trained = []

    def tamper(name, kind, reply):
        trained.extend([name] if kind == "task" else [])
        return reply

    run_at_sites(Here(hosts(tables(tmp_path)), tamper), table, tmp_path / "run", 3)
    assert sorted(trained) == sorted(SITES * 2)


def test_a_site_that_names_its_labels_in_another_language_is_a_warning(tmp_path):
    folders = tables(tmp_path)
    first = at_sites(tmp_path / "first", hosts(folders))
    assert not [event for event in first.events() if event["event"] == "warning"]
    for file in folders["bonn"].iterdir():
        file.write_text(file.read_text().replace("ill", "malato").replace("well", "sano"))
    run = at_sites(tmp_path / "run", hosts(folders))
    (event,) = [event for event in run.events() if event["event"] == "warning"]
    said = "labels: site bonn: no other site has labels malato, sano; what is the same needs one name"
    assert describe_fault(event).why == said


def test_a_site_that_lacks_a_label_of_others_has_no_other_data_for_it(tmp_path):
    folders = tables(tmp_path, gaps=False)
    found = [row | ({"diagnosis": "unsure"} if i < 6 else {}) for i, row in enumerate(rows("cologne", gaps=False))]
    write(folders["cologne"] / "train.csv", found[:30])
    run = at_sites(tmp_path / "run", hosts(folders), **{"method.name": "flips"})
    assert not [event for event in run.events() if event["event"] == "site_changed"]
    (counts,) = [event["counts"] for event in run.events() if event["event"] == "clients"]
    assert [row[1] for row in counts] == [0, 0, 6]


@pytest.mark.parametrize("wish", [{"method.name": "flips"}, {"privacy.labels": "prf", "privacy.aggregate": "masked"}])
def test_a_site_may_hold_one_label_alone(tmp_path, wish):
    folders = tables(tmp_path, gaps=False, count=60)
    for part in ("train", "test"):
        found = rows("cologne", gaps=False, count=60)[30:] if part == "test" else rows("cologne", gaps=False)[:30]
        write(folders["cologne"] / f"{part}.csv", [row for row in found if row["diagnosis"] == "well"])
    make(tmp_path / "keys", SITES)
    run = at_sites(tmp_path / "run", hosts(folders, tmp_path / "keys"), tmp_path / "keys", **wish)
    (start,) = [event for event in run.events() if event["event"] == "start"]
    assert len(start["classes"]) == 2
    troubles = ("site_refused", "site_changed", "dropped", "no_update")
    assert not [event for event in run.events() if event["event"] in troubles]


def test_sites_that_all_hold_the_same_label_have_nothing_to_tell_apart(tmp_path):
    folders = tables(tmp_path, gaps=False)
    for site, folder in folders.items():
        write(folder / "train.csv", [row | {"diagnosis": "well"} for row in rows(site, gaps=False)])
        write(folder / "test.csv", [row | {"diagnosis": "well"} for row in rows(site, gaps=False)])
    with pytest.raises(RequestError, match="1 class; at least 2 are needed"):
        at_sites(tmp_path / "run", hosts(folders))


def test_a_column_called_as_numbers_of_patients_are_is_noted_by_name_alone(tmp_path):
    folders = {site: tmp_path / site for site in SITES}
    for at, (site, folder) in enumerate(folders.items()):
        numbered = [{**row, "patient_id": str(1000 * at + i)} for i, row in enumerate(rows(site))]
        write(folder / "train.csv", numbered[:30], (*COLUMNS, "patient_id"))
        write(folder / "test.csv", numbered[30:], (*COLUMNS, "patient_id"))
    run = at_sites(tmp_path / "run", hosts(folders))
    (event,) = [event for event in run.events() if event["event"] == "warning"]
    assert event["what"] == "column patient_id"
    assert 'data.drop = ["patient_id"]' in event["why"]
    run = at_sites(tmp_path / "dropped", hosts(folders, asked=lambda site: {"drop": ["patient_id"]}))
    assert not [event for event in run.events() if event["event"] == "warning"]


@pytest.mark.parametrize(("scale", "said"), [("none", True), ("per-client", False)])
def test_training_that_goes_wrong_may_be_for_features_that_only_sites_see(tmp_path, scale, said):
    raw = at_sites(tmp_path / "run", hosts(tables(tmp_path, gaps=False), asked=lambda site: {"scale": scale}), **WILD)
    (event,) = [event for event in raw.events() if event["event"] == "training"][:1]
    assert ('data.scale = "federated" at every site' in event["why"]) == said


def units(*sites: np.ndarray):
    """Return which sites seem to have another unit, and the ratio, from what they say of one column."""
    sums = np.array([[len(own), own.sum()] for own in sites])
    mean = sums[:, 1].sum() / sums[:, 0].sum()
    squares = np.array([[((own - mean) ** 2).sum()] for own in sites])
    return [(site, round(ratio)) for _, site, ratio in other_units([Column("weight")], sums, squares)]


def test_a_column_in_another_unit_at_a_site_is_found_and_patients_of_another_kind_are_not():
    rng = np.random.default_rng(0)
    kg = [rng.normal(70, 15, 200) for _ in range(4)]
    assert [site for site, _ in units(*kg[:2], 1000 * kg[2], kg[3])] == [2], "grams"
    assert [site for site, _ in units(kg[0] / 1000, *kg[1:])] == [0], "tonnes"
    assert [site for site, _ in units(kg[0], 1000 * kg[1])] == [1], "of two, the larger one"
    assert [site for site, _ in units(-kg[0], -1000 * kg[1], -kg[2])] == [1]
    creatinine = [rng.lognormal(0, 0.4, 100) for _ in range(3)]
    assert units(creatinine[0], 88.4 * creatinine[1], creatinine[2])[0][0] == 1, "umol/l for mg/dl"
    assert not units(*kg)
    assert not units(rng.normal(12, 2, 50), *kg), "children"
    assert not units(*(rng.lognormal(2.5 * (i == 0), 1.2, 200) for i in range(4))), "wide, within ten deviations"
    rare, always = (rng.random(200) < 0.02).astype(float), np.ones(200)
    assert not units(rare, rare, always), "yes and no"
    assert not units(np.zeros(9), kg[0], kg[1])
    assert not units(always, 50 * always, 100 * always), "constants"
    assert not units(kg[0])


def test_another_unit_at_a_site_is_a_warning_where_sums_are_in_the_open(tmp_path, caplog):
    keys = tmp_path / "keys"
    make(keys, SITES)
    folders = tables(tmp_path)
    for part in ("train", "test"):
        found = [row | {"pressure": row["pressure"] and str(1000 * float(row["pressure"]))} for row in rows("bonn")]
        write(folders["bonn"] / f"{part}.csv", found[:30] if part == "train" else found[30:])
    run = at_sites(tmp_path / "run", hosts(folders))
    (event,) = [event for event in run.events() if event["event"] == "warning"]
    assert event["site"] == "bonn"
    assert describe_fault(event).why.startswith("column pressure: its mean at site bonn is ")
    masked = {"privacy.aggregate": "masked"}
    hidden = at_sites(tmp_path / "masked", hosts(folders, keys), keys, **masked)
    assert not [event for event in hidden.events() if event["event"] == "warning"]
    told = [record.getMessage() for record in caplog.records if "another unit" in record.getMessage()]
    assert {line.split(":")[0] for line in told} == {"site aachen", "site cologne"}  # only they see it, and only theirs
    assert all("column pressure: mean and deviation" in line for line in told)


def test_sites_with_patients_of_different_kinds_are_not_asked_for_their_unit(tmp_path, caplog):
    at_sites(tmp_path / "run", hosts(tables(tmp_path)))
    assert not [record for record in caplog.records if "another unit" in record.getMessage()]
