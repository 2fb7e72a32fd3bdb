"""A compiled step is the plain one: as a list of operations for every model and method, and as what Inductor makes.

These run on a CPU; what a GPU makes of it is in test_cuda.py.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedstrata import Federation, Iid, train
from fedstrata.client.local_step import Batches
from fedstrata.client.pure_step import step_tensors
from fedstrata.client.trainer import Trainer
from fedstrata.core import registry
from fedstrata.engines.local import compiled_step
from fedstrata.engines.local.both_ways import TOLERANCES, compare, wrong_tensor
from fedstrata.engines.local.compiled_step import Compiler, compile_step, put_channels_last, trace_step
from fedstrata.engines.local.cost import Guess, expecting
from fedstrata.engines.local.gpu import MPS_PIPES
from fedstrata.engines.local.start import LocalEngineOptions
from fedstrata.runs.session import build_session
from fedstrata.runs.training import describe_experiment

SIGNALS = {"ecg-cnn1d": (1, 64), "har-cnn1d": (3, 64), "har-mlp": (12,), "covtype-mlp": (54,), "mlp": (20,)}
GREY = {"cnn-hics-fmnist", "lenet5", "cnn-mcmahan", "cnn-fedbss"}
LARGE = {"resnet18", "resnet50", "densenet121"}
MODELS = [name for name in registry.names("models") if name != "timm"]
SIZE, BATCHES = 4, 3


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    monkeypatch.setenv(compiled_step.FOLDER, str(tmp_path))


def trainer_of(model="mlp", shape=None, module=None, half=False, **asked):
    """Return a trainer in the middle of a client update, with more batches to come."""
    shape = shape or SIGNALS.get(model) or ((1, 28, 28) if model in GREY else (3, 32, 32))
    rng, samples = np.random.default_rng(0), SIZE * BATCHES
    x, y = rng.standard_normal((samples, *shape)), np.arange(samples) % 3
    federation = Federation.from_arrays(x, y, 2, partition=Iid(), test=(x, y))
    asked = {f"{key.replace('__', '.')}": value for key, value in asked.items()}
    usual = {"train.batch_size": SIZE, "engine.precision": "fp64"} | ({} if module else {"model.name": model})
    asked = usual | asked
    work = build_session(describe_experiment(None, None, asked, federation, module), federation, module)
    local = replace(work.plan.local, half=half)
    trainer = Trainer(local, federation.train.x, federation.train.y, samples, pad=True)
    trainer.load(work.initial_state().model.wire())
    trainer._start()
    rows = np.arange(samples)
    trainer._fill_ring(Batches(rows, np.full(BATCHES, SIZE), np.full(BATCHES, 0.1), rows * 7_919))
    trainer.step(SIZE, True)
    return trainer


def apart(trainer, make=None):
    """Return how far the step of a trainer is from its operations, one by one or compiled."""
    tensors, before = step_tensors(trainer), [t.clone() for t in trainer.state]
    if make is None:
        graph = trace_step(trainer, tensors, SIZE)
        far = distance(trainer, lambda tensors: graph(*tensors))
    else:
        far = distance(trainer, make(trainer, tensors, SIZE))
    assert all(map(torch.equal, before, trainer.state))  # what is tried is taken back
    return far


def distance(trainer, run):
    """Return how far a step is from the plain one; no tensor of it may be wrong."""
    compared = compare(trainer, step_tensors(trainer), run, SIZE, TOLERANCES["fp64"])
    assert compared.wrong is None
    return compared.apart


@pytest.mark.parametrize("model", [pytest.param(m, marks=[pytest.mark.extended] if m in LARGE else []) for m in MODELS])
def test_every_model(model):
    assert apart(trainer_of(model)) < 1e-9


@pytest.mark.parametrize("model", ["resnet9", "cnn-stratify"])
def test_group_norm(model):
    assert apart(trainer_of(model, model__norm="gn")) < 1e-9


def test_a_padded_batch_is_taken_as_it_is_where_padding_matters(monkeypatch):
    monkeypatch.setattr(compiled_step, "compile_step", refuse)
    one, other = trainer_of("mlp", model__norm="batch"), trainer_of("mlp", model__norm="batch")
    Compiler(one.local, "fp64", pytest.fail).step_of(one)(SIZE, False)
    other.step(SIZE, False)
    assert torch.equal(one.buf.w, other.buf.w)


def test_half_precision_and_augmentation():
    augmented = {"train__augment__crop": 2, "train__augment__flip": True}
    assert apart(trainer_of("cnn-stratify", half=True, **augmented)) == 0.0


@pytest.mark.parametrize("method", registry.names("methods"))
def test_every_method(method):
    normed = {"model__norm": "batch"} if method in ("fedtan", "stratify-batch") else {}
    assert apart(trainer_of("mlp", method__name=method, **normed)) < 1e-9


# ---- channels last ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "norm"), [("resnet9", "gn"), ("resnet9", "bn"), ("cnn-mcmahan", None)])
def test_convolutions_have_their_channels_last_and_the_step_is_the_same(model, norm):
    trainer = trainer_of(model, **({"model__norm": norm} if norm else {}))
    tensors, laid = step_tensors(trainer), []
    graph = trace_step(trainer, tensors, SIZE)
    put_channels_last(graph)

    class Watch(torch.fx.Interpreter):
        def call_function(self, target, args, kwargs):
            if target in compiled_step.CONVOLUTIONS:
                images = args[: compiled_step.CONVOLUTIONS[target]]
                wide = min(images[-1].shape[:2]) >= compiled_step.WIDE
                laid.append(not wide or all(i.is_contiguous(memory_format=torch.channels_last) for i in images))
            return super().call_function(target, args, kwargs)

    assert distance(trainer, lambda tensors: Watch(graph).run(*tensors)) < 1e-9
    assert laid
    assert all(laid)


def test_steps_of_the_same_operations_share_what_is_compiled():
    def name(**asked):
        trainer = trainer_of(**asked)
        tensors = step_tensors(trainer)
        return compiled_step._name(trace_step(trainer, tensors, SIZE), tensors)

    assert name() == name()
    assert name() != name(method__name="fedprox")
    assert name(train__optimizer="adam") == name(train__optimizer="adam") != name()


# ---- when it pays ----------------------------------------------------------------------------------------------------


def compiles(rounds, monkeypatch, neighbours=False, **asked):
    """Say whether a run of LeNet-5 on 2,000 samples would be compiled on a GPU."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2_000, 1, 28, 28), dtype=np.float32), np.arange(2_000) % 10
    federation = Federation.from_arrays(x, y, 10, partition=Iid(), test=(x[:10], y[:10]))
    asked = {f"{key.replace('__', '.')}": value for key, value in asked.items()}
    asked |= {"model.name": "lenet5", "train.rounds": rounds, "train.clients_per_round": 10, "train.batch_size": 10}
    work = build_session(describe_experiment(None, None, asked, federation, None), federation, None)
    monkeypatch.delenv(MPS_PIPES, raising=False)
    if neighbours:
        monkeypatch.setenv(MPS_PIPES, "/somewhere")
    updates = 0 if work.plan.driver.together else 10 * rounds
    guess = Guess.of(work.plan.local, federation, updates)
    return LocalEngineOptions()._compiler(work.plan.local, guess, False, lambda _: None) is not None


