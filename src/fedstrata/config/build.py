"""From an experiment to a plan: parts built from their tables, composed and checked."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedstrata.client.network import change_head, find_head
from fedstrata.client.own_module import check_gradient, fill_lazy, take_module
from fedstrata.config.completion import GIVEN, make, own_options
from fedstrata.config.experiment import Experiment
from fedstrata.config.model_info import place_rows, read_model
from fedstrata.config.open_stages import open_stages
from fedstrata.config.sections import Data, ModelChoice
from fedstrata.core import registry
from fedstrata.core.client_info import TOLD
from fedstrata.core.client_parts import ClientPlan, LearningRate, LocalPart, Optimizer
from fedstrata.core.contract import broken, describe, expect
from fedstrata.core.errors import RequestError
from fedstrata.core.events import Log
from fedstrata.core.flat_model import FlatModel, ParameterSpace
from fedstrata.core.inputs import Inputs
from fedstrata.core.plan import Plan
from fedstrata.core.rng import Streams, seed_torch
from fedstrata.core.sampler import Sampler
from fedstrata.core.server_parts import Driver, ServerSide, ServerStep
from fedstrata.core.steps import BY_CHOICE
from fedstrata.data.assembly import assemble
from fedstrata.data.devices import Devices, read_trace
from fedstrata.data.drift import Drift, Stream
from fedstrata.data.federation import Federation
from fedstrata.data.federation_info import FederationInfo
from fedstrata.data.reading import Label
from fedstrata.data.sets.base import expect_arrays
from fedstrata.data.subset import take_some
from fedstrata.methods.combiners.size import SizeWeighted
from fedstrata.methods.drivers.sync import GlobalBatches
from fedstrata.methods.optimizers.at_server import AtServer, Carried
from fedstrata.methods.schedules.lots import Lots
from fedstrata.methods.schedules.none import Unscheduled
from fedstrata.methods.server_steps.sgd import ServerSgd
from fedstrata.models.pretrained import fit_weights

UNNAMED = (
    "its classes are placeholders, which only the sites that trained it can name; "
    'go on with privacy.labels = "prf" at those sites'
)
NAMED = "its classes have names, and the placeholders of this run have none here; start from a model of these sites"
DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.float32, "fp64": torch.float64}


def build_federation(experiment: Experiment, scaled: bool = True) -> Federation:
    """Load the data set and deal it out.

    Without `scaled`, it is what a site has: features that others have a say in stay raw, and labels may all be one.
    """
    data = experiment.data
    if data.name == GIVEN:
        raise RequestError(
            'data.name = "given": this run\'s data came from Python; pass `federation` to `train`, `resume` or '
            "`Comparison.open`"
        )
    part = _build_named("datasets", data, "data")
    arrays = expect_arrays(part, part.load())
    if data.samples is not None and "samples" not in registry.options("datasets", data.name, "data.name"):
        arrays = take_some(arrays, data.samples, data.name, experiment.train.seed)
    if scaled and len(found := np.unique(arrays.y)) < 2:
        where = getattr(part, "path", data.name)
        raise RequestError(f"{where}: all labels are {', '.join(map(str, found))}; at least 2 classes are needed")
    pixels = arrays.x.dtype == np.uint8
    parts = assemble(
        arrays.x,
        arrays.y,
        data.clients,
        make("partitions", data.partition or {}, "data.partition"),
        arrays.test,
        test_clients=None,
        groups=arrays.groups,
        inputs=Inputs(scale=255.0 if pixels else 1.0, mean=arrays.mean, std=arrays.std),
        preprocessing=arrays.preprocessing,
        scale=arrays.scale,
        proxy=data.proxy,
        seed=experiment.train.seed,
        scaled=scaled,
    )
    federation = Federation(**parts, name=data.name, alone=not scaled)
    noises = [make("noises", noise, f"data.noise.{i}") for i, noise in enumerate(data.noise or [])]
    noisy = federation.with_noise(noises, experiment.train.seed)
    if federation.unscaled is not None and noisy.train.x.data_ptr() != federation.train.x.data_ptr():
        raise RequestError("data.noise: noise on features comes after they are scaled, which sites do in a run")
    federation = noisy
    drift = Drift(**data.drift.model_dump()) if data.drift else None
    stream = Stream(**data.stream.model_dump()) if data.stream else None
    return federation.moving(drift, stream, experiment.train.seed)


def label_names(data: Data) -> Mapping[Label, str]:
    """Return what the publisher of a named set calls its labels; empty where nobody does."""
    return {} if data.name == GIVEN else _build_named("datasets", data, "data").label_names


def build_plan(experiment: Experiment, federation: FederationInfo, module: nn.Module | None = None) -> Plan:
    """Build every part and check that they fit together and fit the data."""
    method, train = experiment.method, experiment.train
    if still_open := open_stages(experiment):
        raise RequestError(f'method.name = "{method.name}" has still to choose its {", ".join(still_open)}')
    streams, dtype = Streams(train.seed), DTYPES[experiment.engine.precision]
    driver, scheduled, sampler_asked = _follow_schedule(experiment, federation)
    sampler = scheduled or sampler_asked
    selector = make("selectors", method.selector, "method.selector")
    corrections = _corrections(method.corrections)
    combiner = make("combiners", method.combiner, "method.combiner")
    server_step = make("server_steps", method.server_step, "method.server_step")
    optimizer = make("optimizers", train.optimizer or {}, "train.optimizer")
    rate = LearningRate(train.lr, make("lr_schedules", train.lr_schedule or {}, "train.lr_schedule"), train.rounds)
    server_steps = _half_at_server(driver, optimizer, rate)
    server_steps |= {"server_step": server_step, **{n: p for n, p in corrections.items() if isinstance(p, ServerStep)}}
    system = _devices(experiment, len(federation))
    at_server: list[ServerSide] = [driver, selector, combiner, system, *server_steps.values()]
    with_programs: list[Sampler | ServerSide] = [sampler, *at_server]
    _check_wishes(with_programs)
    inputs = replace(federation.inputs, crop=train.augment.crop, flip=train.augment.flip)
    sample = inputs(federation.trial(), dtype)
    build = _builder(experiment.model, federation, streams, module, sample)
    network = build().to(dtype)
    head = _find_head(experiment, network, sample, len(federation.classes))
    if module is not None:
        check_gradient(network, sample)
    if train.batch_size == 1 and any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in network.modules()):
        raise RequestError("train.batch_size = 1 does not fit a model with batch norm: one sample has no variance")
    local = ClientPlan(
        build=build,
        head=head,
        inputs=inputs,
        sampler=sampler,
        parts=_with_meters(corrections, optimizer, at_server),
        optimizer=optimizer,
        programs={
            kind: program
            for part in with_programs  # a driver may do it otherwise
            for kind, program in part.programs.items()
        },
        epochs=train.epochs,
        batch_size=train.batch_size,
        rate=rate,
        streams=streams,
        dtype=dtype,
        rounds=train.rounds,
        half=experiment.engine.precision == "bf16",
    )
    plan = Plan(
        driver=driver,
        selector=selector,
        combiner=combiner,
        server_steps=server_steps,
        system=system,
        local=local,
        space=ParameterSpace.of(network, head),
        rounds=train.rounds,
        clients_per_round=train.clients_per_round,
        sampler_asked=sampler_asked,
        needs_of_recipe=registry.find("methods", method.name, "method.name").needs,
    )
    plan.check()
    return replace(plan, why_not_fused=_why_not_fused(experiment, plan))


def _follow_schedule(experiment: Experiment, federation: FederationInfo) -> tuple[Driver, Sampler | None, Sampler]:
    """Return the driver, which follows the schedule if there is one, the schedule's sampler, and that asked for."""
    method = experiment.method
    driver = make("drivers", method.driver, "method.driver")
    schedule = make("schedules", method.schedule, "method.schedule")
    sampler = make("samplers", method.sampler, "method.sampler")
    if schedule.sampler is None and not isinstance(schedule, Unscheduled):
        raise broken(schedule, "sampler", "is None, so that nothing follows this schedule; derive it from Stratified")
    if experiment.privacy.labels != "none":
        schedule = schedule.hiding_counts()
    if schedule.sampler is not None:
        driver = driver.following(schedule)
        if federation.moves is not None and schedule.rounds_per_epoch > 1:
            raise RequestError(
                f"method.schedule.rounds_per_epoch = {schedule.rounds_per_epoch}: where data drift or stream, "
                "an epoch is one round, because what a client holds changes in between; use 1"
            )
    return driver, schedule.sampler, sampler


