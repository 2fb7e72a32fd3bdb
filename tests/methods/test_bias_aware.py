"""FedBSS: which samples are ranked biased, when they are trained on, and where that is FedAvg."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedstrata.client.probe import Probe
from fedstrata.client.trainer import Trainer
from fedstrata.core.client_context import SampleScores
from fedstrata.core.errors import RequestError
from fedstrata.core.messages import Task
from fedstrata.core.options import in_rounds
from fedstrata.core.rng import Streams
from fedstrata.data.federation import Federation
from fedstrata.engines.local.engine import InProcessPool
from fedstrata.methods.samplers.bias_aware import BiasAware, share, split_by_bias, uncertainty
from fedstrata.methods.samplers.shuffle import Shuffle
from fedstrata.runs.session import build_session
from fedstrata.runs.training import describe_experiment
from fedstrata.testing.tiny import run_rounds, same, session_of, tiny_federation

PROBABILITIES = np.array(
    [(0.9, 0.05, 0.05), (0.6, 0.3, 0.1), (0.4, 0.35, 0.25), (0.2, 0.7, 0.1), (0.05, 0.9, 0.05)]
)  # of five samples whose label is the first
SEEN = SampleScores(-np.log(PROBABILITIES[:, 0]), PROBABILITIES)
ALL = {"train.clients_per_round": "all"}
UNIFORM = {"method.combiner": "uniform", **ALL}


def context_of(seen, epochs, round=0, rounds=1, batch_size=2, speed=1.0):
    """Return the context of a client whose samples the received model sees like this.

    `looks` counts how often it did.
    """
    looks = []
    client = SimpleNamespace(samples=len(seen.losses), speed=speed)
    return SimpleNamespace(
        client=client,
        task=SimpleNamespace(round=round),
        rounds=rounds,
        epochs=epochs,
        batch_size=batch_size,
        looks=looks,
        score_samples=lambda: looks.append(1) or seen,
        rng=Streams(3),
    )


def sets_of(sampler, seen, epochs, **more):
    """Return the samples of each epoch, in order."""
    return [np.sort(e).tolist() for e in sampler.plan(context_of(seen, epochs, **more)).epochs]


def seen_of(losses, unsure):
    """Return samples of known losses and uncertainties."""
    most = (2 - np.array(unsure, dtype=float)) / 2  # of two labels: 1 - (p - (1 - p)) = 2 - 2p
    return SampleScores(np.array(losses, dtype=float), np.stack([most, 1 - most], 1))


# ---- ranking ---------------------------------------------------------------------------------------------------------


def test_cut_of_five_samples():
    assert SEEN.losses == pytest.approx([0.105361, 0.510826, 0.916291, 1.609438, 2.995732], abs=1e-6)
    assert uncertainty(PROBABILITIES) == pytest.approx([0.15, 0.5, 0.85, 0.4, 0.15])
    unbiased, biased, cut = split_by_bias(SEEN)
    assert unbiased.tolist() == [0, 1, 2]
    assert biased.tolist() == [3, 4]
    assert cut == pytest.approx(0.916291, abs=1e-6)


def test_the_order_of_the_samples_does_not_matter():
    order = np.array([4, 2, 0, 3, 1])
    unbiased, biased, cut = split_by_bias(SampleScores(SEEN.losses[order], SEEN.probabilities[order]))
    assert sorted(order[unbiased]) == [0, 1, 2]
    assert order[biased].tolist() == [3, 4]  # by rising loss
    assert cut == SEEN.losses[2]


@pytest.mark.parametrize(
    ("losses", "unsure", "unbiased", "biased"),
    [
        ((3, 1, 2, 4), (0.8, 0.1, 0.8, 0.2), [1, 2], [0, 3]),  # of two equally uncertain, the lower loss
        ((1, 2, 2, 2), (0.1, 0.9, 0.2, 0.3), [0, 1, 2, 3], []),  # as large as the cut is not beyond it
        ((1, 2, 3, 4), (0.1, 0.2, 0.3, 0.4), [0, 1, 2, 3], []),  # least sure of the largest loss
        ((1, 2, 3, 4), (0.9, 0.2, 0.3, 0.4), [0], [1, 2, 3]),  # and of the smallest
        ((5,), (0.3,), [0], []),
        ((7, 7, 7), (1.0, 1.0, 1.0), [0, 1, 2], []),
    ],
)
def test_cuts_with_ties_and_at_either_end(losses, unsure, unbiased, biased):
    found = split_by_bias(seen_of(losses, unsure))
    assert np.sort(found[0]).tolist() == unbiased
    assert found[1].tolist() == biased


@pytest.mark.parametrize(
    ("least", "unbiased"), [(1, [2]), (2, [2, 0]), (3, [2, 0, 3]), (4, [2, 0, 3, 1]), (9, [2, 0, 3, 1])]
)
def test_a_guard_moves_the_smallest_losses_over(least, unbiased):
    losses, unsure = (2, 4, 1, 3), (0.1, 0.1, 0.9, 0.1)
    found = split_by_bias(seen_of(losses, unsure), least)
    assert found[0].tolist() == unbiased
    assert found[1].tolist() == [i for i in (2, 0, 3, 1) if i not in unbiased]


def test_a_guard_that_is_met_changes_nothing():
    assert split_by_bias(SEEN, least=3)[1].tolist() == [3, 4]
    assert split_by_bias(SEEN, least=4)[1].tolist() == [4]


# ---- growth ----------------------------------------------------------------------------------------------------------


def test_shares_of_biased_samples():
    ten = [0.0245, 0.0955, 0.2061, 0.3455, 0.5, 0.6545, 0.7939, 0.9045, 0.9755, 1.0]
    assert [share("cosine", e, 4) for e in (1, 2, 3, 4)] == pytest.approx([0.146447, 0.5, 0.853553, 1.0], abs=1e-6)
    assert [share("cosine", e, 10) for e in range(1, 11)] == pytest.approx(ten, abs=1e-4)
    assert [share("linear", e, 4) for e in (1, 2, 3, 4)] == [0.25, 0.5, 0.75, 1.0]
    assert [share("filter", e, 4) for e in (1, 2, 3, 4)] == [0.0] * 4


@pytest.mark.parametrize(
    ("growth", "sets"),
    [
        ("cosine", [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3, 4]]),
        ("linear", [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3, 4]]),
        ("filter", [[0, 1, 2]] * 4),
    ],
)
def test_samples_of_four_epochs(growth, sets):
    assert sets_of(BiasAware(warmup=0, growth=growth), SEEN, 4) == sets


@pytest.mark.parametrize("growth", ["cosine", "linear"])
@pytest.mark.parametrize("epochs", [1, 2, 3, 7, 10, 100])
def test_the_last_epoch_has_everything(growth, epochs):
    seen = seen_of(np.arange(20), [0.0, 1.0, *[0.0] * 18])
    sets = sets_of(BiasAware(warmup=0, growth=growth), seen, epochs)
    assert sets[-1] == list(range(20))
    assert all(set(a) <= set(b) for a, b in pairwise(sets))
    assert all({0, 1} <= set(s) for s in sets)


def test_a_share_that_is_a_whole_number_is_not_rounded_down():
    """.29 * 100 is 28.999999999999996 in double precision."""
    seen = seen_of(np.arange(101), [1.0, *[0.0] * 100])
    sets = sets_of(BiasAware(warmup=0, growth="linear"), seen, 100)
    assert [len(s) for s in sets] == [1 + e for e in range(1, 101)]


def test_smallest_losses_come_first():
    seen = seen_of((9, 1, 5, 3, 7), (0.0, 0.9, 0.0, 0.0, 0.0))
    assert sets_of(BiasAware(warmup=0, growth="linear"), seen, 4) == [[1, 3], [1, 2, 3], [1, 2, 3, 4], [0, 1, 2, 3, 4]]


def test_every_epoch_is_shuffled_with_its_own_stream_from_sorted_samples():
    order = BiasAware(warmup=0).plan(context_of(SEEN, 4))
    for e, positions in enumerate(([0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3, 4])):
        shuffled = np.array(positions)[Streams(3)(f"epoch-{e}").permutation(len(positions))]
        assert order.epochs[e].tolist() == shuffled.tolist()


def test_samples_are_ranked_once_a_client_update():
    context = context_of(SEEN, 10)
    BiasAware(warmup=0).plan(context)
    assert len(context.looks) == 1


# ---- warm-up ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("warmup", "rounds", "first"),
    [(0, 4, 0), (2, 4, 2), (9, 4, 4), (0.25, 200, 50), (0.5, 4, 2), (0.29, 100, 29), (0.1, 4, 0)],
)
def test_warm_up_in_rounds_or_as_a_share_of_them(warmup, rounds, first):
    assert min(in_rounds(warmup, rounds), rounds) == first
    sampler = BiasAware(warmup=warmup, growth="filter")
    for round in range(rounds):
        context = context_of(SEEN, 1, round, rounds)
        order = sampler.plan(context)
        ranked = round >= first
        assert len(context.looks) == ranked
        assert len(order.epochs[0]) == (3 if ranked else 5)
        assert ("cut" in order.metrics) == ranked


def test_warm_up_rounds_are_fedavg_and_the_next_is_not():
    bss, avg = {"method.name": "fedbss", "method.sampler.warmup": 2, **ALL}, UNIFORM
    assert same(run_rounds(session_of(bss), 2)[0], run_rounds(session_of(avg), 2)[0])
    assert not same(run_rounds(session_of(bss), 3)[0], run_rounds(session_of(avg), 3)[0])


@pytest.mark.parametrize("warmup", [-1, 1.0, 1.5, -0.5, "half"])
def test_strange_warm_ups_are_refused(warmup):
    with pytest.raises(RequestError, match="warmup"):
        session_of({"method.name": "fedbss", "method.sampler.warmup": warmup})


# ---- where it is FedAvg ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp64", "fp32"])
@pytest.mark.parametrize("growth", ["cosine", "linear"])
def test_with_one_epoch_it_is_fedavg_bit_for_bit(growth, precision):
    asked = {"train.epochs": 1, "engine.precision": precision}
    sampler = {"method.sampler": {"kind": "bias-aware", "warmup": 0, "growth": growth}}
    assert same(
        run_rounds(session_of({**UNIFORM, **asked, **sampler}))[0], run_rounds(session_of({**UNIFORM, **asked}))[0]
    )


def flat(zero):
    """Return a network that starts without any preference, or with one."""
    torch.manual_seed(2)
    module = nn.Sequential(OrderedDict(fc=nn.Linear(4, 5), drop=nn.Dropout(0.3), head=nn.Linear(5, 3)))
    if zero:
        nn.init.zeros_(module.head.weight)
        nn.init.zeros_(module.head.bias)
    return module


@pytest.mark.parametrize("growth", ["cosine", "linear", "filter"])
@pytest.mark.parametrize("zero", [True, False])
def test_where_every_sample_is_unbiased_it_is_fedavg_bit_for_bit(zero, growth):
    """A model without any preference is equally unsure of all samples, and equally wrong: none is beyond the cut."""
    federation, module, states = tiny_federation(), flat(zero), []
    for sampler in ("shuffle", {"kind": "bias-aware", "warmup": 0, "growth": growth}):
        asked = {"method.sampler": sampler, "train.epochs": 3, "train.batch_size": 4, **UNIFORM}
        work = build_session(describe_experiment(None, None, asked, federation, module), federation, module)
        states.append(run_rounds(work, 1)[0])
    assert same(*states) == zero


def test_a_guard_larger_than_any_client_is_fedavg_bit_for_bit():
    protect_engine = {"method.sampler": {"kind": "bias-aware", "warmup": 0, "min_unbiased": 99}}
    assert same(run_rounds(session_of({**UNIFORM, **protect_engine}))[0], run_rounds(session_of(UNIFORM))[0])


def test_the_recipe_averages_plainly_and_warms_up_for_a_quarter():
    plan = session_of({"method.name": "fedbss"}).plan
    assert plan.local.sampler == BiasAware(warmup=0.25, growth="cosine", min_unbiased=1)
    assert type(plan.combiner).__name__ == "Uniform"


# ---- in the loop -----------------------------------------------------------------------------------------------------


def in_the_loop(**options):
    """Run FedBSS from the start; give the work and, by client, the report of the first round."""
    sampler = {f"method.sampler.{key}": value for key, value in {"warmup": 0, **options}.items()}
    work = session_of({"method.name": "fedbss", **sampler, **ALL})
    ((outcome,),) = run_rounds(work, 1)[1]
    return work, {r.client: r for r in outcome.reports}


def by_hand(work, client):
    """Return losses and probabilities of a client's samples under the first model."""
    module, data = work.plan.local.build().double().eval(), work.federation.train
    rows = torch.from_numpy(work.federation.train_split[client])
    with torch.no_grad():
        logits = module(data.x[rows].double())
    return cross_entropy(logits, data.y[rows], reduction="none").numpy(), logits.softmax(1).numpy()