def test_short_runs_are_not_compiled_and_long_ones_are(monkeypatch):
    assert not compiles(20, monkeypatch, train__epochs=1)
    assert compiles(20_000, monkeypatch, train__epochs=1)


def test_neighbours_on_the_gpu_make_shorter_ones_pay(monkeypatch):
    assert not compiles(800, monkeypatch, train__epochs=1)
    assert compiles(800, monkeypatch, neighbours=True, train__epochs=1)


def test_runs_that_share_their_step_share_the_price(monkeypatch):
    with expecting(5):
        assert compiles(800, monkeypatch, train__epochs=1)
    assert not compiles(800, monkeypatch, train__epochs=1)


def test_schedules_count_as_much_as_client_updates(monkeypatch):
    assert compiles(20_000, monkeypatch, method__name="stratify-batch")
    assert not compiles(20, monkeypatch, method__name="stratify-batch")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tmp_path_factory.mktemp("compiled"))  # one for all: headers are compiled once


@pytest.mark.extended
@pytest.mark.xdist_group("compiler")  # which takes seconds to import
@pytest.mark.parametrize("asked", [{"method__name": "scaffold"}, {"model__norm": "batch"}])
def test_what_the_compiler_makes(asked, folder, monkeypatch):
    monkeypatch.setenv(compiled_step.FOLDER, folder)
    assert apart(trainer_of("mlp", **asked), make=compile_step) < 1e-9