def _find_head(experiment: Experiment, network: nn.Module, sample: torch.Tensor, classes: int) -> str:
    """Find the last layer; where it is not there, say whose it is."""
    try:
        return find_head(network, sample, classes, experiment.model.head)
    except RequestError as error:
        if experiment.model.name == GIVEN:
            raise
        raise RequestError(f'model.name = "{experiment.model.name}": {error}') from error


def _devices(experiment: Experiment, clients: int) -> Devices:
    asked = experiment.system
    if asked.availability.kind == "trace":
        if asked.availability.trace is None:
            raise RequestError('system.availability.kind = "trace" needs system.availability.trace: a file')
        read_trace(asked.availability.trace, clients)
    return Devices(
        seconds_per_sample=asked.seconds_per_sample,
        deadline=asked.deadline,
        wait_for=asked.wait_for,
        over_select=asked.over_select,
        rate=asked.stragglers.rate,
        mode=asked.stragglers.mode,
        availability=asked.availability.kind,
        available_rate=asked.availability.rate,
        period=asked.availability.period,
        trace=asked.availability.trace,
    )


def _half_at_server(driver: Driver, optimizer: Optimizer, rate: LearningRate) -> dict[str, ServerStep]:
    """Return the server's half of an optimizer whose steps are taken there, or whose memory travels."""
    if driver.steps_at_server:
        return {"optimizer": AtServer(optimizer, rate)}
    return {"optimizer": Carried(optimizer)} if optimizer.state == "carried" else {}


