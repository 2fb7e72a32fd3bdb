"""What `[privacy]` asks for, put in place before a run: label masking, clusters, and the guard round the engine."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from math import floor, inf, log10
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from fedstrata.config.experiment import Experiment
from fedstrata.config.sections import Differential, Privacy
from fedstrata.core.client_info import ClientInfo
from fedstrata.core.engine import Engine
from fedstrata.core.errors import RequestError
from fedstrata.core.events import Log
from fedstrata.core.flat_model import FlatModel
from fedstrata.core.plan import Plan, per_round
from fedstrata.core.steps import Evaluate, Scores, View
from fedstrata.data.federation import Federation
from fedstrata.data.reading import Label
from fedstrata.data.scaling import FeaturesTold
from fedstrata.methods.selectors.flips import Flips
from fedstrata.methods.selectors.random import Random
from fedstrata.privacy import FEWEST
from fedstrata.privacy.accounting import Accountant, FixedSize
from fedstrata.privacy.frames import RefusedError
from fedstrata.privacy.noise import UpdateNoise
from fedstrata.privacy.refusals import refuse
from fedstrata.privacy.sums.fixed_point import Encoding
from fedstrata.server.bounds import Bounds

DELTA_SHARE = 0.1  # of 1 / clients: the default, and the largest that is not called weak
LARGEST_DELTA, USUAL_DELTA = 1e-3, 1e-5  # however few the clients are
SIMULATED = "simulation"  # the run that simulated clients seal their maps for

if TYPE_CHECKING:
    from fedstrata.privacy.clustering import PrivateClusters
    from fedstrata.privacy.enclave.launch import Started
    from fedstrata.privacy.histograms import NoisyHistograms
    from fedstrata.privacy.labels.masking import MaskedLabels


@dataclass
class Setup:
    """A plan on a federation, as the server and the clients know it once labels are masked."""

    plan: Plan
    federation: Federation
    client_info: ClientInfo
    notes: list[tuple[str, dict[str, Any]]] = field(default_factory=list)  # events of setting it up
    clusters: str | None = None  # what was seen while clustering
    evaluator: Evaluate | None = None  # where the test set lies in an enclave
    close: Callable[[], None] = lambda: None

    def note(self, kind: str, **fields: Any) -> None:
        """Keep an event for the run's log."""
        self.notes.append((kind, fields))

    def blurred(self, noisy: NoisyHistograms) -> None:
        """Take note that clients told their label counts with noise."""
        self.clusters = noisy.describe()
        self.note("histograms_blurred", epsilon=noisy.spent())


def set_up(
    experiment: Experiment, plan: Plan, federation: Federation, remotely: Callable[[Setup], None] | None = None
) -> Setup:
    """Check that what is asked for fits, and do what comes before the first round; `remotely` does it at real sites."""
    privacy = experiment.privacy
    refuse(experiment, plan, federation)
    if privacy.aggregate == "masked":
        plan = replace(plan, fewest=FEWEST)
    now = Setup(plan, federation, federation.client_info(plan.needs, plan.streams))
    if remotely is not None:
        remotely(now)
        return now
    if privacy.aggregate == "masked" and federation.features_told is not None:
        _add_features(federation.features_told, now)
    if privacy.labels != "none":
        _mask_labels(privacy, now, experiment.model.init)
    if privacy.histogram_epsilon is not None:
        _blur_histograms(privacy.histogram_epsilon, now)
    if privacy.clustering == "enclave":
        _enter_enclave(experiment, now)
    elif privacy.clustering == "masked":
        _cluster_in_secret(now)
    return now


def protect_engine(experiment: Experiment, plan: Plan, engine: Engine, clients: int, log: Log) -> Engine:
    """Put the guard round an engine where updates are masked or noised."""
    privacy = experiment.privacy
    if privacy.aggregate == "open" and privacy.dp is None:
        return engine
    from fedstrata.privacy.protected_engine import ProtectedEngine  # noqa: PLC0415

    how = encoding_of(privacy), noise_of(privacy), hides_figures(privacy, plan)
    return ProtectedEngine(engine, plan.streams, clients, *how, log, clip_of(experiment, plan))


def encoding_of(privacy: Privacy) -> Encoding | None:
    """Say how updates are written where they are masked."""
    masked = privacy.aggregate == "masked"
    return Encoding(privacy.encoding.bits, privacy.encoding.fraction) if masked else None


