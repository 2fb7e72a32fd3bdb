"""What does not fit a wish for privacy, said before anything is computed."""

from __future__ import annotations

from fedstrata.config.experiment import Experiment
from fedstrata.core.errors import RequestError
from fedstrata.core.plan import Plan, per_round
from fedstrata.data.federation_info import FederationInfo
from fedstrata.methods.combiners.size import SizeWeighted
from fedstrata.methods.combiners.uniform import Uniform
from fedstrata.methods.drivers.rounds import Rounds
from fedstrata.methods.drivers.sync import GlobalBatches
from fedstrata.methods.selectors.flips import Flips
from fedstrata.privacy import FEWEST


def refuse(experiment: Experiment, plan: Plan, federation: FederationInfo, clients: int | None = None) -> None:
    """Raise for the first thing that does not fit; `clients` are all there are, where the federation has not all."""
    clients = len(federation) if clients is None else clients
    privacy = experiment.privacy
    if privacy.encoding.fraction > privacy.encoding.bits - 2:
        raise RequestError(
            f"privacy.encoding.fraction = {privacy.encoding.fraction}; allowed: 0 to {privacy.encoding.bits - 2}, "
            f"where privacy.encoding.bits = {privacy.encoding.bits}"
        )
    if privacy.labels != "none":
        _labels(experiment, plan, federation)
    if privacy.clustering != "server" and not isinstance(plan.selector, Flips):
        raise RequestError(
            f'privacy.clustering = "{privacy.clustering}" is for clusters of label distributions; '
            'use method.selector = "flips", or privacy.clustering = "server"'
        )
    if privacy.clustering == "masked" and federation.moves is not None:
        raise RequestError(
            'privacy.clustering = "masked" does not fit data.drift and data.stream: clients find their clusters once'
        )
    if privacy.histogram_epsilon is not None and "counts" not in plan.needs:
        raise RequestError(
            f"privacy.histogram_epsilon = {privacy.histogram_epsilon:g}: this method asks no client for its label "
            'counts; leave it out, or use method.selector = "flips"'
        )
    if privacy.histogram_epsilon is not None:
        beside = {
            "data.drift and data.stream: counts would be told again and again": federation.moves is not None,
            f'privacy.labels = "{privacy.labels}": that protocol tells exact totals': privacy.labels != "none",
            'privacy.clustering = "enclave": exact counts go there': privacy.clustering == "enclave",
        }
        if why := next((key for key, holds in beside.items() if holds), None):
            raise RequestError(f"privacy.histogram_epsilon does not fit {why}")
    if privacy.clustering == "masked" and isinstance(plan.selector, Flips) and plan.selector.features == "counts":
        raise RequestError(
            'privacy.clustering = "masked" finds clusters of shares; use method.selector.features = "l1"'
        )
    _trusting(experiment)
    if privacy.aggregate == "masked":
        _masked(experiment, plan, clients)
    if privacy.dp is not None:
        _noised(experiment, plan, clients)


def _trusting(experiment: Experiment) -> None:
    privacy, clip = experiment.privacy, experiment.trust.clip
    if privacy.dp is not None and clip not in ("auto", "none"):
        raise RequestError(
            f"trust.clip = {clip} does not fit privacy.dp, which clips by itself, to privacy.dp.clip; leave it out"
        )
    if privacy.aggregate == "masked" and clip == "median":
        raise RequestError(
            'trust.clip = "median" does not fit privacy.aggregate = "masked": nobody sees the lengths of single '
            "updates; use a length, such as 10.0, to which every client keeps"
        )
    if privacy.aggregate == "masked" and isinstance(clip, float):
        most = 2.0 ** (privacy.encoding.bits - 1 - privacy.encoding.fraction)
        if clip > most:
            raise RequestError(
                f"trust.clip = {clip:g}, and privacy.encoding holds numbers up to {most:g}; use a smaller length"
            )


def _labels(experiment: Experiment, plan: Plan, federation: FederationInfo) -> None:
    mode = experiment.privacy.labels
    if federation.moves is not None and "counts" in plan.needs:
        raise RequestError(
            f'privacy.labels = "{mode}" does not fit data.drift and data.stream where a method reads label counts: '
            "they are told once"
        )
    if federation.proxy is not None:
        raise RequestError(
            f'privacy.labels = "{mode}" does not fit data.proxy = {experiment.data.proxy}: whoever holds labelled '
            "samples can name every placeholder by looking at what a model answers"
        )


