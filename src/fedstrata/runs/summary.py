"""What a run says of itself: the events it begins with, and the summary and the model it ends with."""

from __future__ import annotations

import platform
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import compress
from math import isfinite
from typing import Any

from fedstrata import __version__
from fedstrata.config.build import label_names
from fedstrata.config.measured import metrics_of
from fedstrata.config.model_info import ModelInfo
from fedstrata.config.naming import name_plan
from fedstrata.config.sections import Data
from fedstrata.core.errors import RequestError
from fedstrata.core.events import Log, describe_choice
from fedstrata.core.flat_model import FlatModel
from fedstrata.core.messages import Tensors
from fedstrata.core.plan import per_round
from fedstrata.core.storage.event_lines import SCORED, SPENT, describe_damage
from fedstrata.data.reading import Label
from fedstrata.privacy.statement import statement
from fedstrata.runs.folder import Run
from fedstrata.runs.health import smaller, worst_told
from fedstrata.runs.metrics import Evaluation, evaluations, final_figures, spent_until, to_targets
from fedstrata.runs.schedule_account import schedule_figures
from fedstrata.runs.session import Session
from fedstrata.server.loop import model_to_evaluate
from fedstrata.server.metrics import CLIENTS_LISTED
from fedstrata.server.state import State

FAR = 5  # times a bound: no accident
FEW = 5  # labels that are named


def log_start(session: Session, log: Log) -> None:
    """Make the events that say what a run begins with."""
    federation, plan = session.federation, session.plan
    log(
        "start",
        version=__version__,
        clients=len(federation),
        samples=federation.samples,
        left_out=federation.left_out,
        test_samples=federation.tests,
        classes=list(federation.classes),
        parameters=plan.space.P,
        fingerprint=federation.fingerprint,
        **_names(session),
        **_label_mix(session),
        wall=_versions(),
    )
    listed = len(federation) <= CLIENTS_LISTED and (session.remote is None or "counts" in plan.needs)
    if listed and not session.hides_data:
        log("clients", counts=federation.counts.tolist())
    for note in federation.notes:
        log("fallback", what="data.partition", why=note)
    for choice in session.choices:
        log("choice", stage=choice.stage, used=choice.part, why=choice.why, measured=dict(choice.measured))
    for kind, fields in session.private.notes:
        log(kind, **fields)
    if session.client_info.setup_bytes:
        told = [*sorted(plan.needs), *(["features"] if session.client_info.features else [])]
        log("setup", told=told, bytes_up=session.client_info.setup_bytes)
    asked = per_round(plan.clients_per_round, len(federation))
    if asked > len(session.client_info.holders):
        log(
            "fallback",
            what="train.clients_per_round",
            used=len(session.client_info.holders),
            why="fewer clients hold data",
        )


def write_result(session: Session, folder: Run, state: State, seconds: float) -> None:
    """Write the summary, the last model and the best."""
    events, train, asked = folder.events(), session.experiment.train, session.experiment.dump()
    damage = describe_damage(events)
    scored = whole_evaluations(events)
    if damage and (not scored or scored[-1]["round"] != state.round):
        raise RequestError(f"{folder.path} cannot have a summary: {damage}, and the last round's was one of them")
    targets = [*train.targets, *([] if train.stop.target is None else [train.stop.target])]
    last = scored[-1] if scored else {}
    summary = {
        "method": name_plan(asked),
        **({"name": asked["name"]} if "name" in asked else {}),
        "seed": session.experiment.train.seed,
        "rounds": state.round,
        "accuracy": last.get("accuracy"),
        "balanced_accuracy": last.get("balanced_accuracy"),
        "worst10": last.get("worst10"),
        **asdict(state.traffic),
        "seconds": round(seconds, 3),
        "time": state.clock,
        "run_dir": str(folder.path),
        "loss_test": last.get("loss_test"),
        "client_mean": last.get("client_mean"),
        "jain": last.get("jain"),
        **final_figures(scored),
        **to_targets(scored, targets),
        "best": _best(session, state),
        "bytes_setup": session.client_info.setup_bytes,
        "bytes_evaluate": sum(event.get("bytes_evaluate", 0) for event in events),
        "precision": session.experiment.engine.precision,
        "stopped": state.stopped or "all rounds done",
        "remarks": [
            *([damage] if damage else []),
            *_of_which_round(scored, state.round),
            *_untested(events, last),
            *_remarks(events, train.lr),
            *worst_told(events),
            *_without_best(session, state),
            *session.stopping.remarks(state.stopped, state.round, state.traffic, state.clock),
        ],
        "privacy": _statement(session, state.round),
    }
    if own := [metric.figure for metric in metrics_of(train.evaluate)]:
        summary["metrics"] = {figure: last.get(figure) for figure in own}
    summary |= {
        key: last[key]
        for key in ("participant_mean", "last_step_mean", "personal_mean", "personal_worst10")
        if key in last
    }
    if chosen := [describe_choice(event) for event in events if event["event"] == "choice"]:
        summary["choices"] = chosen
    summary |= schedule_figures(session, state, scored)
    if session.accountant is not None:
        summary["epsilon"] = _finite(session.accountant.epsilon(state.round))
    if train.stop.target is not None:
        summary |= {f"{name}_target": spent for name, spent in spent_until(scored, train.stop.target).items()}
    models = {"model": _name_tensors(session, model_to_evaluate(session.plan, state))}
    if state.best.round:
        models["best"] = _name_tensors(session, state.best.model(session.plan.space.P))
    folder.write_result(models, describe_model(session), summary)