def _why_not_fused(experiment: Experiment, plan: Plan) -> str | None:
    """Say why many client updates cannot be executed as one, or None."""
    asked = experiment.engine.execution
    if experiment.method.schedule["kind"] == "none":
        return "nothing is scheduled"
    if asked == "messages":
        return BY_CHOICE
    server_step = plan.server_steps["server_step"]
    reasons = [
        (
            plan.combiner != SizeWeighted(),
            f"{registry.name_of('combiners', type(plan.combiner))} weighs what each client sends",
        ),
        (
            server_step != ServerSgd(),
            f"the server step {registry.name_of('server_steps', type(server_step))} acts on every step",
        ),
        (
            isinstance(plan.driver, GlobalBatches) and plan.driver.compresses,
            "what each client sends or gets is compressed on its own",
        ),
        (bool(plan.local.parts), f"{', '.join(plan.local.parts)} works inside each client update"),
        (not plan.system.reliable, "reports may be lost on the way"),
        (isinstance(plan.local.sampler, Lots), "only the clients know how many samples each of them draws"),
        (experiment.privacy.aggregate == "masked", "what clients send is summed under masks, step by step"),
    ]
    reason = next((why for holds, why in reasons if holds), None)
    if asked == "fused" and reason is not None:
        raise RequestError(f'engine.execution = "fused" does not fit this plan: {reason}; use "auto" or "messages"')
    return reason


def initial_model(
    plan: Plan,
    init: str | None,
    classes: Sequence[Label] | None = None,
    placeholders: bool = False,
    log: Log = lambda *_, **__: None,
) -> FlatModel:
    """Return the model of round 0: drawn from the seed, or read from a file of a run or of somebody else's.

    Classes of a run's file are found by name. `placeholders`: those of this run are such that only real sites can name.
    """
    module = plan.local.build()
    named: dict[str, Any] = dict(module.named_parameters()) | dict(module.named_buffers())
    if init is not None:
        key = f'model.init = "{init}"'
        places = (*plan.space.params, *plan.space.buffers)
        frozen = {name: weights for name, weights in module.named_parameters() if not weights.requires_grad}
        given, info = read_model(Path(init), key)
        if info is None:
            needed = {name: tuple(weights.shape) for name, weights in frozen.items()}
            needed |= {place.name: place.shape for place in places}
            fitting, afresh = fit_weights(given, needed, plan.local.head, key)
            given = named | fitting
            if afresh is not None:
                log("fallback", what="model.init", why=afresh)
        elif (info.label_directory is not None) != placeholders:
            raise RequestError(f"{key}: {UNNAMED if info.label_directory is not None else NAMED}")
        elif classes is not None and not placeholders:
            given = place_rows(module, info, given, classes, key)
        for place in places:
            if place.name not in given or tuple(given[place.name].shape) != place.shape:
                found = tuple(given[place.name].shape) if place.name in given else "nothing"
                of = "" if info is None else f", a {info.model['name']}"
                raise RequestError(f"{key}: {place.name} needs shape {place.shape}, the file{of}, has {found}")
        for name, weights in frozen.items():
            if name not in given or not torch.equal(given[name].to(weights), weights):
                raise RequestError(
                    f"{key}: {name} is frozen and has other values in the file, and frozen layers are the module's "
                    "own: load the file into it with load_state_dict, and leave model.init out"
                )
        named |= given
    return plan.space.flatten(named, plan.local.dtype)


def _build_named(stage: str, section: Data | ModelChoice, key: str) -> Any:
    known = registry.options(stage, section.name, f"{key}.name")
    return registry.build(stage, section.name, own_options(section, known), key)


def _corrections(specs: Any) -> dict[str, LocalPart]:
    """Build corrections under unique names, which scope their tensors."""
    parts: dict[str, LocalPart] = {}
    for i, spec in enumerate(specs):
        name = str(spec["kind"]).rpartition(":")[2]
        parts[name if name not in parts else f"{name}-{i}"] = make("corrections", spec, f"method.corrections.{i}")
    return parts