def noise_of(privacy: Privacy) -> UpdateNoise | None:
    """Say how updates are clipped and noised, if they are."""
    dp = privacy.dp
    return None if dp is None else UpdateNoise(dp.clip, dp.noise, dp.where == "local")


def clip_of(experiment: Experiment, plan: Plan) -> float | None:
    """Return the length to which clients shorten an update that only its sum shows; gradients stay as they are."""
    clip, masked = experiment.trust.clip, experiment.privacy.aggregate == "masked"
    return clip if masked and isinstance(clip, float) and not plan.driver.steps_at_server else None


def bounds_of(experiment: Experiment, plan: Plan) -> Bounds:
    """Say how far the server believes reports: the length of an update as far as it sees single ones."""
    trust, seen = experiment.trust, experiment.privacy.aggregate == "open" and experiment.privacy.dp is None
    length = trust.clip if seen and trust.clip not in ("auto", "none") else None
    samples = trust.samples if isinstance(trust.samples, float) else None
    return Bounds(cast(Any, length), samples, clip_of(experiment, plan))


def hides_figures(privacy: Privacy, plan: Plan) -> bool:
    """Say whether losses and lengths of updates are told in sums only: as updates are, unless a part reads them."""
    return privacy.aggregate == "masked" and not plan.reads_envelope


def hides_label_counts(privacy: Privacy) -> bool:
    """Say whether clients hide how often they have each label."""
    return privacy.labels != "none" or privacy.clustering != "server" or privacy.histogram_epsilon is not None


def accountant(experiment: Experiment, plan: Plan, client_info: ClientInfo) -> Accountant | None:
    """Return what adds up epsilon; None without differential privacy."""
    dp = experiment.privacy.dp
    if dp is None:
        return None
    clients = len(client_info.holders)
    k = min(per_round(plan.clients_per_round, client_info.clients), clients)
    equal = experiment.method.combiner["kind"] == "uniform"  # other weights' sum would tell who took part
    always = experiment.system.availability.kind == "always" and client_info.later is None
    drawn = isinstance(plan.selector, Random) and equal and always and plan.system.reliable and dp.where == "server"
    sampling = FixedSize(k, clients) if drawn else None
    return Accountant(dp.noise, delta_of(dp, clients), sampling, dp.where == "local")


def most_spent(privacy: Privacy, clients: int) -> float:
    """Return what reports of one client may cost in a run (`UpdateNoise.cost`), by the budget.

    No amplification by sampling: a client knows when it took part.
    """
    dp, noise = privacy.dp, noise_of(privacy)
    if dp is None or noise is None or dp.budget is None:
        return inf
    spends = Accountant(dp.noise, delta_of(dp, clients), local=noise.local)
    return spends.rounds_within(dp.budget) * noise.cost


def delta_of(dp: Differential, clients: int) -> float:
    """Return the delta that is asked for, or a tenth of one client's share."""
    return dp.delta if dp.delta is not None else DELTA_SHARE / clients


def describe_weak_delta(dp: Differential | None, clients: int) -> str | None:
    """Say that delta is too large for the guarantee to mean much; None: it is not, or nothing is promised.

    A mechanism that tells everything of one client drawn at random has a delta of 1 / clients.
    """
    if dp is None or not dp.noise:
        return None
    delta, share = delta_of(dp, clients), DELTA_SHARE / clients
    if delta <= min(share, LARGEST_DELTA):
        return None
    whose = "by default a tenth of 1 / clients" if dp.delta is None else "as asked for"
    better = 10.0 ** floor(log10(min(share, USUAL_DELTA)))
    return (
        f"delta = {delta:.3g} ({whose}) is weak: with that probability the guarantee may not hold at all; set "
        f"privacy.dp.delta far below 1 / clients and to at most {LARGEST_DELTA:g}, such as {better:g}: the same noise "
        f"then counts as a higher epsilon"
    )


def tells_counts(privacy: Privacy, needs: Collection[str]) -> bool:
    """Say whether clients tell how often they have each placeholder: only where the server clusters by that."""
    return "counts" in needs and privacy.clustering == "server" and privacy.histogram_epsilon is None


def held_labels(federation: Federation, client: int = 0) -> dict[Label, int]:
    """Return how many samples of which label a client holds."""
    return {label: int(n) for label, n in zip(federation.classes, federation.counts[client], strict=True) if n}


