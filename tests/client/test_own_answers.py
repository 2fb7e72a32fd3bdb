"""Modules of one's own as people have them: answers that hold more than logits, lazy layers, and what cannot work."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import fedstrata
from fedstrata.client.network import find_head
from fedstrata.client.own_module import take_module
from fedstrata.core.errors import RequestError

BRIEF = {"train.rounds": 2, "engine.workers": 1}


@dataclass
class Output:
    """As libraries of transformers have it."""

    loss: None
    logits: torch.Tensor


Pair = namedtuple("Pair", ["logits", "aux"])  # as torchvision has it

ANSWERS = {
    "tensor": lambda logits: logits,
    "dict": lambda logits: {"loss": None, "logits": logits},
    "only": lambda logits: OrderedDict(out=logits),
    "tuple": lambda logits: (logits, None),
    "named": lambda logits: Pair(logits, None),
    "object": lambda logits: Output(None, logits),
}


class Answering(nn.Module):
    """Gives its logits in some way; its head is called by keyword."""

    def __init__(self, way):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.fc, self.way = nn.Linear(64, 16), nn.Linear(16, 10), way

    def forward(self, x):
        return ANSWERS[self.way](self.fc(input=self.body(x.flatten(1)).relu()))


@pytest.mark.parametrize("vmap", ["never", "always"])
@pytest.mark.parametrize("way", [way for way in ANSWERS if way != "tensor"])
def test_logits_are_found_in_what_a_module_gives(way, vmap):
    how = {**BRIEF, "engine.vmap": vmap}
    plain = fedstrata.train(model=Answering("tensor"), overrides=how)
    run = fedstrata.train(model=Answering(way), overrides=how)
    assert run.curve("loss_test") == plain.curve("loss_test")
    assert plain.curve("loss_test")[0] != plain.curve("loss_test")[1]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"a": torch.zeros(2, 3), "b": torch.zeros(2, 3)}, "gives a dict of a, b: no logits are found in it"),
        ((), "gives a tuple: no logits"),
        (None, "gives a NoneType"),
        ((None, torch.zeros(2, 3)), "gives a NoneType"),
    ],
)
def test_answers_without_logits_are_refused(answer, said):
    class Odd(nn.Module):
        def forward(self, x):
            return answer

    with pytest.raises(RequestError, match=said):
        find_head(Odd(), torch.zeros(2, 4), 3)


# ---- lazy layers -----------------------------------------------------------------------------------------------------


def lazy():
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(16), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(10))


def test_lazy_layers_get_their_weights_from_the_seed_and_the_users_module_stays_lazy():
    module = lazy()
    torch.manual_seed(1)
    first = fedstrata.train(model=module, overrides=BRIEF)
    torch.manual_seed(2)  # torch's own random numbers do not matter
    again = fedstrata.train(model=module, overrides=BRIEF)
    assert first.curve("loss_test") == again.curve("loss_test")
    other = fedstrata.train(model=module, overrides={**BRIEF, "train.seed": 1})
    assert first.curve("loss_test") != other.curve("loss_test")
    assert nn.parameter.is_lazy(module[1].weight)
    module.load_state_dict(first.model())
    assert module[1].weight.shape == (16, 64)
    assert fedstrata.resume(first.path, overrides={"train.rounds": 3}, model=lazy()).summary["rounds"] == 3


def test_lazy_layers_that_cannot_be_filled_are_refused():
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.head = nn.LazyLinear(3), nn.LazyLinear(3)

        def forward(self, x):
            return self.head(x)

    with pytest.raises(RequestError, match=r"left\.weight has no shape yet"):
        take_module(Unused(), torch.zeros(2, 4), 0)
    with pytest.raises(RequestError, match=r"lazy layers cannot take samples of shape \(4,\)"):
        take_module(nn.Sequential(nn.LazyConv2d(3, 3)), torch.zeros(2, 4), 0)


@dataclass(frozen=True)
class LazyByName(fedstrata.Architecture):
    """A model by name with a lazy layer."""

    def build(self, shape, classes):
        """Leave the width to the samples."""
        return nn.Sequential(OrderedDict(flat=nn.Flatten(), head=nn.LazyLinear(classes)))


def test_models_by_name_may_be_lazy_too():
    run = fedstrata.train(overrides={**BRIEF, "model": {"name": f"{__name__}:LazyByName"}})
    assert run.model()["head.weight"].shape == (10, 64)


# ---- what cannot work ------------------------------------------------------------------------------------------------


def flat(*layers):
    return nn.Sequential(nn.Flatten(), *layers)


class Lost(nn.Module):
    """Answers without a gradient."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 10)

    @torch.no_grad()
    def forward(self, x):
        return self.head(x.flatten(1))


class Squeezing(nn.Module):
    """Loses the dimension of samples where there is one."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        return self.head(x.flatten(1)).squeeze()


class Uncopied(nn.Linear):
    """Cannot be copied."""

    def __deepcopy__(self, memo):
        raise RuntimeError("it holds a socket")


def sparse():
    return nn.Sequential(OrderedDict(table=nn.EmbeddingBag(4, 3, sparse=True)))


def complicated():
    module = flat(nn.Linear(64, 10))
    module.register_parameter("phase", nn.Parameter(torch.zeros(2, dtype=torch.complex64)))
    return module


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: torch.jit.script(flat(nn.Linear(64, 10))), "RecursiveScriptModule cannot be trained here: script"),
        (lambda: torch.compile(flat(nn.Linear(64, 10))), "pass the module that was given to torch.compile"),
        (lambda: nn.DataParallel(flat(nn.Linear(64, 10))), r"DataParallel cannot .* pass the module inside"),
        (sparse, "sparse gradients cannot be summed"),
        (complicated, "complex weights are not supported"),
        (lambda: flat(nn.Linear(64, 10, device="meta")), "on the meta device"),
        (lambda: flat(Uncopied(64, 10)), "cannot be copied, .* it holds a socket"),
        (lambda: flat(nn.Linear(64, 10)).requires_grad_(False), "has nothing to train"),
        (Lost, "answers carry no gradient"),
        (Squeezing, r"one sample with shape \(10,\), not \(1, 10\); does it squeeze"),
        (lambda: flat(nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, 1000)), r"outputs: model\[3\] = nn.Linear\(5, 10\)"),
        (
            lambda: nn.Sequential(OrderedDict(flat=nn.Flatten(), fc=nn.Linear(64, 7))),
            r"10 outputs: model\.fc = nn.Linear\(64, 10\)",
        ),
        (
            lambda: flat(nn.Linear(64, 20), nn.Unflatten(1, (10, 2)), nn.AvgPool1d(2), nn.Flatten()),
            'name it with model.head, one of those with weights: "1"',
        ),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason_and_nothing_is_written(make, said, tmp_path):
    with pytest.raises(RequestError, match=said):
        fedstrata.train(model=make(), overrides=BRIEF, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