def describe_model(session: Session) -> ModelInfo:
    """Say what whoever uses the model must know of it."""
    experiment, federation = session.experiment, session.federation
    data, sample = experiment.data.model_dump(), federation.trial()
    classes = session.private.federation.classes  # in the order of placeholders, where labels are masked
    directory = None
    if session.remote is not None and session.hides_names:
        directory = session.remote.label_directory()
        classes = tuple(f"placeholder {i}" for i in range(len(classes)))
    return ModelInfo(
        model={key: value for key, value in experiment.dump()["model"].items() if key not in ("init", "head")},
        head=session.plan.local.head,
        preprocessing=federation.preprocessing,
        sample={"shape": list(sample.shape[1:]), "dtype": str(sample.dtype).removeprefix("torch.")},
        classes=classes,
        method=experiment.method.name,
        data={"name": experiment.data.name, "fingerprint": federation.fingerprint},
        versions={"fedstrata": __version__, "torch": version("torch")},
        columns={key: data[key] for key in ("label", "client") if isinstance(data.get(key), str)},
        label_directory=directory,
        class_names=() if session.remote is not None else _class_names(experiment.data, classes),
    )


def _class_names(data: Data, classes: Sequence[Label]) -> tuple[str, ...]:
    """Return what the publisher calls the classes; nothing where it names none of them."""
    names = label_names(data)
    return tuple(names.get(label, str(label)) for label in classes) if any(c in names for c in classes) else ()


def whole_evaluations(events: list[dict[str, Any]]) -> list[Evaluation]:
    """Return the evaluations that tell everything; one whose line was damaged in the name of a figure does not."""
    needed = (*SCORED, *SPENT)
    return [event for event in evaluations(events) if all(name in event for name in needed)]


def _name_tensors(session: Session, model: FlatModel) -> Tensors:
    """Return all tensors of the network with a model's weights, those that do not travel among them."""
    module = session.plan.local.build().to(session.plan.local.dtype)
    module.load_state_dict(session.plan.space.named(model), strict=False)
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def _best(session: Session, state: State) -> dict[str, Any] | None:
    """Say what best.safetensors holds."""
    best = state.best
    metric = session.experiment.train.evaluate.best
    return {"metric": metric, "value": best.value, "round": best.round} if best.round else None


def _without_best(session: Session, state: State) -> list[str]:
    metric = session.experiment.train.evaluate.best
    return [] if state.best.round else [f"no best model was kept: no evaluation has a {metric}"]


def _of_which_round(scored: list[Evaluation], rounds: int) -> list[str]:
    """Say where figures are not those of the last round: sites may leave an evaluation unanswered."""
    if not scored:
        return ["no evaluation was answered: how good the model is, nobody knows"]
    known = scored[-1]["round"]
    return [] if known == rounds else [f"round {rounds} was not evaluated: the figures are those of round {known}"]


def _untested(events: list[dict[str, Any]], last: Evaluation) -> list[str]:
    """Name labels of which no sample is tested: a figure of 100 % says nothing of them."""
    classes: list[Any] = next(
        (event["classes"] for event in events if event["event"] == "start" and "classes" in event), []
    )
    recall = last.get("recall") or []
    without = [str(label) for label, own in zip(classes, recall, strict=False) if own is None]
    more = f" and {len(without) - FEW} more" if len(without) > FEW else ""
    which = f"label{'s' if len(without) > 1 else ''} {', '.join(without[:FEW])}{more}"
    return [f"models were tested on no sample of {which}: no figure tells how well they know it"] * bool(without)


