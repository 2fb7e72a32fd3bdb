"""Conformance of server-side parts, samplers and partitions: each is checked in small real runs."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fedstrata.config.completion import make
from fedstrata.core.contract import expect_model, expect_sums
from fedstrata.core.errors import RequestError
from fedstrata.core.flat_model import FlatModel
from fedstrata.core.messages import Report, Sums, weighted_sum
from fedstrata.core.part import Part
from fedstrata.core.part_class import misspelt, why_unfit
from fedstrata.core.rng import Streams
from fedstrata.core.sampler import Sampler
from fedstrata.core.server_parts import Combiner, Driver, Schedule, Selector, ServerStep
from fedstrata.core.steps import Ask
from fedstrata.data.partitions.base import Labelled, Partition
from fedstrata.methods.schedules.none import Unscheduled
from fedstrata.runs.extension import depends_on_rounds
from fedstrata.runs.session import Session
from fedstrata.testing.reads import DeclaringEngine
from fedstrata.testing.selectors import SELECTORS, FullAsks
from fedstrata.testing.tiny import alike, play, same, session_of

ROUNDS = 3  # two before a run is cut, and one after


def check_selector(selector: Selector) -> None:
    """Check that a selector is fair play: unique eligible ids, deterministic, resumable, robust to missing replies.

    Parameters
    ----------
    selector
        An object of a part of your own.

    Raises
    ------
    AssertionError
        With what is wrong.

    Examples
    --------
    >>> import fedstrata
    >>> fedstrata.check_selector(fedstrata.make_part("selectors", "size"))
    >>> from dataclasses import dataclass
    >>> import random
    >>> @dataclass(frozen=True)
    ... class Careless(fedstrata.Selector):
    ...     '''Draws from a global generator, and not from view.rng("select").'''
    ...
    ...     def select(self, state, view):
    ...         return random.sample(view.eligible.tolist(), view.k)
    >>> fedstrata.check_selector(Careless())
    Traceback (most recent call last):
    ...
    AssertionError: the same run twice gave different outcomes
    """
    check_part(selector)
    overrides = {"method.selector": selector}
    work = check_run(overrides)
    for stragglers in (0.0, 0.5):
        _, rounds = play(session_of(overrides | {"system.stragglers.rate": stragglers}), ROUNDS)
        for outcomes in rounds:
            trained = [o for o in outcomes if o.step.combine and o.step.asks]
            assert trained, "no client was selected although some are eligible"
            for outcome in trained:
                ids = [a.client for a in outcome.step.asks]
                assert len(set(ids)) == len(ids), f"a client was selected twice: {ids}"
                assert set(ids) <= set(work.client_info.holders.tolist()), f"not all of {ids} are eligible"
    _, rounds = play(session_of(overrides | {"train.clients_per_round": "all"}), ROUNDS)
    assert all(len(o.step.asks) <= 6 for outcomes in rounds for o in outcomes), "more clients selected than there are"


def check_driver(driver: Driver, schedule: str | Schedule = "none") -> None:
    """Check that a driver's rounds end, are deterministic and resumable, and survive missing replies.

    It must get along with selectors that answer in every way a selector may: with ids, with asks that hold weights and
    configs, after probing, with more clients than are wanted and with fewer.

    Parameters
    ----------
    driver
        An object of a part of your own.
    schedule
        A schedule of labels that it is to follow: an object or a name.

    Raises
    ------
    AssertionError
        With what is wrong.

    Examples
    --------
    >>> import fedstrata
    >>> fedstrata.check_driver(fedstrata.make_part("drivers", "chain"))
    """
    check_part(driver)
    overrides = {"method.driver": driver, "method.schedule": schedule}
    check_run(overrides)
    state, _ = play(session_of(overrides | {"system.stragglers.rate": 1.0}), ROUNDS)
    assert torch.isfinite(state.model.params).all()
    for selector in SELECTORS:
        try:
            work = session_of(overrides | {"method.selector": selector, "system.stragglers.rate": 0.3})
        except RequestError:  # it may refuse selectors beside it, before a run begins
            continue
        state, rounds = play(work)
        name = type(driver).__name__
        assert torch.isfinite(state.model.params).all(), f"{name} with {selector}: the model is not finite"
        for ask in [a for outcomes in rounds for o in outcomes if o.step.combine for a in o.step.asks]:
            _check_passed_on(name, ask, FullAsks.ask(ask.client) if isinstance(selector, FullAsks) else ask)


def _check_passed_on(driver: str, asked: Ask, selected: Ask) -> None:
    """Check that a driver, which may add to what a selector asks for, loses nothing of it."""
    numbers = asked.weight, asked.chance
    kept = numbers == (selected.weight, selected.chance) and selected.config.items() <= asked.config.items()
    assert kept, (
        f"{driver} asks {asked}, where the selector gave {selected}; pass the `Ask`s of `select` on, "
        "or change them with `dataclasses.replace`"
    )


def check_schedule(schedule: Schedule) -> None:
    """Check that a schedule can be followed, and that playing many steps as one changes neither model nor account.

    Parameters
    ----------
    schedule
        An object of a part of your own.

    Raises
    ------
    AssertionError
        With what is wrong.

    Examples
    --------
    >>> import fedstrata
    >>> fedstrata.check_schedule(fedstrata.Stratified(each=1))
    """
    check_part(schedule)
    if isinstance(schedule, Unscheduled):
        return
    name = type(schedule).__name__
    assert schedule.sampler is not None, f"{name} gives no `sampler`, so nothing follows it; derive it from Stratified"
    refused: list[RequestError] = []
    for driver in ("chain", "sync"):
        overrides = {"method.driver": driver, "method.schedule": schedule}
        try:
            session_of(overrides)
        except RequestError as reason:  # options may be for single samples, or for batches
            refused.append(reason)
            continue
        check_driver(make("drivers", {"kind": driver}, "method.driver"), schedule)
        single, _ = play(session_of({**overrides, "engine.execution": "messages"}), ROUNDS)
        as_one, _ = play(session_of({**overrides, "engine.execution": "fused"}), ROUNDS)
        gap = float((single.model.params - as_one.model.params).abs().max())
        assert gap < 1e-9, f"played as one, the model is off by {gap:.2g}"
        assert single.traffic == as_one.traffic, f"by messages {single.traffic}, played as one {as_one.traffic}"
        assert single.participation.tolist() == as_one.participation.tolist(), "clients took part differently often"
    if len(refused) == 2:
        raise refused[0]


def check_sampler(sampler: Sampler) -> None:
    """Check that a sampler's orders are in range and within its width, and that it is deterministic.

    Parameters
    ----------
    sampler
        An object of a part of your own.

    Raises
    ------
    AssertionError
        With what is wrong.

    Examples
    --------
    >>> import fedstrata
    >>> fedstrata.check_sampler(fedstrata.make_part("samplers", "full-batch"))
    """
    check_part(sampler)
    work = session_of({"method.sampler": sampler})

    @dataclasses.dataclass(frozen=True)
    class Watched(type(sampler)):  # type: ignore[misc]
        def plan(self, context: Any) -> Any:
            order, samples = super().plan(context), context.client.samples
            width = sampler.width(work.plan.local.batch_size, samples, context.client.speed)
            assert order.batch_size >= 1, f"batch size {order.batch_size}"
            for epoch in order.epochs:
                assert len(epoch) == 0 or (epoch.min() >= 0 and epoch.max() < samples), "a position is out of range"
                assert min(order.batch_size, len(epoch)) <= width, f"a batch is wider than the declared {width}"
            return order

    local = dataclasses.replace(work.plan.local, sampler=Watched(**vars(sampler)))
    play(dataclasses.replace(work, plan=dataclasses.replace(work.plan, local=local)))
    check_run({"method.sampler": sampler})


def check_combiner(combiner: Combiner) -> None:
    """Check that equal updates combine to that update, and that a run is deterministic and resumable.

    Parameters
    ----------
    combiner
        An object of a part of your own.

    Raises
    ------
    AssertionError
        With what is wrong.

    Examples
    --------
    >>> import fedstrata
    >>> fedstrata.check_combiner(fedstrata.make_part("combiners", "uniform"))
    """
    check_part(combiner)
    work = check_run({"method.combiner": combiner})
    state = work.initial_state()
    view = work.plan.view(work.client_info, 0, lambda *_, **__: None)
    sums = combiner.combine(combiner.init(view), view, state.model, _Equal(work.plan.space.P))
    gap = float((expect_sums(combiner, sums, work.plan.space).total["update"] - 1).abs().max())
    name = type(combiner).__name__
    assert gap < 1e-9, f"{name}: three clients sent the same update, the combination is off by {gap:.2g}"


def check_server_step(server_step: ServerStep) -> None:
    """Check a server step: deterministic, resumable, and it makes a new model.

    Parameters
    ----------
    server_step
        An object of a part of your own.

    Raises
    ------
    AssertionError
        With what is wrong.

    Examples
    --------
    >>> import fedstrata
    >>> fedstrata.check_server_step(fedstrata.make_part("server_steps", "sgd", momentum=0.9))
    """
    check_part(server_step)
    work = check_run({"method.server_step": server_step})
    model = work.initial_state().model
    view = work.plan.view(work.client_info, 0, lambda *_, **__: None)
    before, equal = model.params.clone(), _Equal(work.plan.space.P)
    sums = dataclasses.replace(equal.sum(np.full(3, 1 / 3)), reports=tuple(equal.reports))
    proposal = FlatModel(model.params + sums.total["update"], model.buffers)
    stepped = server_step.step(server_step.init(view, model), view, model, proposal, sums)
    expect_model(server_step, "step", stepped, model)
    assert torch.equal(model.params, before), f"{type(server_step).__name__}: `step` changes `model`; give a new Model"


def check_partition(partition: Partition) -> None:
    """Check that a partition ends, deals each sample to at most one client, and is deterministic.

    Parameters
    ----------
    partition
        An object of a part of your own.

    Raises
    ------
    AssertionError
        With what is wrong.

    Examples
    --------
    >>> import fedstrata
    >>> fedstrata.check_partition(fedstrata.make_part("partitions", "shards"))
    """
    check_part(partition)
    rng = np.random.default_rng(0)
    train, test = (Labelled(rng.integers(0, 5, n), rng.integers(0, 20, n).astype(str)) for n in (400, 200))
    for clients in (None, 1, 5, 20, 400):
        try:
            deals = [partition.deal(train, test, clients, Streams(3)("partition")) for _ in range(2)]
        except RequestError:  # it may refuse what is impossible, but not everything
            assert clients != 20, "20 clients with 20 samples each were refused"
            continue
        for parts, size in ((deals[0].train, len(train)), (deals[0].test, len(test))):
            rows = np.concatenate(parts)
            assert clients in (None, len(parts)), f"{len(parts)} parts for {clients} clients"
            assert len(np.unique(rows)) == len(rows), "a sample was dealt twice"
            assert rows.size == 0 or (rows.min() >= 0 and rows.max() < size), "a position is out of range"
        assert all(map(np.array_equal, deals[0].train, deals[1].train)), "the same stream gave another deal"


def check_part(part: Part) -> None:
    """Check what every part has in common."""
    assert not isinstance(part, type), f"{part.__name__} is a class; give an object of it: {part.__name__}()"
    kind = type(part)
    assert isinstance(part, Part), f"{kind.__name__} is no part; derive it from the class of its stage"
    assert dataclasses.is_dataclass(part), f"{kind.__name__} must be a dataclass"
    assert (why := why_unfit(kind)) is None, why
    for name, hook in misspelt(kind).items():
        raise AssertionError(
            f"{kind.__name__}: nothing calls `{name}`; did you mean `{hook}`? "
            f"If it is a helper of your own, call it `_{name}`"
        )
    assert kind.__doc__, f"{kind.__name__} needs a docstring: its first line is what users see"
    assert part == type(part)(**{f.name: getattr(part, f.name) for f in dataclasses.fields(part)})


def check_run(overrides: Mapping[str, Any]) -> Session:
    """Run twice, with a cut in the middle, behind bytes, with lost reports, and as the beginning of a longer run."""
    # What plays steps as one differs in the last bit; batches of 8 leave tails, of one sample too, in few steps.
    overrides = {"engine.execution": "messages", "train.batch_size": 8, **overrides}
    whole, outcomes = play(session_of(overrides), ROUNDS)
    assert torch.isfinite(whole.model.params).all(), "the model is not finite"
    assert alike(outcomes, play(session_of(overrides), ROUNDS)[1]), "the same run twice gave different outcomes"
    assert same(whole, play(session_of(overrides), ROUNDS, cut=2)[0]), "a resumed run differs from the whole one"
    behind_bytes, _ = play(session_of(overrides), ROUNDS, lambda w: DeclaringEngine(w.plan.local, w.federation))
    assert same(whole, behind_bytes), "a run behind bytes differs: something is shared that no message carries"
    lossy = {**overrides, "system.stragglers.rate": 0.5}
    one, other = play(session_of(lossy), ROUNDS)[0], play(session_of(lossy), ROUNDS, cut=2)[0]
    assert same(one, other), "a resumed run with stragglers differs"
    longer = session_of({**overrides, "train.rounds": 3 * ROUNDS})
    if depends_on_rounds(longer.plan, session_of(overrides).plan.rounds, ROUNDS) is None:
        why = "a run of more rounds begins otherwise: what looks at their number says so (`plans_ahead`)"
        assert alike(outcomes, play(longer, ROUNDS)[1]), why
    return session_of(overrides)


class _Ones(defaultdict[str, float]):
    """Whatever a meter may have told: the same of every client."""

    def __missing__(self, key: str) -> float:
        return 1.0


class _Equal:
    """Three reports with the same update, of ones."""

    def __init__(self, size: int):
        self._size = size
        self.reports = [Report(i, n, 1, 1.0, 1.0, _Ones()) for i, n in enumerate((1, 2, 5))]
        self.weights, self.chances = np.ones(3), np.full(3, 0.5)

    def sum(self, weights: Any) -> Sums:
        whole = {r.client: r for r in self.each()}
        return weighted_sum(whole, dict(zip(whole, map(float, weights), strict=True)))

    def each(self) -> list[Report]:
        ones = torch.ones(self._size, dtype=torch.float64)
        return [dataclasses.replace(r, aggregated={"update": ones}) for r in self.reports]
