"""The suite for models: what clients, engines and messages expect of one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedstrata.client.network import Network, find_head
from fedstrata.client.trainer import Trainer
from fedstrata.client.vmapped import VmappedTrainer
from fedstrata.core.client_context import ClientContext
from fedstrata.core.client_parts import Order
from fedstrata.core.contract import expect
from fedstrata.core.flat_model import ParameterSpace
from fedstrata.core.machine.threads import one_thread
from fedstrata.core.messages import Report, Task, Tensors
from fedstrata.core.rng import seed_torch
from fedstrata.core.sampler import Sampler
from fedstrata.data.federation import Federation
from fedstrata.models.architecture import Architecture
from fedstrata.runs.session import Session
from fedstrata.testing.conformance import check_part
from fedstrata.testing.draws import no_hidden_draws
from fedstrata.testing.tiny import session_of

MAPPED = 200_000  # weights up to which engines train many clients at once
EXACT = 1e-8  # in double precision


@dataclass(frozen=True)
class FirstBatch(Sampler):
    """One batch of the first samples: enough to see what a step does."""

    def plan(self, context: ClientContext) -> Order:
        """Take them in order."""
        return Order((np.arange(min(context.client.samples, context.batch_size)),), context.batch_size)


def check_model(
    architecture: Architecture, shape: tuple[int, ...] | None = None, classes: int = 10, training: bool = True
) -> None:
    """Check a model: built alike from a seed, one number a class from a layer `head`, state in parameters and buffers.

    It must take one sample as well as two, give samples of a batch the same answer as alone when it is evaluated,
    survive being laid out flat, and train alike with padded batches and many clients at once.

    Parameters
    ----------
    architecture
        An object of a part of your own.
    shape
        Of the samples; None: the shape it was made for.
    classes
        How many labels there are.
    training
        Whether to try local steps too; of a large model, that takes a while.

    Raises
    ------
    AssertionError
        With what is wrong.

    Examples
    --------
    >>> import fedstrata
    >>> fedstrata.check_model(fedstrata.make_part("models", "mlp"), shape=(1, 8, 8))
    """
    check_part(architecture)
    with one_thread():  # cores that others use, too, make several slower than one
        _check(architecture, tuple(shape or architecture.natural), classes, training)


def _check(architecture: Architecture, shape: tuple[int, ...], classes: int, training: bool) -> None:
    name = type(architecture).__name__
    module = _check_build(architecture, shape, classes)
    _check_state(name, module)
    with seed_torch(7):
        x = torch.randn(2, *shape)
    head = find_head(module, x, classes)
    assert head == "head", f"{name}: the last layer is called {head!r}, not 'head'"
    features, logits = Network(module, head)(x)
    assert features.ndim == 2, f"{name}: what goes into the head has shape {tuple(features.shape)}; flatten it before"
    assert logits.is_floating_point(), f"{name} gives {logits.dtype}; allowed: floats"
    _check_answers(name, module.double(), x.double(), classes)
    _check_layout(name, module, x[:1].double())
    if training:
        _check_training(architecture, shape, classes)


def _check_build(architecture: Architecture, shape: tuple[int, ...], classes: int) -> nn.Module:
    name = type(architecture).__name__
    built = []
    for _ in range(2):
        with no_hidden_draws(f"{name}: `build`"), seed_torch(3):
            made = architecture.build(shape, classes)
        built.append(expect(architecture, "build", made, nn.Module, "a torch.nn.Module"))
    one, other = (dict(m.named_parameters()) | dict(m.named_buffers()) for m in built)
    lazy = [key for key, tensor in one.items() if nn.parameter.is_lazy(tensor)]
    assert not lazy, f"{name}: {lazy[0]} has no shape before the first sample; `build` is told the shape of one"
    assert list(one) == list(other), f"{name}: `build` gave {list(one)} once and {list(other)} the next time"
    for key, tensor in one.items():
        assert torch.equal(tensor, other[key]), f"{name}: `build` gave another {key} from the same seed of torch"
    return built[0]


def _check_state(name: str, module: nn.Module) -> None:
    """Check the state: what is not a parameter or buffer neither travels nor follows the model to a device."""
    assert any(p.requires_grad for p in module.parameters()), f"{name} has nothing to train"
    for path, layer in module.named_modules():
        for key, value in vars(layer).items():
            where = f"{path}.{key}".lstrip(".")
            assert not isinstance(value, Tensor), f"{name}: {where} is a bare tensor; use register_buffer, nn.Parameter"
            inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
            hidden = key[0] != "_" and any(isinstance(item, nn.Module | Tensor) for item in inside)
            assert not hidden, f"{name}: {where} holds layers that torch does not see; use nn.ModuleList or ModuleDict"


def _check_answers(name: str, module: nn.Module, x: Tensor, classes: int) -> None:
    module.eval()
    with torch.no_grad(), no_hidden_draws(f"{name} in eval mode", torch_too=True):
        both, first = module(x), module(x[:1])
        alone = torch.cat([first, module(x[1:])])
    assert both.dtype == torch.float64, f"{name} gives {both.dtype} with weights of float64; fix no type inside it"
    for given, count in ((both, 2), (first, 1)):
        assert given.shape == (count, classes), f"{name} gives {tuple(given.shape)}, not {(count, classes)}"
    gap = float((both - alone).detach().abs().max())
    assert gap < EXACT, f"{name} in eval mode: a sample's answer depends on the others of its batch, by {gap:.2g}"
    module.train()
    with no_hidden_draws(f"{name} in training mode"):
        answers = []
        for _ in range(2):  # norms move their statistics, which do not enter here; other state must not either
            with seed_torch(5):
                answers.append(module(x).detach())
    assert torch.isfinite(answers[0]).all(), f"{name} gives numbers that are not finite"
    assert torch.equal(*answers), f"{name} in training mode: the same batch and seed gave another answer"


def _check_layout(name: str, module: nn.Module, x: Tensor) -> None:
    """Flat and back again."""
    module.eval()
    space = ParameterSpace.of(module, "head")
    named = dict(module.named_parameters()) | dict(module.named_buffers())
    model = space.flatten(named, torch.float64)
    for key, tensor in space.named(model).items():
        assert torch.equal(tensor, named[key]), f"{name}: {key} does not come back from a flat vector as it was"
    assert space.head.stop > space.head.start, f"{name}: nothing of `head` is trained"
    with torch.no_grad():
        before = module(x)
        space.bind(module, model.params, model.buffers)
        gap = float((module(x) - before).abs().max())  # other addresses may take other kernels
        assert gap < EXACT, f"{name}: its answer is off by {gap:.2g} when its weights lie in a flat vector"
        model.params.zero_()
        assert not torch.equal(module(x), before), f"{name} does not follow its parameters: it keeps copies of them"


def _check_training(architecture: Architecture, shape: tuple[int, ...], classes: int) -> None:
    """One client update: on its own, after another client's, with a padded batch, and beside others in one step."""
    name, work = type(architecture).__name__, _work(architecture, shape, classes)
    down = work.initial_state().model.wire()
    used = _trainer(work, pad=False)
    _train(used, work, 1, down)
    alone = _told(*_train(_trainer(work, pad=False), work, 0, down))
    assert torch.isfinite(alone["update"]).all(), f"{name}: the update is not finite after one step"
    _compare(alone, _told(*_train(used, work, 0, down)), f"{name}: what the client before left in the model changed")
    padded = _trainer(work, pad=True)
    _compare(alone, _told(*_train(padded, work, 0, down)), f"{name}: samples of weight 0, which fill up, changed")
    if padded.norms or padded.space.P > MAPPED:
        return
    try:
        clients = [work.federation.client(i) for i in (0, 1)]
        made = VmappedTrainer(padded, 2).run_tasks(clients, [Task(i, 0, 0, down=down) for i in (0, 1)], [{}, {}])
    except (RuntimeError, ValueError):  # what cannot be mapped over clients, engines train one by one
        return
    _compare(alone, _told(*made[0]), f"{name}: being trained at once with another client changed")


