"""On a GPU: the same experiment gives the same model as on the CPU, to rounding."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedstrata import Federation, registry, resume, train

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SMALL = {"train.rounds": 3, "data.clients": 8, "engine.precision": "fp64"}


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


def test_auto_takes_the_gpu_and_a_run_resumes_there(tmp_path):
    overrides = {"train.rounds": 4, "method.name": "scaffold"}

    def watch(event):
        if event["event"] == "round" and event["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(overrides=overrides, out=tmp_path / "run", watch=watch)
    assert resume(tmp_path / "run").summary["rounds"] == 4


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