def test_cut_and_share_of_biased_samples_are_told():
    work, reports = in_the_loop()
    for client, report in reports.items():
        losses, p = by_hand(work, client)
        cut = losses[np.argmax(1 - (p.max(1) - p.min(1)))]
        assert set(report.metrics) == {"cut", "biased"}
        assert report.metrics["cut"] == pytest.approx(cut, abs=1e-12)
        assert report.metrics["biased"] == pytest.approx((losses > cut + 1e-12).mean())
    assert len({r.metrics["biased"] for r in reports.values()}) > 2
    assert 0 < np.mean([r.metrics["biased"] for r in reports.values()]) < 1


def test_biased_samples_are_named_only_if_asked():
    work, reports = in_the_loop(follow=True)
    for client, report in reports.items():
        losses, p = by_hand(work, client)
        cut = losses[np.argmax(1 - (p.max(1) - p.min(1)))]
        biased = np.flatnonzero(losses > cut + 1e-12)
        assert report.metrics["biased_samples"] == tuple(biased[np.argsort(losses[biased])].tolist())
    plain = in_the_loop(follow=False)[1]
    assert [r.update_norm for r in reports.values()] == [r.update_norm for r in plain.values()]


def test_a_client_with_one_label_is_cut_too():
    work, reports = in_the_loop()
    assert len(np.unique(work.federation.client(0).labels)) == 1
    assert 0 <= reports[0].metrics["biased"] < 1


