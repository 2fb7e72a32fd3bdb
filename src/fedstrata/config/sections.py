"""The tables of an experiment file and their keys; docs/experiment.md says what each does."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, PlainValidator

from fedstrata.core import registry
from fedstrata.core.errors import RequestError
from fedstrata.core.options import (
    AtLeastOne,
    BelowOne,
    Count,
    Fraction,
    LocalPath,
    Natural,
    NonNegative,
    Positive,
    Share,
)

Spec = Any  # a part by name, `"size"`, or with options, `{kind = "size", ...}`; checked when it is completed


def _per_round(value: Any) -> Any:
    count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    if count or value == "all" or (isinstance(value, float) and 0 < value <= 1):
        return value
    raise ValueError('a count such as 20, a fraction such as 0.2, or "all"')


def _name(value: Any) -> str:
    if isinstance(value, str) and value == value.strip() and value.isprintable() and 1 <= len(value) <= 100:
        return value
    raise ValueError("a line of text, 1 to 100 characters")


PerRound = Annotated[int | float | str, PlainValidator(_per_round)]
Name = Annotated[str, PlainValidator(_name)]


class Section(BaseModel):
    """A table of the experiment file."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DriftChoice(Section):
    """Label mixes that change: at each given round a share of the clients pass their samples on among themselves."""

    at: list[Count] = []
    share: Fraction = 0.5


class StreamChoice(Section):
    """Samples that arrive over time."""

    start: Fraction = 0.2
    until: Count = 50
    window: Natural = 0


class Data(Section):
    """Which samples, and who holds them. Further keys are options of the data set."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str = "digits"
    samples: Count | None = None  # so many training samples in place of all, of every label in proportion
    clients: Count | None = None  # 20, unless the partition counts them itself
    partition: Spec = None
    proxy: Natural = 0  # training samples that the server holds, for methods that rank models
    noise: Any = None  # wrong labels, disturbed features: {labels = 0.3}, or a list of parts
    drift: DriftChoice | None = None
    stream: StreamChoice | None = None
    fingerprint: str | None = None  # hash of data that was given from Python


class ModelChoice(Section):
    """Which network. Further keys are options of the model."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str = "mlp"
    init: LocalPath | None = None  # a model.safetensors to start from
    head: str | None = None  # name of the last layer, where it cannot be found
    projection: Natural = 0  # width of a projection of two layers that is put before the last one, as in MOON
    head_bias: bool = True  # whether the last layer has a bias; FedRS' authors have none


class Method(Section):
    """A recipe; the stages override its parts."""

    name: str = "fedavg"
    schedule: Spec = None
    driver: Spec = None
    selector: Spec = None
    sampler: Spec = None
    corrections: Any = None  # a list of parts
    combiner: Spec = None
    server_step: Spec = None
    chosen: list[str] | None = None  # stages that a recipe chose by what was measured; the run writes them down


class Stop(Section):
    """When to end before the last round."""

    target: Fraction | None = None  # accuracy reached
    patience: Count | None = None  # evaluations without a better accuracy
    vote: Fraction | None = (
        None  # with this share of the clients at `target` on their own test data, not the global one
    )
    bytes: Count | None = None  # budgets, of which the round that spends one is the last: bytes in all directions,
    client_updates: Count | None = None  # client updates that trained,
    time: Positive | None = None  # and virtual seconds


class Evaluate(Section):
    """When to evaluate and on what, and how many clients enter the per-client metrics."""

    every: Count = 1
    validation: BelowOne = 0.0  # share of their training samples that clients hold out, scored instead of the test set
    clients: Count = 1000
    personal: bool = False  # also after every client has fine-tuned the model for an epoch
    metrics: Any = None  # a list of parts: figures beside these, on the test set
    best: str = "accuracy"  # the figure by which a model is the best; metrics give others


class Augment(Section):
    """Random changes of images in training."""

    crop: Natural = 0  # pixels of padding, out of which a window of the old size is cut
    flip: bool = False  # left and right


class Train(Section):
    """How the model is trained, whatever the method."""

    rounds: Count = 50
    clients_per_round: PerRound = 0.5
    epochs: Count = 2
    batch_size: Count = 16
    lr: Positive = 0.1
    optimizer: Spec = None
    lr_schedule: Spec = None
    targets: list[Fraction] = []  # accuracies of which the summary says what they took
    stop: Stop = Stop()
    evaluate: Evaluate = Evaluate()
    augment: Augment = Augment()
    seed: Natural = 0


class Lateness(Section):
    """Reports that come too late: a share of the selected clients, after they did the work."""

    rate: Fraction = 0.0
    mode: Literal["uniform", "slowest", "sticky", "partial"] = "uniform"


class Speed(Section):
    """How fast devices are: as the data say, drawn, or in five tiers."""

    kind: Literal["given", "lognormal", "tiers"] = "given"
    sigma: NonNegative = 0.5