def _work(architecture: Architecture, shape: tuple[int, ...], classes: int) -> Session:
    """Two clients of three and of more samples, that train for one step."""
    rng = np.random.default_rng(0)
    y = np.concatenate([np.arange(classes), np.arange(7 - min(classes, 6)) % classes])
    x = rng.normal(size=(len(y), *shape)).astype(np.float32)
    federation = Federation.from_arrays(x, y, [range(3), range(3, len(y))], test=(x[:1], y[:1]))
    path = f"{type(architecture).__module__}:{type(architecture).__qualname__}"
    asked: dict[str, Any] = {"model": {"name": path, **asdict(architecture)}}  # type: ignore[call-overload]
    return session_of(asked | {"train.epochs": 1, "train.batch_size": 4, "method.sampler": FirstBatch()}, federation)


def _trainer(work: Session, pad: bool) -> Trainer:
    train = work.federation.train
    return Trainer(work.plan.local, train.x, train.y, 4, pad=pad)


def _train(trainer: Trainer, work: Session, client: int, down: Tensors) -> tuple[Report, Tensors]:
    return trainer.run_task(work.federation.client(client), Task(client, 0, 0, down=down), {})


def _told(report: Report, _: Tensors) -> dict[str, Tensor]:
    return {**report.aggregated, "loss": torch.as_tensor(report.read().loss)}


def _compare(one: dict[str, Tensor], other: dict[str, Tensor], said: str) -> None:
    for key, value in one.items():
        gap = float((value - other[key]).abs().max()) if value.numel() else 0.0
        assert gap < EXACT, f"{said} {key} by {gap:.2g}"
