"""On a GPU: the same experiment gives the same model as on the CPU, to rounding."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedstrata import Federation, resume, train
from fedstrata.client.trainer import Trainer
from fedstrata.core import registry
from fedstrata.core.counter_rng import Clock

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SMALL = {"train.rounds": 3, "data.clients": 8, "engine.precision": "fp64"}


@pytest.mark.parametrize(
    "asked",
    [
        {"model.name": "lenet5", "method.name": "scaffold", "engine.precision": "fp64"},
        {"model.name": "mlp", "model.norm": "batch", "engine.precision": "fp64"},
        {"model.name": "lenet5", "engine.precision": "bf16"},
    ],
)
def test_compiled_steps_are_used_and_give_the_model_of_plain_ones(asked, tmp_path):
    asked = SMALL | {"engine.device": "cuda", "engine.vmap": "never"} | asked
    compiled = train(overrides=asked | {"engine.compile": True}, out=tmp_path / "compiled")
    plain = train(overrides=asked | {"engine.compile": False}, out=tmp_path / "plain")
    assert [e["wall"]["remark"] for e in compiled.events() if e["event"] == "engine" and e["wall"].get("remark")] == []
    gap = max(float((t - plain.model()[name]).abs().max()) for name, t in compiled.model().items())
    assert gap < (1e-9 if asked["engine.precision"] == "fp64" else 3e-2)


@pytest.mark.parametrize("execution", ["auto", "messages"])
@pytest.mark.parametrize("model", ["mlp", "lenet5"])
@pytest.mark.parametrize("method", registry.names("methods"))
def test_cuda_equals_cpu(method, model, execution, tmp_path):
    overrides = SMALL | {"method.name": method, "model.name": model, "engine.execution": execution}
    if method in ("fedtan", "stratify-batch"):
        overrides |= {"model.name": "mlp", "model.norm": "batch"}
    gpu = train(overrides=overrides | {"engine.device": "cuda"}, out=tmp_path / "gpu")
    cpu = train(overrides=overrides | {"engine.device": "cpu"}, out=tmp_path / "cpu")
    assert next(e["wall"]["device"] for e in gpu.events() if e["event"] == "engine") == "cuda"
    gap = max(float((t - cpu.model()[name]).abs().max()) for name, t in gpu.model().items())
    assert gap < 1e-9
    sent = ("bytes_up", "bytes_down", "bytes_p2p", "client_updates")
    assert [gpu.summary[key] for key in sent] == [cpu.summary[key] for key in sent]


def test_clients_that_meet_there_may_keep_state(tmp_path):
    asked = SMALL | {"method.name": "fedtan", "model.norm": "batch", "method.corrections": ["scaffold"]}
    runs = [train(overrides=asked | {"engine.device": d}, out=tmp_path / d) for d in ("cuda", "cpu")]
    assert gap_of(*runs) < 1e-9


def test_auto_takes_the_gpu_and_a_run_resumes_there(tmp_path):
    overrides = {"train.rounds": 4, "method.name": "scaffold"}

    def watch(event):
        if event["event"] == "round" and event["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(overrides=overrides, out=tmp_path / "run", watch=watch)
    assert resume(tmp_path / "run").summary["rounds"] == 4


@pytest.mark.parametrize("shape", [(16,), (16, 3, 5, 5), (32, 7), (7, 2)])
def test_numbers_drawn_there_by_one_kernel_are_those_of_the_cpu(shape):
    keys = torch.arange(16) * 0x1234567 - 2**62
    here, there = Clock(keys), Clock(keys.cuda())
    for _ in range(3):
        assert torch.equal(here.uniform(*shape), there.uniform(*shape).cpu())
        assert torch.equal(here.at_least(0.3, *shape), there.at_least(0.3, *shape).cpu())


def test_small_pixels_augmentation_and_dropout_give_the_same_bits_there(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (80, 3, 12, 12), dtype=np.uint8), np.arange(80) % 4
    federation = Federation.from_arrays(x, y, np.array_split(np.arange(80), 5), test=0.2)
    net = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(432, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 4)
    )
    asked = SMALL | {"train.augment": {"crop": 2, "flip": True}, "train.clients_per_round": "all"}
    del asked["data.clients"]
    runs = [
        train(federation=federation, model=net, overrides=asked | {"engine.device": d}, out=tmp_path / d)
        for d in ("cpu", "cuda")
    ]
    gap = max(float((t - runs[1].model()[name]).abs().max()) for name, t in runs[0].model().items())
    assert gap < 1e-9


def gap_of(one, other):
    return max(float((t - other.model()[name]).abs().max()) for name, t in one.model().items())


@pytest.mark.parametrize("together", ["always", "never"])
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "moon", "fedbss", "fedpbs", "feddyn", "fedyogi"])
def test_recorded_workers_side_by_side_equal_plain_steps_on_one(method, together, tmp_path):
    asked = SMALL | {"method.name": method, "engine.device": "cuda", "train.clients_per_round": "all"}
    asked |= {"method.sampler.warmup": 0} if method == "fedbss" else {}
    plain = train(
        overrides=asked | {"engine.cuda_graphs": False, "engine.workers": 1, "engine.vmap": "never"}, out=tmp_path / "1"
    )
    workers = train(overrides=asked | {"engine.workers": 3, "engine.vmap": together}, out=tmp_path / "3")
    assert gap_of(plain, workers) < 1e-9
    remarks = [e["wall"].get("remark") for e in workers.events() if e["event"] == "engine"]
    assert not any(remarks)


def test_batch_norm_is_recorded_with_padding_left_out(tmp_path):
    asked = SMALL | {"model.norm": "batch", "train.clients_per_round": "all"}
    runs = [train(overrides=asked | {"engine.device": d}, out=tmp_path / d) for d in ("cpu", "cuda")]
    assert gap_of(*runs) < 1e-9


class ReadsTheHost(torch.nn.Module):
    """Asks the device for a number in the middle of a step, which cannot be recorded."""

    def __init__(self):
        super().__init__()
        self.fc, self.head = torch.nn.Linear(6, 5), torch.nn.Linear(5, 3)

    def forward(self, x):
        hidden = self.fc(x)
        return self.head(hidden if float(hidden.detach().sum()) > 0 else hidden * 1.0)


def test_a_step_that_cannot_be_recorded_is_taken_as_it_is_with_the_reason(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 6)), np.arange(60) % 3
    federation, module = Federation.from_arrays(x, y, np.array_split(np.arange(60), 4), test=0.2), ReadsTheHost()
    asked = {
        "train.rounds": 2,
        "engine.precision": "fp64",
        "train.clients_per_round": "all",
        "engine.vmap": "never",
    }
    runs = [
        train(federation=federation, model=module, overrides=asked | {"engine.device": d}, out=tmp_path / d)
        for d in ("cpu", "cuda")
    ]
    remarks = [e["wall"].get("remark") or "" for e in runs[1].events() if e["event"] == "engine"]
    assert gap_of(*runs) < 1e-9
    assert any("captur" in remark for remark in remarks)


def test_out_of_memory_costs_workers_and_no_rounds(tmp_path, monkeypatch):
    asked = SMALL | {"engine.device": "cuda", "engine.workers": 4, "engine.vmap": "never", "method.name": "scaffold"}
    expected = train(overrides=asked, out=tmp_path / "calm")
    step, left = Trainer.step, [30]

    def hungry(self, *size):
        left[0] -= 1
        if left[0] == 0:
            raise torch.OutOfMemoryError("CUDA out of memory")
        step(self, *size)

    monkeypatch.setattr(Trainer, "step", hungry)
    run = train(overrides=asked | {"engine.cuda_graphs": False}, out=tmp_path / "tight")
    remarks = [e["wall"].get("remark") or "" for e in run.events() if e["event"] == "engine"]
    assert "2 workers instead of 4: the device ran out of memory" in remarks
    assert gap_of(expected, run) < 1e-9


@pytest.mark.parametrize(("precision", "near"), [("tf32", 2e-2), ("bf16", 1e-1)])
def test_less_precision_is_near_and_stated(precision, near, tmp_path):
    asked = {"train.rounds": 2, "data.clients": 8, "model.name": "lenet5", "engine.device": "cuda"}
    exact = train(overrides=asked, out=tmp_path / "fp32")
    quick = train(overrides=asked | {"engine.precision": precision}, out=tmp_path / precision)
    assert 0 < gap_of(exact, quick) < near
    assert quick.summary["precision"] == precision
    assert exact.summary["precision"] == "fp32"