@pytest.mark.parametrize(("growth", "passes"), [("cosine", (0.5, 1.0)), ("linear", (0.5, 1.0)), ("filter", (0.0, 0.0))])
def test_ranking_costs_one_forward_pass(growth, passes):
    """Two epochs; forward alone is a third of forward and back."""
    work, reports = in_the_loop(growth=growth)
    for client, report in reports.items():
        n = int(work.federation.train_split.sizes[client])
        biased = round(report.metrics["biased"] * n)
        trained = sum(n - biased + int(a * biased) for a in passes)
        assert report.work == pytest.approx(trained + n / 3)


def test_ranks_are_taken_in_eval_mode_without_augmentation(monkeypatch):
    """With dropout, batch norm, crops and flips, the samples are still seen as the model in eval mode sees them."""
    seen = {}
    score_samples = Probe.score_samples
    monkeypatch.setattr(
        Probe, "score_samples", lambda look, *a: seen.setdefault(len((told := score_samples(look, *a))[0]), told)
    )
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 1, 6, 6)).astype(np.float32), np.arange(40) % 3
    federation = Federation.from_arrays(x, y, [np.arange(25), np.arange(25, 40)], test=(x[:3], y[:3]))
    torch.manual_seed(0)
    layers = OrderedDict(
        conv=nn.Conv2d(1, 4, 3), norm=nn.BatchNorm2d(4), act=nn.ReLU(), drop=nn.Dropout(0.5), flat=nn.Flatten()
    )
    module = nn.Sequential(layers | {"head": nn.Linear(64, 3)})
    asked = {"method.name": "fedbss", "method.sampler.warmup": 0, "train.augment": {"crop": 2, "flip": True}, **ALL}
    work = build_session(
        describe_experiment(None, None, {**asked, "engine.precision": "fp64"}, federation, module), federation, module
    )
    run_rounds(work, 1)
    for client, samples in enumerate((25, 15)):
        losses, probabilities = seen.pop(samples)
        expected = by_hand(work, client)
        assert losses == pytest.approx(expected[0], abs=1e-12)
        assert probabilities == pytest.approx(expected[1], abs=1e-12)
    assert not seen


