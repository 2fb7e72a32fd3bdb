"""Networks of timm by name."""

from __future__ import annotations

import pytest
import torch
from vision import load_timm

import fedstrata

if not load_timm():
    pytest.skip("timm is not installed", allow_module_level=True)


@pytest.mark.parametrize(
    ("architecture", "shape"),
    [("test_resnet", (1, 28, 28)), ("test_vit", (3, 32, 48)), ("test_efficientnet", (4, 32, 32))],
)
def test_any_size_and_number_of_channels(architecture, shape):
    module = fedstrata.make_part("models", "timm", architecture=architecture).build(shape, 7)
    assert module(torch.zeros(2, *shape)).shape == (2, 7)


@pytest.mark.extended
@pytest.mark.parametrize("architecture", ["test_resnet", "test_convnext", "test_vit"])
def test_a_small_one_conforms(architecture):
    fedstrata.check_model(fedstrata.make_part("models", "timm", architecture=architecture), shape=(3, 32, 32))


def test_an_experiment_trains_one_and_its_file_builds_it_again():
    model = {"name": "timm", "architecture": "test_resnet"}
    data = {"clients": 4}
    run = fedstrata.train({"model": model, "data": data, "train": {"rounds": 1, "epochs": 1, "clients_per_round": 2}})
    again = fedstrata.Run(run.path)
    assert {"head.weight", "head.bias"} < set(again.model())
    assert again.module()(torch.zeros(1, 1, 8, 8)).shape == (1, 10)


@pytest.mark.parametrize("name", ["resnet81", "local-dir:/etc", "hf-hub:timm/resnet18", "../x"])
def test_only_names_of_its_list_are_taken(name):
    with pytest.raises(fedstrata.RequestError, match=r"model.architecture = .* names of timm.list_models"):
        fedstrata.make_part("models", "timm", architecture=name).build((3, 32, 32), 10)


def test_samples_that_are_no_images_are_refused():
    with pytest.raises(fedstrata.RequestError, match="needs images"):
        fedstrata.make_part("models", "timm").build((20,), 10)
