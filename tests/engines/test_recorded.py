"""On a GPU every local step that a user can ask for is recorded, with one or two graphs a worker.

Each case goes through `train`; whatever falls back is an `engine` event with a remark, and fails here unless it stands
on the list of what cannot be recorded.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from packs import PACKS

from fedstrata import Federation, Inputs, train
from fedstrata.core import registry
from fedstrata.engines.local import gpu as of_gpu
from fedstrata.engines.local.cuda_graph import Recorder

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
QUICK = {"train.rounds": 2, "data.clients": 8, "train.clients_per_round": 4, "train.epochs": 1, "engine.workers": 3}
ALONE = {"engine.vmap": "never"}
PACKED = {
    "mnist": "mnist",
    "fashion-mnist": "fashion_mnist",
    "cifar10": "cifar10",
    "ham10000": "ham10000",
    "pacs": "pacs",
    "digits-dg": "digit_domains",
    "covtype": "covtype",
    "uci-har": "uci_har",
    "mit-bih": "mitbih",
}
SIGNALS = {"ecg-cnn1d": (1, 128), "har-cnn1d": (6, 128), "har-mlp": (6, 128), "covtype-mlp": (54,), "mlp": (20,)}
MEETING = ("fedtan",)  # clients tell each other something within a step: none of it is recorded
GREY = {"cnn-hics-fmnist", "lenet5", "cnn-mcmahan", "cnn-fedbss"}


@pytest.fixture
def recorders(monkeypatch):
    """Collect the recorders of all workers."""
    made, init = [], Recorder.__init__

    def watched(self, *args, **kwargs):
        init(self, *args, **kwargs)
        made.append(self)

    monkeypatch.setattr(Recorder, "__init__", watched)
    return made


def remarks_of(run):
    said = [e["wall"].get("remark") for e in run.events() if e["event"] == "engine"]
    return [remark for remark in said if remark]


def recorded(recorders, out, overrides, **given):
    run = train(overrides={**QUICK, "engine.device": "cuda", **overrides}, out=out, **given)
    assert remarks_of(run) == []
    counts = [len(recorder.sizes) for recorder in recorders]
    assert max(counts) in (1, 2)
    return run


def images(channels=3, side=32, classes=10, **inputs):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (240, channels, side, side), dtype=np.uint8), np.arange(240) % classes
    means = (0.4,) * channels, (0.2,) * channels
    clients = np.split(np.arange(240), [7, 20, 55, 100, 140, 190, 210])
    return Federation.from_arrays(x, y, clients, inputs=Inputs(255.0, *means, **inputs), test=0.1)


@pytest.mark.parametrize("name", ["digits", *PACKED])
def test_every_data_set(name, recorders, tmp_path, monkeypatch):
    options = {"form": "signals"} if name == "uci-har" else {}
    if name in PACKED:
        if not (PACKS / PACKED[name]).is_dir():
            pytest.skip(f"no pack of {name}; FEDSTRATA_PACKS says where packs are")
        monkeypatch.setenv("FEDSTRATA_DATA", str(tmp_path / "data"))
        place = PACKS if name == "digits-dg" else PACKS / PACKED[name]  # which is made of two
        registry.build("datasets", name, options, "data").fetch(place)
    model = "mlp" if name in ("covtype", "uci-har", "mit-bih") else "lenet5"
    asked = {"data.name": name, "model.name": model, **{f"data.{key}": value for key, value in options.items()}}
    recorded(recorders, tmp_path / "run", {**ALONE, **asked})


@pytest.mark.parametrize(
    ("name", "norm"),
    [*((name, None) for name in registry.names("models")), ("mlp", "batch"), ("resnet9", "gn"), ("resnet18", "gn")],
)
def test_every_model(name, norm, recorders, tmp_path):
    shape = SIGNALS.get(name)
    if shape is not None:
        rng = np.random.default_rng(0)
        x, y = rng.normal(size=(240, *shape)).astype(np.float32), np.arange(240) % 5
        federation = Federation.from_arrays(x, y, np.split(np.arange(240), [7, 20, 55, 100, 140, 190, 210]), test=0.1)
    else:
        federation = images(1, 28) if name in GREY else images()
    del (asked := QUICK | ALONE | {"engine.device": "cuda", "model.name": name})["data.clients"]
    run = train(overrides=asked | ({"model.norm": norm} if norm else {}), federation=federation, out=tmp_path / "run")
    assert remarks_of(run) == []
    assert max(len(recorder.sizes) for recorder in recorders) in (1, 2)


@pytest.mark.parametrize("model", ["lenet5", "mlp"])
@pytest.mark.parametrize("method", registry.names("methods"))
def test_every_method(method, model, recorders, tmp_path):
    asked = {"method.name": method, "model.name": model, **ALONE}
    if method in ("stratify-batch", *MEETING):
        asked |= {"model.name": "mlp", "model.norm": "batch"}
    run = train(overrides={**QUICK, "engine.device": "cuda", **asked}, out=tmp_path / "run")
    assert remarks_of(run) == []
    assert max(len(recorder.sizes) for recorder in recorders) in ((0,) if method in MEETING else (1, 2))


@pytest.mark.parametrize("part", registry.names("corrections"))
def test_every_correction_beside_another(part, recorders, tmp_path):
    both = [{"kind": part}, {"kind": "clip", "norm": 5.0}] if part != "clip" else [{"kind": "clip", "norm": 5.0}]
    recorded(recorders, tmp_path / "run", {**ALONE, "method.corrections": both, "model.name": "lenet5"})


@pytest.mark.parametrize("part", registry.names("samplers"))
@pytest.mark.parametrize("optimizer", registry.names("optimizers"))
def test_every_sampler_and_optimizer(part, optimizer, recorders, tmp_path):
    asked = {**ALONE, "method.sampler.kind": part, "train.optimizer.kind": optimizer, "model.name": "lenet5"}
    recorded(recorders, tmp_path / "run", asked)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp64"])
@pytest.mark.parametrize("augment", [{"crop": 4}, {"flip": True}, {"crop": 4, "flip": True}])
def test_augmentation_at_every_precision(augment, precision, recorders, tmp_path):
    del (usual := dict(QUICK))["data.clients"]
    asked = {**usual, **ALONE, "train.augment": augment, "engine.precision": precision, "model.name": "resnet9"}
    run = train(overrides={**asked, "engine.device": "cuda"}, federation=images(), out=tmp_path / "run")
    assert remarks_of(run) == []
    assert max(len(recorder.sizes) for recorder in recorders) in (1, 2)


@pytest.mark.filterwarnings("ignore:RNN module weights")  # they lie in the flat model, not as cuDNN would like them
def test_tokens_and_a_module_of_ones_own(recorders, tmp_path):
    class Reader(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.gru = torch.nn.Embedding(50, 8), torch.nn.GRU(8, 12, batch_first=True)
            self.drop, self.head = torch.nn.Dropout(0.2), torch.nn.Linear(12, 4)

        def forward(self, x):
            return self.head(self.drop(self.gru(self.words(x))[0][:, -1]))

    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 50, (160, 9)), np.arange(160) % 4
    federation = Federation.from_arrays(x, y, np.array_split(np.arange(160), 6), test=0.2)
    del (usual := dict(QUICK))["data.clients"]
    asked = {**usual, **ALONE, "engine.device": "cuda"}
    run = train(overrides=asked, federation=federation, model=Reader(), out=tmp_path / "run")
    assert remarks_of(run) == []
    assert max(len(recorder.sizes) for recorder in recorders) == 1


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedpbs", "stratify-batch", "stratify-single"])
def test_tiny_clients_many_at_once(method, tmp_path):
    run = train(overrides={**QUICK, "method.name": method, "engine.device": "cuda"}, out=tmp_path / "run")
    assert remarks_of(run) == []


@pytest.mark.parametrize("share", ["FOR_STATE", "FOR_SAMPLES"])
def test_a_device_without_room_gives_the_same_model(share, recorders, tmp_path, monkeypatch):
    del (asked := QUICK | ALONE)["data.clients"]
    asked |= {"engine.device": "cuda", "method.name": "scaffold", "model.name": "lenet5", "engine.precision": "fp64"}
    asked |= {"train.augment": {"crop": 2, "flip": True}, "train.rounds": 4}
    roomy = train(overrides=asked, federation=images(1, 28), out=tmp_path / "roomy")
    monkeypatch.setattr(of_gpu, share, 0.0)
    tight = train(overrides=asked, federation=images(1, 28), out=tmp_path / "tight")
    assert remarks_of(tight) == []
    gap = max(float((t - tight.model()[name]).abs().max()) for name, t in roomy.model().items())
    assert gap < 1e-9
    assert max(len(recorder.sizes) for recorder in recorders) == 1


def test_what_cannot_be_recorded_is_said_once(tmp_path):
    class Asks(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = torch.nn.Linear(6, 3)

        def forward(self, x):
            return self.head(x if float(x.sum()) > 0 else x * 1.0)

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 6)), np.arange(60) % 3
    federation = Federation.from_arrays(x, y, np.array_split(np.arange(60), 6), test=0.2)
    asked = {**ALONE, "train.rounds": 1, "train.clients_per_round": "all", "engine.device": "cuda", "engine.workers": 4}
    run = train(overrides=asked, federation=federation, model=Asks(), out=tmp_path / "run")
    (remark,) = remarks_of(run)
    assert "take several times as long" in remark
