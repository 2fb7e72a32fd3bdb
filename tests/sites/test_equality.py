"""The same experiment at three real sites and on one machine gives the same model."""

from __future__ import annotations

import json

import numpy as np
import pytest
from staging import distance

from fedstrata import RequestError, train
from fedstrata.config.build import build_federation
from fedstrata.config.experiment import Experiment
from fedstrata.remote.site.label_names import open_model
from fedstrata.runs.folder import Run

pytestmark = pytest.mark.sites

SMALL = {
    "data.clients": 3,
    "model.hidden": [8],
    "train.rounds": 3,
    "train.epochs": 1,
    "train.batch_size": 64,
    "train.clients_per_round": "all",
    "engine.precision": "fp64",
    "trust.clip": "none",  # as in a simulation, so that both come to the same model
    "trust.samples": "none",
}

METHODS = {  # and fedavg by messages, below; scaffold where sites and servers die (test_faults)
    "flips and fedyogi": {"method.name": "flips", "method.server_step": "yogi", "train.clients_per_round": 2},
    "terraform": {"method.name": "terraform"},
    "fedbss": {"method.name": "fedbss", "method.sampler.warmup": 0},
    "stratify-batch with batch norm": {
        "method.name": "stratify-batch",
        "model.name": "mlp",
        "model.norm": "batch",
        "train.rounds": 1,
        "method.schedule.length": 100,
        "train.batch_size": 20,
    },
}


def equal(here: Run, there: Run) -> None:
    assert distance(here, there) < 1e-9
    assert there.summary["accuracy"] == pytest.approx(here.summary["accuracy"], abs=1e-12)


@pytest.mark.parametrize("name", METHODS)
def test_over_the_stream(federation, tmp_path, name):
    overrides = SMALL | METHODS[name]
    here = train(overrides=overrides, out=tmp_path / "here")
    equal(here, federation.run(tmp_path / "there", overrides, stream=True))


@pytest.mark.filterwarnings("ignore::fedstrata.privacy.enclave.dev_insecure.InsecureWarning")
def test_an_enclave_at_the_server_that_sites_verify_and_tell(federation, tmp_path):
    inside = {"method.name": "flips", "train.clients_per_round": 2, "privacy.clustering": "enclave"}
    inside |= {"privacy.enclave.attestation": "dev-insecure", "privacy.enclave.allow_insecure": True}
    here = train(overrides=SMALL | inside, out=tmp_path / "here")
    equal(here, federation.run(tmp_path / "there", SMALL | inside, stream=True))


def test_masked_labels_have_names_at_a_site_and_none_at_the_server(federation, tmp_path):
    asked = SMALL | {"privacy.labels": "prf", "train.rounds": 30, "train.lr": 0.2, "data.partition": "iid"}
    run = federation.run(tmp_path / "there", asked, stream=True)
    digits = build_federation(Experiment.of(None, **asked)).test
    np.savez(tmp_path / "digits.npz", x=digits.x.numpy() * 16, y=digits.y.numpy())  # raw: what was done to them travels
    site = open_model(run.path, federation.folder / "keys/sites/a")
    assert sorted(site.classes) == list(range(10))
    assert site.evaluate(tmp_path / "digits.npz")["accuracy"] == pytest.approx(run.summary["accuracy"], abs=0.1)
    assert run.summary["accuracy"] > 0.5  # and one in ten by chance
    assert set(run.predict(tmp_path / "digits.npz")) <= {f"placeholder {i}" for i in range(10)}
    with pytest.raises(RequestError, match="not those of a site"):
        open_model(run.path, federation.folder / "keys/server")


def test_own_tables_go_by_the_names_of_columns_and_are_scaled_over_all_sites(federation, tmp_path):
    rng, lines = np.random.default_rng(0), list[tuple[str, ...]]()
    for i in range(120):
        pressure = "" if i % 7 == 0 else f"{120 + 40 * (i % 2) + rng.normal(0, 8):.3f}"
        lines.append((f"{rng.integers(20, 80)}", pressure, ("no", "yes", "once")[i % 3], ("well", "ill")[i % 2]))
    columns, own = ("age", "pressure", "smokes", "diagnosis"), {"data.label": "diagnosis", "data.fill": "median"}
    for name, order in (("straight", (0, 1, 2, 3)), ("turned", (3, 2, 1, 0))):
        table = "\n".join(",".join(line[i] for i in order) for line in (columns, *lines))
        (tmp_path / f"{name}.csv").write_text(table + "\n")
    asked = SMALL | {"model.name": "mlp", "privacy.aggregate": "masked"}
    here = {"data.name": "own", "data.path": str(tmp_path / "straight.csv"), "data.partition": "iid", **own}
    sets = [word for key, value in own.items() for word in ("--set", f"{key}={value}")]
    try:
        for site in ("a", "b", "c"):
            federation.commands[site].process.terminate()
            federation.commands[site].process.wait()
            path = tmp_path / ("turned.csv" if site == "b" else "straight.csv")
            federation.start_site(site, "--data", str(path), *sets, "--set", "data.partition=iid", wait=False)
        for site in ("a", "b", "c"):
            federation.connected(site)
        there = federation.run(tmp_path / "there", asked, stream=True)
    finally:
        for site in ("a", "b", "c"):
            federation.commands[site].process.terminate()
            federation.commands[site].process.wait()
        federation.mend()
    simulated = train(overrides=asked | here, out=tmp_path / "here")
    assert there.saved.info.preprocessing == simulated.saved.info.preprocessing, "masked sums are exact"
    assert distance(simulated, there) < 1e-3, "updates are rounded under masks"
    assert there.predict(tmp_path / "turned.csv").tolist() == simulated.predict(tmp_path / "straight.csv").tolist()


def test_by_messages_and_from_the_command_line(federation, tmp_path):
    wide = {"model.name": "mlp", "model.hidden": [16384]}  # longer than what goes into one record of Flower's
    overrides = SMALL | wide | {"train.rounds": 1, "train.epochs": 1}
    here = train(overrides=overrides, out=tmp_path / "here")
    sets = [word for key, value in overrides.items() for word in ("--set", f"{key}={value}")]
    to, out = ("--server", federation.address), str(tmp_path / "there")
    told = federation.call("run", "--sites", "3", "--out", out, *to, *sets, "--no-stream", "--json", "-q")
    summary, there = json.loads(told.strip().splitlines()[-1]), Run.open(tmp_path / "there")
    equal(here, there)
    assert (summary["rounds"], summary["client_updates"], summary["run_dir"]) == (1, 3, out)
    assert summary["accuracy"] == there.summary["accuracy"]
    given, taken, finished = federation.calls(
        (0, ["status", out, *to, "--json"]),
        (2, ["run", "--sites", "3", "--out", out, *to]),
        (0, ["run", "--resume", out, *to]),
    )
    assert [row["contributed"]["rounds"] for row in json.loads(given)["sites"]] == [1, 1, 1]
    assert "continue a run with --resume" in taken
    assert "was finished already" in finished