def test_epochs_asked_of_a_slow_client_grow_to_everything_too():
    """A straggler that is asked for one epoch of two trains on everything, like FedAvg's."""
    slow = {"system.stragglers": {"rate": 1.0, "mode": "partial"}}
    work = session_of({"method.name": "fedbss", "method.sampler.warmup": 0, "train.epochs": 3, **slow, **ALL})
    _, rounds = run_rounds(work)
    asked = [(a.config["epochs"], r) for (o,) in rounds for a, r in zip(o.step.asks, o.reports, strict=True)]
    assert {epochs for epochs, _ in asked} == {1, 2, 3}
    sizes = work.federation.train_split.sizes
    for epochs, report in asked:
        if epochs == 1:
            assert report.work == pytest.approx(sizes[report.client] * 4 / 3)


# ---- batches by capacity ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sampler", [Shuffle(batch="capacity"), BiasAware(batch="capacity", warmup=0)], ids=["shuffle", "bias-aware"]
)
@pytest.mark.parametrize(
    ("n", "nominal", "speed", "batch"),
    [
        (100, 64, 1.0, 64),
        (100, 64, 0.5, 32),
        (100, 64, 0.3, 19),  # 19.2
        (100, 64, 0.1, 8),  # 6.4: no less than 8
        (100, 64, 2.0, 100),  # no more than there are
        (5, 64, 0.1, 5),
        (1, 64, 1.0, 1),
        (100, 100, 0.29, 29),  # 28.999999999999996
        (100, 4, 1.0, 8),
    ],
)
def test_batches_as_large_as_a_device_can_take(sampler, n, nominal, speed, batch):
    context = context_of(seen_of(np.arange(n), np.arange(n) / n), 2, batch_size=nominal, speed=speed)
    order = sampler.plan(context)
    assert min(order.batch_size, n) == batch == sampler.width(nominal, n, speed)


