"""Named methods: recipes over the stages. What a recipe does not name is FedAvg's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Recipe:
    """A named method: parts by stage, as they would stand in an experiment file."""

    summary: str
    paper: str
    stages: Mapping[str, Any]
    train: Mapping[str, Any] = field(default_factory=dict)  # suggested where the user sets nothing


def _adaptive(server: str) -> Recipe:
    return Recipe(
        f"FedAvg with the server step {server.capitalize()}.",
        "Reddi et al., ICLR 2021",
        {"combine": {"kind": "size", "server": {"kind": server}}},
    )


FEDAVG = Recipe(
    "Clients train side by side; the model moves by their weighted mean.", "McMahan et al., AISTATS 2017", {}
)
FEDSGD = Recipe(
    "Every client gives one gradient over all its samples.",
    "McMahan et al., AISTATS 2017",
    {"select": {"kind": "everyone"}, "sample": {"kind": "full-batch"}},
)
FEDPROX = Recipe(
    "FedAvg with a proximal term that keeps local models near the global one.",
    "Li et al., MLSys 2020",
    {"correct": [{"kind": "prox", "mu": 0.01}]},
)
SCAFFOLD = Recipe(
    "Control variates cancel the drift of local steps.",
    "Karimireddy et al., ICML 2020",
    {"correct": [{"kind": "scaffold"}], "combine": {"kind": "uniform", "server": {"kind": "sgd"}}},
)
FEDADAGRAD, FEDADAM, FEDYOGI = (_adaptive(server) for server in ("adagrad", "adam", "yogi"))
SFL = Recipe(
    "The model travels from client to client; the last one's model is the result.",
    "Li and Lyu, NeurIPS 2023",
    {"driver": {"kind": "chain"}},
)
STRATIFY_SINGLE = Recipe(
    "The model travels along a schedule of labels, one sample a step.",
    "Stratify, arXiv 2504.13462",
    {"schedule": {"kind": "stratified"}, "driver": {"kind": "chain"}},
    train={"lr": 0.01},
)
STRATIFY_BATCH = Recipe(
    "Global batches along a schedule of labels; the server steps along their exact gradients.",
    "Stratify, arXiv 2504.13462",
    {"schedule": {"kind": "stratified"}, "driver": {"kind": "sync"}},
    train={"lr": 0.05, "batch_size": 64, "optimizer": {"kind": "sgd", "momentum": 0.9}},
)
FEDTAN = Recipe(
    "FedAvg whose batch norms meet in the first local step.",
    "Wang et al., TNNLS 2023",
    {
        "select": {"kind": "everyone"},
        "driver": {"kind": "rounds", "norms": "clients"},
        "combine": {"kind": "uniform", "server": {"kind": "sgd"}},
    },
)
POWER_OF_CHOICE = Recipe(
    "Of some candidates, those with the highest loss train.",
    "Cho et al., AISTATS 2022",
    {"select": {"kind": "power-of-choice"}, "combine": {"kind": "uniform", "server": {"kind": "sgd"}}},
)

PARTS = {
    "fedavg": "fedstrata.methods:FEDAVG",
    "fedsgd": "fedstrata.methods:FEDSGD",
    "fedprox": "fedstrata.methods:FEDPROX",
    "scaffold": "fedstrata.methods:SCAFFOLD",
    "fedadagrad": "fedstrata.methods:FEDADAGRAD",
    "fedadam": "fedstrata.methods:FEDADAM",
    "fedyogi": "fedstrata.methods:FEDYOGI",
    "sfl": "fedstrata.methods:SFL",
    "stratify-single": "fedstrata.methods:STRATIFY_SINGLE",
    "stratify-batch": "fedstrata.methods:STRATIFY_BATCH",
    "fedtan": "fedstrata.methods:FEDTAN",
    "power-of-choice": "fedstrata.methods:POWER_OF_CHOICE",
}
