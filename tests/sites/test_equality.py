"""The same experiment at three real sites and on one machine gives the same model."""

from __future__ import annotations

import json

import numpy as np
import pytest
from staging import distance

from fedstrata import RequestError, train
from fedstrata.config.build import build_federation
from fedstrata.config.experiment import Experiment
from fedstrata.remote.label_names import open_model
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
    asked = SMALL | {"privacy.labels": "prf", "train.rounds": 6, "train.lr": 0.2, "data.partition": "iid"}
    run = federation.run(tmp_path / "there", asked, stream=True)
    digits = build_federation(Experiment.of(None, **asked)).test
    np.savez(tmp_path / "digits.npz", x=digits.x.numpy(), y=digits.y.numpy())
    site = open_model(run.path, federation.folder / "keys/sites/a")
    assert sorted(site.classes) == list(range(10))
    assert site.evaluate(tmp_path / "digits.npz")["accuracy"] == pytest.approx(run.summary["accuracy"], abs=0.1)
    assert run.summary["accuracy"] > 0.25  # and one in ten by chance
    assert set(run.predict(tmp_path / "digits.npz")) <= {f"placeholder {i}" for i in range(10)}
    with pytest.raises(RequestError, match="not those of a site"):
        open_model(run.path, federation.folder / "keys/server")


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