def test_the_smallest_batch_is_an_option_and_speeds_do_not_matter_to_fixed_batches():
    context = context_of(seen_of(np.arange(50), np.zeros(50)), 1, batch_size=64, speed=0.1)
    assert Shuffle(batch="capacity", least=3).plan(context).batch_size == 6
    assert Shuffle(batch="capacity", least=20).plan(context).batch_size == 20
    assert Shuffle().plan(context).batch_size == 64


def test_a_trainer_is_wide_enough_for_the_fastest_device():
    federation = replace(tiny_federation(), speeds=np.array([1.0, 0.1, 3.0, 1.0, 1.0, 1.0]))
    work = session_of({"method.sampler": {"kind": "shuffle", "batch": "capacity", "least": 2}, **ALL}, federation)
    ((outcome,),) = run_rounds(work, 1)[1]
    sizes = federation.train_split.sizes
    batches = np.minimum(sizes, [4, 2, 12, 4, 4, 4])
    assert [r.steps for r in outcome.reports] == (2 * -(-sizes // batches)).tolist()


def test_devices_of_equal_speed_make_batches_by_capacity_plain_ones():
    by_capacity = {"method.sampler": {"kind": "shuffle", "batch": "capacity", "least": 1}}
    assert same(run_rounds(session_of(by_capacity))[0], run_rounds(session_of())[0])


def test_a_trainer_of_its_own_gives_the_same_update():
    """A site knows only its own speed; its trainer is as wide as that asks for."""
    federation = replace(tiny_federation(), speeds=np.array([1.0, 0.1, 3.0, 1.0, 1.0, 1.0]))
    work = session_of({"method.name": "fedbss", "method.sampler.batch": "capacity", **ALL}, federation)
    client, task = federation.client(2), Task(2, 3, 0, down=work.initial_state().model.wire())
    own = Trainer(work.plan.local, federation.train.x, federation.train.y, client.samples, fastest=client.speed)
    ((shared, _),) = InProcessPool(work.plan.local, federation).work([task], {})
    assert torch.equal(own.run_task(client, task, {})[0].aggregated["update"], shared.aggregated["update"])