def _with_meters(
    corrections: dict[str, LocalPart], optimizer: Optimizer, at_server: Sequence[ServerSide]
) -> dict[str, LocalPart]:
    """Add what other stages want measured, under its name or its class's; the same meter twice is one meter."""
    parts, others = dict(corrections), [*corrections.values(), optimizer]
    for meter in [meter for part in at_server for meter in _meters(part, others)]:
        name = getattr(meter, "name", type(meter).__name__)
        if parts.setdefault(name, meter) != meter:
            raise RequestError(f"two stages want {name} with different options; they do not fit together")
    return parts


def _meters(part: ServerSide, others: Sequence[LocalPart]) -> Sequence[LocalPart]:
    given: Any = part.meters(others)
    if isinstance(given, Sequence) and all(isinstance(meter, LocalPart) for meter in given):
        return given
    raise broken(part, "meters", f"gave {describe(given)}; allowed: a list of local parts")


def _check_wishes(parts: Sequence[ServerSide | Sampler]) -> None:
    """Check what parts declare: a wish that nobody understands is never granted."""
    for part in parts:
        needs: Any = part.needs if isinstance(part, ServerSide) else ()
        if isinstance(needs, str) or not set(needs) <= set(TOLD):
            raise broken(part, "needs", f"is {needs!r}; allowed: a frozenset of {', '.join(TOLD)}")
        programs: Any = part.programs
        if not isinstance(programs, Mapping) or "train" in programs or not all(map(callable, programs.values())):
            allowed = 'functions of a client update by the kind of step, which is not "train"'
            raise broken(part, "programs", f"is {programs!r:.80}; allowed: {allowed}")


def _builder(
    choice: ModelChoice, federation: FederationInfo, streams: Streams, module: nn.Module | None, sample: torch.Tensor
) -> Any:
    """Return a function that builds the network, always with the same first weights."""
    if (choice.projection or not choice.head_bias) and (module is not None or choice.name == GIVEN):
        raise RequestError("model.projection and model.head_bias are for models by name; change your own instead")
    if module is not None:
        return partial(copy.deepcopy, take_module(module, sample, streams.torch_seed("model")))
    if choice.name == GIVEN:
        raise RequestError(
            'model.name = "given": this run\'s model came from Python; pass `model` to `train`, `resume` or '
            "`Comparison.open`"
        )
    return make_network_builder(choice, tuple(federation.trial().shape[1:]), len(federation.classes), streams)


def make_network_builder(
    choice: ModelChoice, shape: tuple[int, ...], classes: int, streams: Streams
) -> Callable[[], nn.Module]:
    """Do the same for a model by name, wherever the samples are."""
    seed = streams.torch_seed("model")
    architecture = _build_named("models", choice, "model")
    return Seeded(partial(_draw_weights, architecture, shape, classes, seed, choice.projection, choice.head_bias))


def count_parameters(choice: ModelChoice, shape: tuple[int, ...], classes: int) -> int:
    """Return the size of a model by name without making it: nothing is allocated."""
    with torch.device("meta"):
        module = _build_named("models", choice, "model").build(shape, classes)
        if choice.projection or not choice.head_bias:
            module.head = change_head(module.get_submodule("head"), classes, choice.projection, choice.head_bias)
    return sum(parameter.numel() for parameter in module.parameters())


class Seeded:
    """Builds a network with the same first weights every time: they are drawn once in a process, then copied."""

    def __init__(self, draw: Callable[[], nn.Module]):
        self._draw = draw
        self._drawn: nn.Module | None = None

    def __call__(self) -> nn.Module:
        """Build it."""
        if self._drawn is None:
            self._drawn = self._draw()
        return copy.deepcopy(self._drawn)

    def __getstate__(self) -> dict[str, Any]:
        """Send other processes the way to draw them, not the weights."""
        return {"_draw": self._draw, "_drawn": None}


def _draw_weights(
    architecture: Any, shape: tuple[int, ...], classes: int, seed: int, projection: int, head_bias: bool
) -> nn.Module:
    with seed_torch(seed):
        module = expect(architecture, "build", architecture.build(shape, classes), nn.Module, "a torch.nn.Module")
        fill_lazy(module, torch.zeros(2, *shape), seed)
        if projection or not head_bias:
            if "head" not in dict(module.named_children()):
                raise broken(architecture, "build", "gave a module without `head`; call the last layer `head`")
            module.head = change_head(module.get_submodule("head"), classes, projection, head_bias)
        return module
