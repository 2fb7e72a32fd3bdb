"""FedLC and FedRS: logits are corrected by the labels that a client holds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from correcting import EVERYBODY, close, own_work
from quadratic import f64
from torch import nn
from torch.nn.functional import cross_entropy

from fedstrata import RequestError
from fedstrata.core.client_context import Batch
from fedstrata.methods.corrections.fedlc import FedLc, margins
from fedstrata.methods.corrections.fedrs import FedRs, scales
from fedstrata.testing.tiny import in_process, run_rounds, session_of

Z, COUNTS = (2.0, 1.0, 1.0), (16, 1, 0)  # logits of a sample of label 1, at a client with so many of each label


def loss_under(part, slot, values):
    """Return the loss of one sample under a correction of logits."""
    own, y, weight = {slot: torch.from_numpy(values)}, torch.tensor([1]), f64(1.0)
    logits = part.edit_logits(own, None, torch.tensor([Z], dtype=torch.float64))
    each = cross_entropy(logits, y, reduction="none")
    extra = part.add_loss(own, None, Batch(None, y, weight, None, logits, each))
    return float((each * weight).sum() + (0.0 if extra is None else extra))


def test_fedlc_oracle():
    assert margins(np.array(COUNTS), 1.0) == pytest.approx([0.5, 1.0, 100.0])
    for part, expected in (
        (FedLc(), 1.701413),
        (FedLc(exclude_true=True), 1.5),
        (FedLc(temperature=0.0), 1.551445),
    ):
        lowered = margins(np.array(COUNTS), part.temperature)
        assert loss_under(part, "margin", lowered) == pytest.approx(expected, abs=1e-6)


def test_fedrs_oracle():
    assert scales(np.array(COUNTS), 0.5, soft=False).tolist() == [1.0, 1.0, 0.5]
    assert scales(np.array(COUNTS), 0.5, soft=True).tolist() == [1.0, 0.53125, 0.5]
    assert scales(np.array(COUNTS), 1.0, soft=False).tolist() == [1.0, 1.0, 1.0]
    hard = scales(np.array(COUNTS), 0.5, soft=False)
    assert loss_under(FedRs(), "scale", hard) == pytest.approx(1.464369, abs=1e-6)


def by_hand_loss(part, logits, y, counts):
    """Return the loss as the papers write it."""
    if isinstance(part, FedRs):
        share = counts / counts.sum()
        held = share / share.max() if part.soft else (share > 0).double()
        return cross_entropy(logits * ((1 - part.alpha) * held + part.alpha), y)
    calibrated = logits - part.temperature * counts.clamp(min=1e-8) ** -0.25
    if not part.exclude_true:
        return cross_entropy(calibrated, y)
    true = calibrated.gather(1, y[:, None])[:, 0]
    others = [calibrated[i][torch.arange(3) != label].exp().sum().log() for i, label in enumerate(y)]
    return (torch.stack(others) - true).mean()


@pytest.mark.parametrize(
    "part",
    [FedLc(), FedLc(temperature=0.3, exclude_true=True), FedRs(alpha=0.3), FedRs(alpha=0.2, soft=True)],
    ids=str,
)
def test_logits_are_corrected_by_the_clients_own_labels(part):
    """One step on all samples, at every client, against autograd on the papers' formulas."""
    work = session_of({"method.corrections": [part], "method.sampler": "full-batch", **EVERYBODY})
    engine, data, space = in_process(work), work.federation.train, work.plan.space
    start_model = work.initial_state().model
    ask, sent = engine.ask, {}
    engine.ask = lambda step, tasks: (ask(step, tasks), sent.update(engine.each()))[0]
    run_rounds(work, 1, lambda _: engine)
    for client, report in sent.items():
        rows = torch.from_numpy(work.federation.train_split[client])
        module = work.plan.local.build().double()
        space.bind(module, start_model.params.clone(), start_model.buffers)
        y = data.y[rows]
        counts = torch.bincount(y, minlength=3).double()
        by_hand_loss(part, module(data.x[rows].double()), y, counts).backward()
        step = -0.1 * torch.cat([p.grad.flatten() for p in module.parameters()])
        close(report.aggregated["update"], step, atol=1e-12)


@pytest.mark.parametrize(("method", "moves"), [("fedlc", False), ("fedrs", True), ("fedavg", True)])
def test_fedlc_takes_missing_labels_out(method, moves):
    """Client 0 has one label; under FedLC the rows of the others in the last layer stay where they are."""
    work = session_of({"method.name": method, **EVERYBODY})
    engine, sent = in_process(work), {}
    ask = engine.ask
    engine.ask = lambda step, tasks: (ask(step, tasks), sent.update(engine.each()))[0]
    run_rounds(work, 1, lambda _: engine)
    of_others = work.plan.space.head_weight.start + torch.arange(5, 15)
    assert (sent[0].aggregated["update"][of_others].abs().max() > 1e-12) == moves


def test_the_head_of_fedrs_authors_has_no_bias():
    """All other weights start as they do with it."""
    plain, bare = (session_of({"method.name": "fedrs", "model.head_bias": bias}) for bias in (True, False))
    names = {segment.name for segment in bare.plan.space.params}
    assert names == {segment.name for segment in plain.plan.space.params} - {"head.bias"}
    ours, theirs = (dict(work.plan.local.build().named_parameters()) for work in (bare, plain))
    assert all(torch.equal(ours[name], theirs[name]) for name in names)
    assert run_rounds(bare)[0].model.params.isfinite().all()


def test_a_projection_may_end_without_a_bias():
    names = [s.name for s in session_of({"model.projection": 7, "model.head_bias": False}).plan.space.params]
    assert "head.second.bias" in names
    assert "head.last.weight" in names
    assert "head.last.bias" not in names


def test_a_bias_is_taken_from_models_by_name_only():
    with pytest.raises(RequestError, match=r"model\.head_bias cannot be set: the model was given"):
        own_work(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), {"model.head_bias": False})


def test_what_reads_the_bias_is_refused_where_there_is_none():
    with pytest.raises(RequestError, match="the head has none"):
        session_of({"method.selector": "hics", "model.head_bias": False})