def _add_features(told: FeaturesTold, now: Setup) -> None:
    """Let clients add up what features are scaled by under masks."""
    from fedstrata.privacy.features import add_under_masks  # noqa: PLC0415

    holders = now.client_info.holders.tolist()
    up = add_under_masks(told, holders, len(now.federation), now.plan.streams)
    now.client_info = replace(now.client_info, features=up)
    now.note("features_masked", sums=len(told.exchanges), bytes_up=up)


def _mask_labels(privacy: Privacy, now: Setup, init: str | None) -> None:
    """Let clients and server agree on placeholders, and train with those as class indices.

    A model that goes on (`init`) goes on with the placeholders that it was trained on.
    """
    from fedstrata.privacy.labels.kept import EVENT, NONCE, OwnMap  # noqa: PLC0415
    from fedstrata.privacy.labels.masking import mask_labels  # noqa: PLC0415
    from fedstrata.privacy.simulated import secrets  # noqa: PLC0415

    federation, streams = now.federation, now.plan.streams
    holders = now.client_info.holders
    held = [held_labels(federation, client) for client in holders]
    masked = mask_labels(
        privacy.labels,
        held,
        rng=streams("placeholders"),
        entropy=lambda party: secrets(streams, "labels", party),
        note=now.note,
        distributions=tells_counts(privacy, now.plan.needs),
        classes=len(now.federation.classes),
    )
    if masked.warning is not None:
        now.note("warning", what=f"privacy.labels = {privacy.labels}", why=masked.warning)
    keys, kept = {client: secrets(streams, "label map", client)(32) for client in holders.tolist()}, masked.own
    if init is not None:
        masked, kept = _as_before(masked, init, keys)
    index = {label: i for i, label in enumerate(federation.classes)}
    codes = np.full(len(index), -1)
    for own in kept:
        for label, placeholder in own.items():
            if label in index:
                codes[index[label]] = placeholder
    free = sorted(set(range(len(codes))).difference(codes))
    codes[codes < 0] = free[: np.count_nonzero(codes < 0)]  # labels that nobody trains on
    now.federation = federation.relabel(codes)
    client_info = now.federation.client_info(now.plan.needs, streams)
    clients, classes = client_info.clients, client_info.classes

    def wide(table: np.ndarray) -> np.ndarray:
        whole = np.zeros((clients, classes), dtype=table.dtype)
        whole[holders, : masked.placeholders] = table
        return whole

    known = dict(client_info.known)
    if known.get("labels") is not None:
        known["labels"] = wide(masked.holds)
    if known.get("totals") is not None:
        known["totals"] = np.pad(masked.totals, (0, classes - masked.placeholders))
    if masked.counts is not None:
        known["counts"] = wide(masked.counts)
    told = int(masked.bytes_up.sum())
    now.client_info = replace(client_info, known=known, setup=told, features=now.client_info.features)
    sealed = [
        OwnMap(own, masked.placeholders).seal(key, secrets(streams, "label map nonce", client)(NONCE), SIMULATED).hex()
        for own, (client, key) in zip(kept, keys.items(), strict=True)
    ]
    about = {"mode": privacy.labels, "placeholders": masked.placeholders, "bytes_up": told}
    now.note(EVENT, **about, clients=list(keys), sealed=sealed)


def _as_before(
    masked: MaskedLabels, init: str, keys: Mapping[int, bytes]
) -> tuple[MaskedLabels, list[dict[Label, int]]]:
    """Take up the placeholders of the run that a model comes from; gives also all labels that each client knows."""
    from fedstrata.privacy.labels.kept import OwnMap, join_renumberings, read_kept, take_up  # noqa: PLC0415

    event = read_kept(init)
    if "clients" not in event:
        raise RequestError(f'model.init = "{init}": real sites trained it, and only they can go on with it')
    sealed = dict(zip(event["clients"], event["sealed"], strict=True))
    known, told = list[dict[Label, int]](), dict[int, dict[int, int]]()
    for own, (client, key) in zip(masked.own, keys.items(), strict=True):
        try:
            if client not in sealed:
                raise RefusedError("it took no part in that run")
            before = OwnMap.open(key, bytes.fromhex(sealed[client]), SIMULATED)
            told[client] = before.renumber(own)
        except RefusedError as error:
            raise RequestError(
                f'model.init = "{init}": client {client} cannot go on with its placeholders: {error}; in a simulation '
                "clients are the same only if train.seed and their number are"
            ) from None
        known.append(dict(before.own))
    placeholders = int(event["placeholders"])
    return take_up(masked, join_renumberings(told, placeholders), placeholders), known