@pytest.mark.extended
@pytest.mark.xdist_group("compiler")
def test_another_process_finds_what_was_compiled(folder, monkeypatch):
    from torch._dynamo.utils import counters  # noqa: PLC0415  imports the compiler

    monkeypatch.setenv(compiled_step.FOLDER, folder)
    monkeypatch.setattr(compiled_step, "_COMPILED", {})
    for _ in range(2):
        compiled_step._COMPILED.clear()  # as it is in a new process
        counters.clear()
        assert apart(trainer_of("mlp", method__name="scaffold"), make=compile_step) < 1e-9
    assert counters["inductor"]["fxgraph_cache_hit"] == 1
    assert not counters["inductor"]["fxgraph_cache_miss"]


# ---- what a compiler may get wrong -----------------------------------------------------------------------------------


def differing(trainer, differ):
    """Return a step like the plain one, after which `differ` gets gradient, change and what the weights were."""

    def run(tensors):
        before = trainer.buf.w.clone()
        trainer.step(SIZE)
        moved = trainer.buf.w - before
        differ(trainer.buf.g, moved)
        trainer.buf.w.copy_(before + moved)

    return run


def compared(trainer, run, precision):
    return compare(trainer, step_tensors(trainer), run, SIZE, TOLERANCES[precision])


def stepped(trainer):
    """Return the weights that a step begins with, its gradient, and how it moves the weights."""
    before = [t.clone() for t in trainer.state]
    trainer.step(SIZE)
    weights, gradient = before[0], trainer.buf.g.clone()
    moved = trainer.buf.w - weights
    for now, old in zip(trainer.state, before, strict=True):
        now.copy_(old)
    return weights, gradient, moved


def share(part, gradient):
    """Return how large the gradient of a tensor is beside that of all, as root mean squares."""
    return float(part.of(gradient).square().mean().sqrt() / gradient.square().mean().sqrt())


BLUNDERS = {
    "is zero": lambda t: t.zero_(),
    "has a cosine of -1.00 with it": lambda t: t.neg_(),
    "is not finite": lambda t: t[(0,) * t.ndim].fill_(torch.nan),
}
DEEP = ("resnet9", "bn"), ("resnet9", "gn"), ("resnet20", None)
WRONG_IN = [
    *(("lenet5", None), ("cnn-mcmahan", None), ("cnn-stratify", "none"), ("mlp", "none"), ("har-cnn1d", None)),
    *(pytest.param(model, norm, marks=pytest.mark.extended) for model, norm in DEEP),
]