class Bandwidth(Section):
    """Bytes a second, and how far clients differ."""

    mean: NonNegative = 0.0  # 0: messages take no time
    sigma: NonNegative = 0.0


class Availability(Section):
    """Who can be asked in a round."""

    kind: Literal["always", "independent", "labels", "trace"] = "always"
    rate: Fraction = 1.0
    period: Count = 20
    trace: LocalPath | None = None


class SystemChoice(Section):
    """Devices and network."""

    speed: Speed = Speed()
    bandwidth: Bandwidth = Bandwidth()
    seconds_per_sample: NonNegative = 0.001
    availability: Availability = Availability()
    deadline: NonNegative = 0.0
    wait_for: Fraction = 1.0
    over_select: AtLeastOne = 1.0
    stragglers: Lateness = Lateness()


class FixedPoint(Section):
    """How numbers are written where sums are masked: whole words, some bits of them behind the point."""

    bits: Literal[32, 64] = 32
    fraction: Natural = 20


class Differential(Section):
    """Whole clients are hidden: every update is clipped, and noise of `noise` times `clip` is added."""

    clip: Positive = 1.0
    noise: NonNegative = 0.0
    where: Literal["server", "local"] = "server"  # who adds it: the server to a sum, or every client
    delta: Share | None = None  # None: a tenth of 1 / clients
    budget: Positive | None = None  # epsilon at which the run stops


class EnclaveChoice(Section):
    """What parties insist on before they tell an enclave anything."""

    attestation: Literal["dev-insecure", "sev-snp"] = "sev-snp"
    allow_insecure: bool = False  # must be said where the attestation is only software
    measurement: str | None = None  # of the guest, 96 hexadecimal digits
    minimum_tcb: tuple[Natural, Natural, Natural, Natural] = (0, 0, 0, 0)  # boot loader, TEE, SNP, microcode
    vmpl: Natural = 0  # privilege level inside the guest at which its report is asked for
    certificates: LocalPath = "."  # folder with vcek.der, ask.der and ark.der, inside the guest
    noise: Fraction = 0.0  # chance that a pick is exchanged for another client


class Privacy(Section):
    """Who may see what."""

    labels: Literal["none", "prf", "ckks-paper"] = "none"
    clustering: Literal["server", "enclave", "masked"] = "server"
    histogram_epsilon: Positive | None = None
    aggregate: Literal["open", "masked"] = "open"
    encoding: FixedPoint = FixedPoint()
    dp: Differential | None = None
    enclave: EnclaveChoice = EnclaveChoice()


class Trust(Section):
    """How far the server believes a client's report; `auto` believes all in a simulation, and less at real sites."""

    clip: Literal["auto", "none", "median"] | Positive = "auto"  # longest update
    samples: Literal["auto", "none"] | AtLeastOne = "auto"  # most that one counts for, as a multiple of the median


class EngineChoice(Section):
    """Where and how client updates are executed. Further keys are options of the engine."""

    model_config = ConfigDict(extra="allow", frozen=True)
    kind: str = "local"
    workers: Count | Literal["auto"] = "auto"
    precision: Literal["fp32", "tf32", "bf16", "fp64"] = "fp32"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    execution: Literal["auto", "fused", "messages"] = "auto"  # of methods whose clients compute one batch together
    client_state: Literal["memory", "disk"] = "memory"  # where what clients keep lies between their client updates
    vmap: Literal["auto", "always", "never"] = "auto"  # whether tiny clients are trained many at once
    cuda_graphs: bool = True  # whether a GPU replays recorded steps
    compile: bool | Literal["auto"] = "auto"  # whether a GPU's steps are compiled first

    def make(self) -> Any:
        """Build the engine; of the options that engines have in common, it gets those that it has."""
        own, further = type(self).model_fields, self.model_extra or {}
        known = registry.options("engines", self.kind, "engine.kind")
        for option in further:
            if option not in known:
                raise self._refuse(option, known | set(own))
        common = {name: getattr(self, name) for name in own if name not in ("kind", "execution")}
        for option, value in common.items():
            if option not in known and value != own[option].default:
                raise RequestError(f'engine.{option} = {value!r}: engine.kind = "{self.kind}" has no such option')
        return registry.build("engines", self.kind, {k: v for k, v in common.items() if k in known} | further, "engine")

    def _refuse(self, option: str, known: set[str]) -> RequestError:
        """Say that there is no such option, or whose it is: a file written for a cluster is tried on a laptop."""
        key = f"engine.{option}"
        others = [kind for kind in registry.names("engines") if option in registry.options("engines", kind, key)]
        if not others:
            return registry.unknown_option(key, option, known)
        whose = " or ".join(f'"{kind}"' for kind in sorted(others))
        other = f"--set 'engine={{kind=\"{self.kind}\"}}' leaves out all options of other engines"
        return RequestError(f'{key} is an option of engine.kind = {whose}, and not of "{self.kind}"; {other}')