def _masked(experiment: Experiment, plan: Plan, clients: int) -> None:
    looking = {
        f'method.combiner = "{experiment.method.combiner["kind"]}"': plan.combiner.individual,
        f'method.selector = "{experiment.method.selector["kind"]}"': plan.selector.individual
        or any(part.opens_tensors for part in plan.local.parts.values()),
    }
    for key, individual in looking.items():
        if individual:
            raise RequestError(
                f'privacy.aggregate = "masked" does not fit {key}: it looks at single updates, and only their sum can '
                'be seen; use privacy.aggregate = "open"'
            )
    if plan.driver.chained:
        raise RequestError(
            'privacy.aggregate = "masked" does not fit a chain: a model that goes from client to client is never '
            'summed; use privacy.aggregate = "open", or method.driver = "rounds" or "sync"'
        )
    if clients < FEWEST:
        raise RequestError(f'privacy.aggregate = "masked" needs at least {FEWEST} clients; there are {clients}')
    if plan.driver.steps_at_server and plan.local.batch_size < FEWEST:
        raise RequestError(
            f'train.batch_size = {plan.local.batch_size}: privacy.aggregate = "masked" needs at least {FEWEST}, '
            "because a global batch is summed over as many clients"
        )
    if isinstance(plan.driver, GlobalBatches) and plan.driver.up.form != "full":
        raise RequestError(
            f'privacy.aggregate = "masked" does not fit method.driver.up = "{plan.driver.up.form}": under masks only '
            'whole numbers of one size add up; use method.driver.up = "full", or privacy.aggregate = "open"'
        )
    k = min(per_round(plan.clients_per_round, clients), clients)
    if k < FEWEST and plan.driver.side_by_side:
        raise RequestError(
            f'train.clients_per_round gives {k}; privacy.aggregate = "masked" needs at least {FEWEST} clients a round: '
            "the sum over fewer shows one client's update to another"
        )


def _noised(experiment: Experiment, plan: Plan, clients: int) -> None:
    privacy, method = experiment.privacy, experiment.method
    dp = privacy.dp
    assert dp is not None
    reading = next((part for part in plan.server_side if part.reads is not None), None)
    beside = [name for name, part in plan.local.parts.items() if part.declare_aggregated(plan.space)]
    reasons = [
        (
            not isinstance(plan.driver, Rounds),
            f'method.driver = "{method.driver["kind"]}": epsilon is accounted for one sum a round; use "rounds"',
        ),
        (
            plan.combiner not in (SizeWeighted(), Uniform()),
            f'method.combiner = "{method.combiner["kind"]}": weights must not depend on what is hidden; '
            'use "size" or "uniform"',
        ),
        (
            reading is not None,
            f"{type(reading).__name__}: it reads {'' if reading is None else reading.reads}, without noise",
        ),
        (bool(beside), f"{', '.join(beside)}: it sends more than the update, which would need noise of its own"),
        (bool(plan.space.Q), 'a model with norm statistics: they are not clipped; use model.norm = "group"'),
        (plan.local.optimizer.state == "carried", "an optimizer whose memory travels"),
    ]
    for holds, why in reasons:
        if holds:
            raise RequestError(f"privacy.dp does not fit {why}")
    if dp.budget is not None and not dp.noise:
        raise RequestError("privacy.dp.budget needs privacy.dp.noise > 0: without noise epsilon is infinite")
    if privacy.aggregate == "masked":
        k = min(per_round(plan.clients_per_round, clients), clients)
        most = 2.0 ** (privacy.encoding.bits - 1 - privacy.encoding.fraction) / k
        reach = dp.clip * (1 + (8 * dp.noise if dp.where == "local" else 0))  # eight standard deviations
        if (rounding := 2.0 ** -(privacy.encoding.fraction + 1) * plan.space.P**0.5) >= dp.clip:
            raise RequestError(
                f"privacy.dp.clip = {dp.clip:g} is lost in the rounding of privacy.encoding, {rounding:g}; "
                "use a larger fraction"
            )
        if reach > most:
            raise RequestError(
                f"privacy.dp.clip = {dp.clip:g} reaches {reach:g}, and privacy.encoding holds numbers up to {most:g}; "
                "use more bits or a smaller fraction"
            )
