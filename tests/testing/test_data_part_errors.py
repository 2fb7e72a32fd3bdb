"""Data sets, partitions, noise, models, methods and engines that err are told what they gave, and what is allowed.

Broken parts stand at module level: experiments name parts by import path.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hooks import given

from fedstrata.config.build import build_federation
from fedstrata.config.experiment import Experiment
from fedstrata.core.errors import PartError, RequestError
from fedstrata.core.part import Part
from fedstrata.core.server_parts import Selector
from fedstrata.data.noise import Noise
from fedstrata.data.partitions.base import Deal, Partition
from fedstrata.data.sets.base import Arrays, DataSet
from fedstrata.methods.optimizers.adam import Adam
from fedstrata.methods.recipes import Recipe
from fedstrata.methods.selectors.size import SelectBySize
from fedstrata.models.architecture import Architecture
from fedstrata.testing.tiny import run_rounds, session_of, tiny_federation

# ---- data ------------------------------------------------------------------------------------------------------------

X, Y = np.zeros((8, 4), dtype=np.float32), np.arange(8) % 2


@dataclass(frozen=True)
class OddSet(DataSet):
    """A data set whose arrays are told from outside."""

    def load(self):
        return given("load", lambda: Arrays(X, Y, X[:4], Y[:4]))


@dataclass(frozen=True)
class OddPartition(Partition):
    """A partition whose deal is told from outside."""

    def split(self, train, test, clients, rng):
        return given("split", lambda: None)


@dataclass(frozen=True)
class OddNoise(Noise):
    """Noise that is told from outside."""

    def apply(self, x, y, clients, classes, streams):
        return given("apply", lambda: (x, y), x, y)


def dealt(**more):
    name = f"{OddSet.__module__}:OddSet"
    return build_federation(Experiment.of({"data": {"name": name, "clients": 2, "partition": "iid", **more}}))


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        (None, r"`load` gave None .*; allowed: Arrays\(x, y, test_x, test_y, ...\)"),
        ((X, Y), r"`load` gave something of type tuple; allowed: Arrays"),
        (Arrays(X.tolist(), Y, X, Y), r"`load` gave Arrays with something of type list as x; allowed: an array"),
        (Arrays(torch.ones(8, 4), Y, X, Y), r"`load` gave Arrays with a tensor .* as x; allowed: an array"),
        (Arrays(X[:, 0], Y, X[:, 0], Y), r"`load` gave Arrays with an array of shape \(8,\) .* as x; allowed: numbers"),
        (Arrays(X.astype(str), Y, X, Y), r"`load` gave Arrays with an array .*U32 as x; allowed: numbers of shape"),
        (Arrays(X, Y[:7], X, Y), r"`load` gave Arrays with 8 training samples, and an array of shape \(7,\)"),
        (Arrays(X, np.eye(8), X, Y), r"`load` gave Arrays with 8 training samples, and an array of shape \(8, 8\)"),
        (Arrays(X, Y, X, Y[:7]), r"`load` gave Arrays with 8 test samples, and an array of shape \(7,\)"),
        (Arrays(X, Y, X[:, :3], Y), r"`load` gave Arrays with .* as x and .* as test_x; samples must be"),
        (Arrays(X, Y, X.astype(np.uint8), Y), r"`load` gave Arrays with .* as x and .* as test_x; samples must be"),
        (Arrays(X, Y, X, Y, groups=Y[:3], test_groups=Y), r"`load` .* as groups; allowed: one each"),
        (Arrays(X, Y, X, Y, groups=Y), r"`load` gave Arrays with groups .*; allowed: both, or neither"),
        (Arrays(X, Y, X, Y, mean=(0.0,)), r"`load` gave Arrays with mean or std; allowed: both, or neither"),
        (Arrays(X, Y, X, Y, mean=(0.0, 0.0), std=(1.0,)), r"`load` gave Arrays with mean = .*each of the 4 channels"),
        (Arrays(X, Y, X, Y, mean=(0.0,), std=(0.0,)), r"`load` gave Arrays with std = .*numbers above 0"),
    ],
    ids=str(list(range(16))).strip("[]").split(", "),
)
def test_what_a_data_set_loads_is_checked(gives, arrays, said):
    gives(load=arrays)
    with pytest.raises(PartError, match=f"OddSet: {said}"):
        dealt()


@pytest.mark.parametrize(
    ("deal", "said"),
    [
        (None, r"`split` gave None .*; allowed: Deal\(train, test\)"),
        (Deal([np.arange(8)], [np.arange(4)]), r"`split` dealt train to 1 clients; allowed: 2, an array each"),
        (Deal([np.arange(4), np.arange(4, 8)], [np.arange(4)]), r"`split` dealt test to 1 clients; allowed: 2"),
        (Deal([np.arange(4), np.arange(3, 8)], [Y[:0], Y[:0]]), r"`split` gave a sample of train that was dealt twice"),
        (Deal([np.arange(4), np.array([8])], [Y[:0], Y[:0]]), r"`split` dealt position 8 of train; allowed: 0 to 7"),
        (Deal([np.arange(4), np.array([-1])], [Y[:0], Y[:0]]), r"`split` dealt position -1 of train; allowed: 0 to 7"),
        (Deal([np.arange(4), Y > 0], [Y[:0], Y[:0]]), r"`split` gave client 1 an array .*bool in train; allowed: a"),
        (Deal([np.arange(8), []], [Y[:0], [0.5]]), r"`split` gave client 1 an array .*float64 in test; allowed: a row"),
    ],
    ids=["nothing", "too few", "too few tests", "twice", "beyond", "negative", "a mask", "fractions"],
)
def test_what_a_partition_deals_is_checked(gives, deal, said):
    gives(split=deal)
    with pytest.raises(PartError, match=f"OddPartition: {said}"):
        dealt(partition=OddPartition())


def test_a_client_without_samples_is_fine(gives):
    gives(split=Deal([list(range(8)), []], [[], np.array([])]))
    assert dealt(partition=OddPartition()).train_split.sizes.tolist() == [8, 0]


def spoil(x, y):
    x[0] = 1
    return x, y


@pytest.mark.parametrize(
    ("noise", "said"),
    [
        (None, r"`apply` gave None .*; allowed: \(x, y\) of shapes \(8, 4\) and \(8,\)"),
        (lambda x, y: x, r"`apply` gave an array of shape \(8, 4\)"),
        (lambda x, y: (x[:3], y), r"`apply` gave an array of shape \(3, 4\) .* as x"),
        (lambda x, y: (x, y + 5), r"`apply` gave .* as y; allowed: int64 labels from 0 to 1"),
        (lambda x, y: (x, y.astype(float)), r"`apply` gave .*float64 as y; allowed: int64 labels"),
        (spoil, r"`apply` writes into the arrays it gets; change a copy"),
    ],
    ids=["nothing", "one array", "fewer samples", "strange labels", "fractions", "in place"],
)
def test_what_noise_does_is_checked(gives, noise, said):
    gives(apply=noise)
    with pytest.raises(PartError, match=f"OddNoise: {said}"):
        dealt(noise=[OddNoise()])
    assert not X.any()


def test_noise_that_changes_nothing_is_fine():
    assert torch.equal(dealt(noise=[OddNoise()]).train.x, torch.from_numpy(X))


# ---- models, methods, engines ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OddModel(Architecture):
    """A model that is told from outside."""

    def build(self, shape, classes):
        return given("build", lambda: torch.nn.Linear(*shape, classes), shape, classes)


@pytest.mark.parametrize(
    ("module", "error", "said"),
    [
        (None, PartError, r"OddModel: `build` gave None .*; allowed: a torch.nn.Module"),
        (lambda shape, classes: [], PartError, r"OddModel: `build` gave \[\] \(of type list\)"),
        (
            lambda shape, classes: torch.nn.Linear(*shape, classes + 1),
            RequestError,
            r'model.name = ".*:OddModel": the model gives outputs of shape \(4,\) but the data has 3 classes',
        ),
        (lambda shape, classes: torch.nn.Linear(7, classes), RequestError, r'model.name = ".*:OddModel": the model'),
    ],
    ids=["nothing", "a list", "too many outputs", "another shape"],
)
def test_what_a_model_builds_is_checked(gives, module, error, said):
    gives(build=module)
    with pytest.raises(error, match=said):
        session_of({"model": {"name": f"{OddModel.__module__}:OddModel"}})


def test_a_projection_needs_a_head(gives):
    gives(build=lambda shape, classes: torch.nn.Sequential(torch.nn.Linear(*shape, classes)))
    with pytest.raises(PartError, match="OddModel: `build` gave a module without `head`"):
        session_of({"model": {"name": f"{OddModel.__module__}:OddModel", "projection": 4}})


def test_a_recipe_has_the_stages_of_a_method():
    with pytest.raises(RequestError, match='a Recipe has no stage "selct"; allowed: schedule, driver, select'):
        Recipe("Mine.", "", {"selct": "size"})


MINE = Recipe("Mine.", "ours", {"selector": SelectBySize()}, train={"optimizer": Adam()})


def test_a_recipe_may_hold_parts_themselves():
    asked = Experiment.of({"method": {"name": f"{__name__}:MINE"}})
    assert asked.method.selector["kind"] == "size"
    assert asked.train.optimizer["kind"] == "adam"


@dataclass(frozen=True)
class OddEngine(Part):
    """An engine of few options."""

    device: str = "cpu"
    depth: int = 3

    def start(self, local, federation, client_updates, note):
        return object()


def test_an_engine_has_options_of_its_own_and_must_be_one(tmp_path):
    kind = f"{OddEngine.__module__}:OddEngine"
    assert Experiment.of({"engine": {"kind": kind}}).dump()["engine"]["depth"] == 3
    assert Experiment.of({"engine": OddEngine(depth=5)}).engine.make() == OddEngine(depth=5)
    with pytest.raises(RequestError, match=r"engine.dept is not an option \(did you mean \"depth\"\?\)"):
        Experiment.of({"engine": {"kind": kind, "dept": 5}})
    with pytest.raises(RequestError, match=r"engine.workers = 2: engine.kind = .*OddEngine\" has no such option"):
        Experiment.of({"engine": {"kind": kind, "workers": 2}})
    work = session_of({"engine": OddEngine()})
    with pytest.raises(
        PartError, match=r"OddEngine: `start` gave .*, without device, can_fuse, .*; allowed: an Engine"
    ):
        work.start_engine(lambda *_, **__: None)


def test_a_part_inside_a_function_is_refused_by_name():
    @dataclass(frozen=True)
    class Hidden(Selector):
        """Cannot be found again."""

    with pytest.raises(RequestError, match="Hidden is defined inside a function; define it at the top of a module"):
        session_of({"method.selector": Hidden()})


def test_a_federation_is_left_as_it_was():
    federation = tiny_federation()
    before = federation.train.x.clone()
    run_rounds(session_of(federation=federation), 1)
    assert torch.equal(federation.train.x, before)
