"""Named methods: recipes over the stages. What a recipe does not name is FedAvg's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedstrata.core.errors import RequestError
from fedstrata.methods.situation import Choose

STAGES = ("schedule", "driver", "selector", "sampler", "corrections", "combiner", "server_step")


@dataclass(frozen=True)
class Recipe:
    """A named method: parts by stage, as they would stand in an experiment file.

    Attributes
    ----------
    summary
        What `fedstrata list` shows.
    paper
        Where the idea is from.
    stages
        Parts by stage: "schedule", "driver", "selector", "sampler", "corrections", "combiner", "server_step". What is
        not named is FedAvg's.
    train
        Training settings, suggested where the user sets nothing.
    choose
        Instead of fixed parts: a function from what is measured about the federation to parts, each with the reason.
        What the experiment sets stays as it is; what was chosen is written into the run's experiment file.
    needs
        What the server must be told of its clients for that, as in `needs` of a part.
    version
        Of `choose`, counted up when it chooses otherwise: stored figures of tables are those of one version.

    Examples
    --------
    >>> import fedstrata
    >>> CAREFUL = fedstrata.Recipe(
    ...     summary="FedProx with a server step that forgets slowly.",
    ...     paper="",
    ...     stages={"corrections": [{"kind": "prox", "mu": 0.1}], "server_step": {"kind": "sgd", "momentum": 0.9}},
    ...     train={"lr": 0.05},
    ... )
    >>> run = fedstrata.train(method="__main__:CAREFUL", overrides={"train.rounds": 1})  # or "my_package:CAREFUL"
    >>> fedstrata.Experiment.of(run.path / "experiment.toml").train.lr
    0.05
    """

    summary: str
    paper: str
    stages: Mapping[str, Any]
    train: Mapping[str, Any] = field(default_factory=dict)
    choose: Choose | None = None
    needs: frozenset[str] = frozenset()
    version: int = 1

    def __post_init__(self) -> None:
        for stage in self.stages:
            if stage not in STAGES:
                raise RequestError(f'a Recipe has no stage "{stage}"; allowed: {", ".join(STAGES)}')


PLAIN = {"kind": "uniform"}  # every update counts the same


def _adaptive(server: str) -> Recipe:
    return Recipe(
        f"FedAvg with the server step {server.capitalize()}.",
        "Reddi et al., ICLR 2021",
        {"server_step": {"kind": server}},
    )


FEDAVG = Recipe(
    "Clients train side by side; the model moves by their weighted mean.", "McMahan et al., AISTATS 2017", {}
)
FEDSGD = Recipe(
    "Every client gives one gradient over all its samples.",
    "McMahan et al., AISTATS 2017",
    {"selector": {"kind": "everyone"}, "sampler": {"kind": "full-batch"}},
)
FEDPROX = Recipe(
    "FedAvg with a proximal term that keeps local models near the global one.",
    "Li et al., MLSys 2020",
    {"corrections": [{"kind": "prox", "mu": 0.01}]},
)
SCAFFOLD = Recipe(
    "Control variates cancel the drift of local steps.",
    "Karimireddy et al., ICML 2020",
    {"corrections": [{"kind": "scaffold"}], "combiner": PLAIN},
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
        "selector": {"kind": "everyone"},
        "driver": {"kind": "rounds", "norms": "clients"},
        "combiner": PLAIN,
    },
)
FLIPS = Recipe(
    "Clients are drawn evenly from clusters of label distributions; those that lost stragglers get more.",
    "FLIPS, 2023",
    {"selector": {"kind": "flips"}},
)
TERRAFORM = Recipe(
    "All selected clients train, then the hard ones again, found by how far their last layer moved.",
    "Terraform, arXiv 2602.20450",
    {"driver": {"kind": "terraform"}},
)


def _selecting(kind: str, summary: str, paper: str) -> Recipe:
    """Return a selector whose paper averages plainly."""
    return Recipe(summary, paper, {"selector": {"kind": kind}, "combiner": PLAIN})


FEDPBS = Recipe(
    "FedAvg whose clients are held back by a proximal term only where their samples' losses vary much.",
    "FedPBS, arXiv 2603.13909",
    {
        "sampler": {"kind": "shuffle", "batch": "capacity"},
        "corrections": [{"kind": "prox", "when": "unstable"}],
        "combiner": PLAIN,
    },
)
FEDBS = Recipe(
    "Clients whose samples' gradients differ least train; the less they differ, the more an update counts.",
    "FedPBS, arXiv 2603.13909",
    {"selector": {"kind": "sur"}, "combiner": {"kind": "soft"}},
)
FEDBSS = Recipe(
    "Clients train on samples of small loss first, and from epoch to epoch on more of the others.",
    "FedBSS, AAAI 2025",
    {"sampler": {"kind": "bias-aware"}, "combiner": PLAIN},
)
FEDDYN = Recipe(
    "A linear term learned at each client makes local optima agree with the global one.",
    "Acar et al., ICLR 2021",
    {"corrections": [{"kind": "feddyn"}, {"kind": "clip", "norm": 10.0}], "combiner": PLAIN},
)
FEDNOVA = Recipe(
    "Updates are divided by their clients' numbers of steps before they are averaged.",
    "Wang et al., NeurIPS 2020",
    {"combiner": {"kind": "fednova"}},
)
MOON = Recipe(
    "Features are drawn to those of the received model, and away from those of the client's last one.",
    "Li et al., CVPR 2021",
    {"corrections": [{"kind": "moon"}]},
)
FEDLC = Recipe(
    "Logits of labels that are rare at the client are lowered in training.",
    "Zhang et al., ICML 2022",
    {"corrections": [{"kind": "fedlc"}]},
)
FEDRS = Recipe(
    "Logits of labels that the client does not hold are scaled down in training.",
    "Li and Zhan, KDD 2021",
    {"corrections": [{"kind": "fedrs"}]},
)
FEDEXP = Recipe(
    "The server takes a longer step where clients' updates point in different directions.",
    "Jhunjhunwala et al., ICLR 2023",
    {"combiner": PLAIN, "server_step": {"kind": "fedexp"}},
)
FEDCDA = Recipe(
    "Of each client's last models, those that fit their data and lie close together are averaged.",
    "Wang et al., ICLR 2024",
    {"combiner": {"kind": "fedcda"}},
)
INCO = Recipe(
    "A plain mean in which deeper residual blocks also learn from the first block of their stage.",
    "Chan et al., ICLR 2024",
    {"combiner": {"kind": "inco", "by": "uniform"}},
)
FEDGA_GREEDY = Recipe(
    "Models are taken into the mean, best first, while that lowers the loss at the server (needs data.proxy).",
    "stand-in for Cong et al., KBS 2024",
    {"combiner": {"kind": "fedga-greedy"}},
)
OORT = Recipe(
    "Clients with useful losses and fast devices train; new ones are explored (paper: system.over_select = 1.3).",
    "Lai et al., OSDI 2021",
    {"selector": {"kind": "oort"}},
)
TIFL = Recipe(
    "Rounds are filled from one tier of equally fast clients.", "Chai et al., HPDC 2020", {"selector": {"kind": "tifl"}}
)
CLUSTERED_SIZE = _selecting(
    "clustered-size", "One client from each of k urns that are filled by size.", "Fraboni et al., ICML 2021"
)
GRADCLUS = _selecting(
    "gradclus", "One client from each of k urns of clients with similar updates.", "Fraboni et al., ICML 2021"
)
HICS = _selecting(
    "hics",
    "Clusters by the entropy that a client's last layer betrays; even ones are preferred at first.",
    "Chen and Vikalo, NeurIPS 2024",
)
DIVFL = _selecting("divfl", "A diverse subset whose updates stand for those of all.", "Balakrishnan et al., ICLR 2022")
BALANCED_LABELS = Recipe(
    "Clients whose samples together have labels near to those of all, in fair turns.",
    "ours, after FLIPS",
    {"selector": {"kind": "balanced-labels"}},
)
POWER_OF_CHOICE = _selecting(
    "power-of-choice", "Of some candidates, those with the highest loss train.", "Cho et al., AISTATS 2022"
)

PARTS = {
    "strata": "fedstrata.methods.strata:STRATA",
    "fedavg": "fedstrata.methods.recipes:FEDAVG",
    "fedsgd": "fedstrata.methods.recipes:FEDSGD",
    "fedprox": "fedstrata.methods.recipes:FEDPROX",
    "scaffold": "fedstrata.methods.recipes:SCAFFOLD",
    "fedadagrad": "fedstrata.methods.recipes:FEDADAGRAD",
    "fedadam": "fedstrata.methods.recipes:FEDADAM",
    "fedyogi": "fedstrata.methods.recipes:FEDYOGI",
    "sfl": "fedstrata.methods.recipes:SFL",
    "stratify-single": "fedstrata.methods.recipes:STRATIFY_SINGLE",
    "stratify-batch": "fedstrata.methods.recipes:STRATIFY_BATCH",
    "fedtan": "fedstrata.methods.recipes:FEDTAN",
    "flips": "fedstrata.methods.recipes:FLIPS",
    "fedpbs": "fedstrata.methods.recipes:FEDPBS",
    "fedbs": "fedstrata.methods.recipes:FEDBS",
    "fedbss": "fedstrata.methods.recipes:FEDBSS",
    "feddyn": "fedstrata.methods.recipes:FEDDYN",
    "fednova": "fedstrata.methods.recipes:FEDNOVA",
    "moon": "fedstrata.methods.recipes:MOON",
    "fedlc": "fedstrata.methods.recipes:FEDLC",
    "fedrs": "fedstrata.methods.recipes:FEDRS",
    "fedexp": "fedstrata.methods.recipes:FEDEXP",
    "fedcda": "fedstrata.methods.recipes:FEDCDA",
    "inco": "fedstrata.methods.recipes:INCO",
    "fedga-greedy": "fedstrata.methods.recipes:FEDGA_GREEDY",
    "terraform": "fedstrata.methods.recipes:TERRAFORM",
    "balanced-labels": "fedstrata.methods.recipes:BALANCED_LABELS",
    "power-of-choice": "fedstrata.methods.recipes:POWER_OF_CHOICE",
    "oort": "fedstrata.methods.recipes:OORT",
    "tifl": "fedstrata.methods.recipes:TIFL",
    "clustered-size": "fedstrata.methods.recipes:CLUSTERED_SIZE",
    "gradclus": "fedstrata.methods.recipes:GRADCLUS",
    "hics": "fedstrata.methods.recipes:HICS",
    "divfl": "fedstrata.methods.recipes:DIVFL",
}