def _blur_histograms(epsilon: float, now: Setup) -> None:
    """Let every client tell its label counts with noise."""
    from fedstrata.privacy.histograms import NoisyHistograms  # noqa: PLC0415

    noisy, streams, holders = NoisyHistograms(epsilon), now.plan.streams, now.client_info.holders
    counts = np.zeros_like(now.federation.counts)
    counts[holders] = [noisy.told(now.federation.counts[i], streams("histogram", client=int(i))) for i in holders]
    known = {**now.client_info.known, "counts": counts}
    now.client_info = replace(now.client_info, known=known)
    now.blurred(noisy)


def _enter_enclave(experiment: Experiment, now: Setup) -> None:
    """Let FLIPS cluster and select in a service of its own, where the test set lies too."""
    from fedstrata.privacy.enclave.launch import start  # noqa: PLC0415
    from fedstrata.privacy.enclave.policy import Scoring  # noqa: PLC0415

    plan, federation = now.plan, now.federation
    assert isinstance(plan.selector, Flips)
    scoring = Scoring.of(experiment, federation, plan.local.head)
    every = experiment.train.evaluate.every
    how = experiment.privacy.enclave, plan.rounds
    started = start(plan.selector, federation, plan.streams, *how, scoring=scoring, every=every, note=now.note)
    select_inside(now, started)
    now.evaluator = _in_own_order(started.evaluator, federation.codes)


def select_inside(now: Setup, started: Started) -> None:
    """Let an enclave that was told label counts select, and the server know none."""
    now.plan = replace(now.plan, selector=started.select)
    now.client_info = replace(now.client_info, known={**now.client_info.known, "counts": None})
    now.close = started.close
    weakref.finalize(started.select, started.close)  # also where the run is never begun


def _in_own_order(evaluator: Any, codes: np.ndarray | None) -> Callable[..., Any]:
    """Let recalls be told in the labels' own order: what the enclave scores are placeholders."""

    def scored(model: FlatModel, view: View) -> Scores:
        scores: Scores = evaluator(model, view)
        if codes is None or "recall" not in scores.figures:
            return scores
        recall = scores.figures["recall"]
        return replace(scores, figures={**scores.figures, "recall": [recall[code] for code in codes]})

    return scored


def _cluster_in_secret(now: Setup) -> None:
    """Let clients find their clusters by masked sums; the server hears which one each is in."""
    from fedstrata.privacy.clustering import ClusterMember, masked_k_means  # noqa: PLC0415
    from fedstrata.privacy.simulated import identities, job_of, secrets  # noqa: PLC0415
    from fedstrata.privacy.sums.all_reduce import MaskedAllReduce  # noqa: PLC0415
    from fedstrata.privacy.sums.secure_sum import Parties  # noqa: PLC0415

    plan, streams = now.plan, now.plan.streams
    assert isinstance(plan.selector, Flips)
    server, clients, key_directory = identities(streams, len(now.federation))
    job, ids = job_of(streams, "clusters", -1, 0), now.client_info.holders.tolist()
    told = now.client_info.known.get("counts")  # with noise, where that was asked for
    counts = now.federation.counts if told is None else told
    members = {i: ClusterMember(i, counts[i] / counts[i].sum(), clients[i], key_directory, job) for i in ids}
    parties = Parties(server, {i: clients[i] for i in ids}, key_directory, lambda i: secrets(streams, "clusters", i))
    all_reduce = MaskedAllReduce(parties, job)
    found = masked_k_means(
        members, server, key_directory, job, all_reduce.sum, plan.selector.clusters, plan.selector.elbow
    )
    take_clusters(now, found)


def take_clusters(now: Setup, found: PrivateClusters) -> None:
    """Tell the server which cluster each client is in, and no label counts."""
    now.client_info = replace(
        now.client_info,
        known={**now.client_info.known, "counts": None},
        clusters=found.of_all(len(now.federation)),
        setup=(now.client_info.setup or 0) + found.bytes_up * len(found.cluster),
    )
    now.clusters = " ".join(filter(None, [now.clusters, found.describe()]))
    now.note("clusters_masked", clusters=len(found.centres), steps=found.steps, bytes_up=found.bytes_up)
