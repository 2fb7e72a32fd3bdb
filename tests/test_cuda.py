"""On a GPU: the same experiment gives the same model as on the CPU, to rounding."""

from __future__ import annotations

import pytest
import torch

from fedstrata import registry, resume, train

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SMALL = {"train.rounds": 3, "data.clients": 8, "engine.precision": "fp64"}


@pytest.mark.parametrize("model", ["mlp", "lenet5"])
@pytest.mark.parametrize("method", registry.names("methods"))
def test_cuda_equals_cpu(method, model, tmp_path):
    overrides = SMALL | {"method.name": method, "model.name": model}
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