@pytest.mark.parametrize(("model", "norm"), WRONG_IN)
def test_every_tensor_that_comes_out_wrong_is_named(model, norm):
    trainer, drowned = trainer_of(model, **({"model__norm": norm} if norm else {})), 0
    weights, gradient, moved = stepped(trainer)
    for part in trainer.space.params:
        assert share(part, gradient) > TOLERANCES["bf16"].faint  # at the start of a training none is rounding alone
        for said, blunder in BLUNDERS.items():
            wrong, gone = gradient.clone(), moved.clone()
            blunder(part.of(wrong))
            blunder(part.of(gone))
            for tolerance in TOLERANCES["fp32"], TOLERANCES["bf16"]:
                found = wrong_tensor(trainer.space, weights, (gradient, wrong), (moved, gone), tolerance)
                assert found == f"the gradient of {part.name} {said}"
                found = wrong_tensor(trainer.space, weights, (gradient, gradient), (moved, gone), tolerance)
                assert found == f"the change of {part.name} {said}"
            drowned += said == "is zero" and float((wrong - gradient).norm() / gradient.norm()) < 0.25
    assert drowned or model == "mlp"  # over all weights together some would not be noticed


def test_a_step_is_refused_for_one_tensor():
    trainer = trainer_of("lenet5")
    bias = trainer.space.params[1]

    def differ(gradient, moved):
        bias.of(gradient).zero_()
        bias.of(moved).zero_()

    before = [t.clone() for t in trainer.state]
    found = compared(trainer, differing(trainer, differ), "bf16")
    assert found.wrong == "the gradient of conv1.bias is zero"
    assert found.apart < 0.25
    assert all(map(torch.equal, before, trainer.state))


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_what_is_rounding_alone_may_be_rounded_otherwise(precision):
    trainer = trainer_of("mlp", model__norm="batch", engine__precision="fp32")
    (bias,) = (part for part in trainer.space.params if part.name == "layer0.bias")  # the norm takes it away again
    weights, gradient, moved = stepped(trainer)
    assert 0 < share(bias, gradient) < TOLERANCES[precision].faint
    other, gone = gradient.clone(), moved.clone()
    bias.of(other).neg_()
    bias.of(gone).neg_()
    assert wrong_tensor(trainer.space, weights, (gradient, other), (moved, gone), TOLERANCES[precision]) is None
    bias.of(other).fill_(0.1)  # what ought to be rounding, and is not
    found = wrong_tensor(trainer.space, weights, (gradient, other), (moved, gone), TOLERANCES[precision])
    assert found is not None
    assert found.startswith("the gradient of layer0.bias has a cosine")


ROUNDED = [
    *(("lenet5", {}), ("cnn-mcmahan", {}), ("cnn-stratify", {}), ("mlp", {"model__norm": "batch"}), ("har-cnn1d", {})),
    *(("lenet5", {"train__optimizer": "adam"}), ("cnn-mcmahan", {"train__optimizer": "adam"})),
    pytest.param("resnet9", {}, marks=pytest.mark.extended),
]


@pytest.mark.parametrize(("model", "asked"), ROUNDED)
def test_rounding_to_bf16_is_no_mistake(model, asked):
    trainer = trainer_of(model, engine__precision="fp32", **asked)

    def run(tensors):
        trainer.network._half = True
        trainer.step(SIZE)
        trainer.network._half = False

    found = compared(trainer, run, "bf16")
    assert found.wrong is None
    assert 1e-4 < found.apart <= TOLERANCES["bf16"].apart
    found = compared(trainer, run, "fp32")
    assert found.wrong or found.apart > TOLERANCES["fp32"].apart


def test_gradients_rounded_to_bf16_are_near_enough_for_tf32():
    trainer = trainer_of("cnn-mcmahan")
    found = compared(trainer, differing(trainer, lambda gradient, _: gradient.copy_(gradient.bfloat16())), "tf32")
    assert found.wrong is None
    assert 0 < found.apart < 0.01


# ---- what is not compiled --------------------------------------------------------------------------------------------


class Drawing(nn.Module):
    """Draws numbers for itself."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(20, 3)

    def forward(self, x):
        return self.head(nn.functional.dropout(x, 0.5, self.training))


class Tied(nn.Module):
    """Has one weight under two names."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(20, 20)
        self.second = nn.Linear(20, 20)
        self.second.weight = self.first.weight
        self.head = nn.Linear(20, 3)

    def forward(self, x):
        return self.head(self.second(self.first(x).relu()).relu())