def _names(session: Session) -> dict[str, Any]:
    """Tell what clients are called, where they have names and are not too many."""
    names = session.federation.names
    return {} if names is None or len(names) > CLIENTS_LISTED else {"names": list(names)}


def _label_mix(session: Session) -> dict[str, Any]:
    """Tell each label's share of all samples, where that is known here and no secret."""
    ground_truth = session.client_info.ground_truth if session.remote is None else None
    return {} if ground_truth is None or session.hides_data else {"mix": ground_truth.mix.tolist()}


def _statement(session: Session, rounds: int) -> dict[str, Any]:
    accountant = session.accountant
    guarantee = None if accountant is None else accountant.describe()
    epsilon = None if accountant is None else _finite(accountant.epsilon(rounds))
    told, clusters, here = session.client_info.told, session.private.clusters, session.remote is None
    moving = session.federation.moves is not None
    known = told, clusters, guarantee, epsilon, here, moving, session.federation.features_told, session.weak_delta
    return statement(session.experiment, session.plan, *known)


def _versions() -> dict[str, str]:
    """Say with what, and when, a run began."""
    found = {name: version(name) for name in ("torch", "numpy", "scikit-learn")}
    began = datetime.now(UTC).isoformat(timespec="seconds")
    return {"began": began, "python": platform.python_version(), **found, "system": platform.platform()}


def _finite(number: float) -> float | None:
    return number if isfinite(number) else None


def _remarks(events: list[dict[str, Any]], lr: float) -> list[str]:
    """Say in words what a user should not miss, however quiet the run was."""
    remarks = [
        f"{e['what']}: {e.get('why')}" for e in events if e.get("what") in ("model", "model.init", "data", "privacy")
    ]
    without = {event.get("round") for event in events if event["event"] == "no_update"}
    rounds = [event for event in events if event["event"] == "round" and event.get("loss_train") is None]
    if lost := sum(event["round"] in without for event in rounds):
        remarks.append(f"in {lost} of the rounds no update arrived, and the model stayed as it was")
    broken = [len(e.get("clients", ())) for e in events if e["event"] == "dropped" and e.get("why") == "not finite"]
    if broken:
        remarks.append(
            f"{sum(broken)} reports were dropped because training was not finite; try train.lr={smaller(lr):g}"
        )
    remarks += [*_left_out(events), *_doubts(events)]
    scheduled = [event for event in events if event["event"] == "schedule"]
    if left_out := sum(event.get("lost", 0) for event in scheduled):
        entries = sum(event.get("entries", 0) for event in scheduled)
        why = "; ".join(dict.fromkeys(str(event.get("why")) for event in events if event["event"] == "batch_left_out"))
        share = f"{left_out:,} of {entries:,} scheduled samples ({left_out / max(entries, left_out):.1%})"
        remarks.append(f"{share} were not trained on: {why}")
    return remarks


def _left_out(events: list[dict[str, Any]]) -> list[str]:
    """Name the sites that were left out more than once, in how many rounds, and why the last time."""
    rounds, whys = defaultdict[str, set[int]](set), dict[str, Any]()
    for event in events:
        if event["event"] == "site_refused" and event.get("round"):
            rounds[event["site"]].add(event["round"])
            whys[event["site"]] = event.get("why")
        elif event["event"] == "round":
            for site in event.get("refused", ()):
                rounds[site].add(event["round"])
    return [
        f"site {site} was left out in {len(told)} rounds: {whys[site]}"
        for site, told in sorted(rounds.items())
        if site in whys and len(told) > 1
    ]


def _doubts(events: list[dict[str, Any]]) -> list[str]:
    """Name clients whose reports were far out of proportion, and rounds that somebody spoiled."""
    remarks, long, claimed = [], Counter[Any](), Counter[Any]()
    for event in events:
        if event["event"] in ("clipped", "samples_overstated"):
            named = event.get("sites", event["clients"])
            far = [number > FAR * event["to"] for number in event.get("lengths", event.get("said", ()))]
            (long if event["event"] == "clipped" else claimed).update(compress(named, far))
    if long:
        who = ", ".join(f"{name} ({times} times)" for name, times in long.items())
        remarks.append(f"updates were more than {FAR} times as long as the median, and were shortened: {who}")
    if claimed:
        who = ", ".join(f"{name} ({times} times)" for name, times in claimed.items())
        remarks.append(f"sites claimed many times the samples that they have: {who}")
    if poisoned := sum(event["event"] == "poisoned_sum" for event in events):
        remarks.append(f"{poisoned} masked sums were too long and not used: a site lies, and nobody can say which")
    return remarks