@pytest.mark.parametrize(("module", "why"), [(Drawing(), "torch's own generator"), (Tied(), "under another name")])
def test_a_step_that_is_no_function_of_its_tensors_is_refused(module, why):
    trainer = trainer_of(module=module)
    with pytest.raises(ValueError, match=why):
        trace_step(trainer, step_tensors(trainer), SIZE)


def refuse(*_):
    raise RuntimeError("no such kernel\nand more")


def forget_gradients(trainer, *_):
    def run(tensors):
        trainer.buf.g.zero_()
        trainer.buf.t.add_(1)

    return run


def fail_half_way(trainer, *_):
    def run(tensors):
        trainer.step(SIZE)
        raise RuntimeError("no such kernel")

    return run


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (refuse, "RuntimeError: no such kernel"),
        (fail_half_way, "RuntimeError: no such kernel"),
        (forget_gradients, "differs from the plain one: the gradient of layer0.weight is zero"),
    ],
)
def test_what_fails_or_differs_is_taken_as_it_is_and_said_once(make, why, monkeypatch):
    one, other, said = trainer_of(), trainer_of(), []
    monkeypatch.setattr(compiled_step, "compile_step", make)
    compiler = Compiler(one.local, "fp64", said.append)
    step = compiler.step_of(one)
    for _ in range(2):
        step(SIZE, True)
        other.step(SIZE, True)
    assert torch.equal(one.buf.w, other.buf.w)
    assert len(said) == 1
    assert said[0].startswith("local steps are not compiled: ")
    assert why in said[0]
    assert not compiler.knows


def test_workers_share_what_is_compiled_and_it_is_remembered(monkeypatch):
    one, other, plain, made = trainer_of(), trainer_of(), trainer_of(), []

    def make(trainer, tensors, width, channels_last):
        made.append(width)
        graph = trace_step(trainer, tensors, width)
        return lambda tensors: graph(*tensors)

    monkeypatch.setattr(compiled_step, "compile_step", make)
    compiler = Compiler(one.local, "fp64", pytest.fail)
    assert not compiler.knows
    for trainer in (one, other):
        compiler.step_of(trainer)(SIZE, True)
    plain.step(SIZE, True)
    assert made == [SIZE]
    assert Compiler(other.local, "fp64", pytest.fail).knows
    for trainer in (one, other):
        assert torch.allclose(trainer.buf.w, plain.buf.w, rtol=0, atol=1e-12)
        assert not torch.equal(trainer.buf.w, trainer.buf.w0)


def test_on_a_cpu_nothing_is_compiled_and_that_is_said(tmp_path):
    run = train(overrides={"engine.compile": True, "engine.device": "cpu", "train.rounds": 1}, out=tmp_path / "run")
    told = [e["wall"] for e in run.events() if e["event"] == "engine"]
    assert any("for GPUs alone" in wall["remark"] for wall in told if wall["remark"])
    assert [wall["compiled"] for wall in told if "compiled" in wall] == [False]


@pytest.mark.parametrize(("graphs", "together", "why"), [(False, False, "cuda_graphs"), (True, True, "vmap")])
def test_what_was_asked_for_and_is_not_compiled_is_told(graphs, together, why):
    said, trainer = [], trainer_of()
    options = LocalEngineOptions(compile=True, cuda_graphs=graphs)
    assert options._compiler(trainer.local, Guess(1, 1.0, 1.0, 1.0), together, said.append) is None
    assert len(said) == 1
    assert why in said[0]


def test_a_run_whose_compiled_step_is_refused_says_that_it_is_not_compiled(monkeypatch):
    said, trainer = {}, trainer_of()
    monkeypatch.setattr(compiled_step, "compile_step", forget_gradients)
    options = LocalEngineOptions(compile=True, precision="fp64")
    compiler = options._compiler(trainer.local, Guess(1, 1.0, 1.0, 1.0), False, lambda text, **more: said.update(more))
    compiler.step_of(trainer)(SIZE, True)
    assert said == {"compiled": False}
