"""MOON: the contrast of features, against the textbook."""

from __future__ import annotations

import copy
from collections import OrderedDict

import numpy as np
import pytest
import torch
from correcting import EVERYBODY, close, own_work
from quadratic import run_from
from torch import nn
from torch.nn.functional import cosine_similarity, cross_entropy

from fedstrata.client.trainer import Trainer
from fedstrata.core.errors import RequestError
from fedstrata.methods.corrections.moon import contrast
from fedstrata.server.loop import run_round
from fedstrata.testing.tiny import in_process, run_rounds, same, session_of, tiny_federation


def test_contrast_of_three_features():
    z, glob, prev = (torch.tensor([v], dtype=torch.float64) for v in ((1.0, 0.0), (1.0, 1.0), (0.0, 1.0)))
    assert contrast(z, glob, prev, 0.5).item() == pytest.approx(0.217622, abs=1e-6)


@pytest.mark.parametrize("nothing", ["z", "glob", "prev", "all"])
def test_features_without_length_have_cosine_zero_and_no_gradient(nothing):
    given = {"z": (3.0, 4.0), "glob": (1.0, 1.0), "prev": (0.0, 1.0)}
    zeros = given.keys() if nothing == "all" else {nothing}
    z, glob, prev = (
        torch.tensor([(0.0, 0.0) if name in zeros else value], dtype=torch.float64) for name, value in given.items()
    )
    z.requires_grad_()
    loss = contrast(z, glob, prev, 0.5)
    loss.sum().backward()
    cos = {"z": (0.0, 0.0), "glob": (0.0, 0.8), "prev": (7 / 5 / 2**0.5, 0.0), "all": (0.0, 0.0)}[nothing]
    assert loss.item() == pytest.approx(np.log1p(np.exp((cos[1] - cos[0]) / 0.5)), abs=1e-12)
    assert z.grad.abs().max() < 1
    if nothing in ("z", "all"):
        assert z.grad.tolist() == [[0.0, 0.0]]


def normed():
    torch.manual_seed(1)
    layers = OrderedDict(fc=nn.Linear(4, 6), norm=nn.BatchNorm1d(6), act=nn.Tanh(), head=nn.Linear(6, 3))
    return nn.Sequential(layers)


def test_moon_is_off_at_a_clients_first_update_and_on_at_its_second():
    asked = {"method.name": "moon", "method.corrections.0.mu": 5.0, **EVERYBODY}
    first, second = ([run_rounds(session_of({**EVERYBODY, **o}), rounds)[0] for o in ({}, asked)] for rounds in (1, 2))
    assert same(*first)
    assert not same(*second)


def test_moon_keeps_the_model_that_a_client_update_ends_with():
    work = own_work(normed(), {"method.name": "moon", **EVERYBODY})
    engine = in_process(work)
    received = work.initial_state().model
    updates = []
    ask = engine.ask
    engine.ask = lambda step, tasks: (ask(step, tasks), updates.append(engine.each()))[0]
    run_rounds(work, 1, lambda _: engine)
    for client, (_, client_state) in engine.client_states().items():
        sent = updates[0][client].aggregated
        close(client_state["moon/params"], received.params + sent["update"], atol=1e-15)
        close(client_state["moon/buffers"], received.buffers + sent["buffers"], atol=1e-15)


def test_moon_trains_like_the_textbook():
    """Cross-entropy + mu * l_con, in which the global and the last model see every batch in eval mode."""
    mu, temperature, rate, federation = 2.0, 0.7, 0.1, tiny_federation()
    asked = {"method.name": "moon", "method.corrections.0": {"kind": "moon", "mu": mu, "temperature": temperature}}
    work = own_work(normed(), {**asked, "train.clients_per_round": "all", "train.lr": rate, "train.batch_size": 4})
    engine, state = in_process(work), work.initial_state()
    run_from(work, state, engine)
    before, kept = copy.deepcopy(state.model), engine.client_states()[2][1]
    seen = []
    ask = engine.ask
    engine.ask = lambda step, tasks: (ask(step, tasks), seen.append(engine.each()))[0]
    view = work.plan.view(work.client_info, 1, lambda *_, **__: None)
    run_round(work.plan, state, view, engine)

    def bound(params, buffers):
        module = normed().double()
        work.plan.space.bind(module, params.clone(), buffers.clone())
        return module

    glob, prev = (
        bound(*m).eval() for m in ((before.params, before.buffers), (kept["moon/params"], kept["moon/buffers"]))
    )
    local, rows, data = bound(before.params, before.buffers), federation.train_split[2], federation.train
    optimizer = torch.optim.SGD(local.parameters(), lr=rate)
    for epoch in range(2):
        order = work.plan.streams(f"epoch-{epoch}", round=1, client=2).permutation(len(rows))
        for batch in (rows[order][i : i + 4] for i in range(0, len(rows), 4)):
            if len(batch) == 1:
                continue  # one sample has no variance
            x = data.x[batch].double()
            z = local[:3](x)
            with torch.no_grad():
                z_glob, z_prev = glob[:3](x), prev[:3](x)
            near, far = (torch.exp(cosine_similarity(z, other) / temperature) for other in (z_glob, z_prev))
            contrastive = -torch.log(near / (near + far)).mean()
            optimizer.zero_grad()
            (cross_entropy(local.head(z), data.y[batch]) + mu * contrastive).backward()
            optimizer.step()
    by_hand = nn.utils.parameters_to_vector(local.parameters()).detach() - before.params
    close(seen[0][2].aggregated["update"], by_hand, atol=1e-12)


def test_moon_of_a_straggler_keeps_its_last_model():
    work = session_of({"method.name": "moon", "system.stragglers.rate": 0.5, **EVERYBODY})
    engine, state = in_process(work), work.initial_state()
    ((first,),) = run_from(work, state, engine)
    kept = {client: client_state["moon/params"].clone() for client, (_, client_state) in engine.client_states().items()}
    assert sorted(kept) == [r.client for r in first.reports]
    view = work.plan.view(work.client_info, 1, lambda *_, **__: None)
    (second,) = run_round(work.plan, state, view, engine)
    for client, (_, client_state) in engine.client_states().items():
        arrived = client in [r.client for r in second.reports]
        assert arrived != (client in kept and torch.equal(client_state["moon/params"], kept[client]))


def test_moon_is_refused_where_nothing_comes_before_the_last_layer():
    bare = nn.Sequential(OrderedDict(flat=nn.Flatten(), head=nn.Linear(4, 3)))
    with pytest.raises(RequestError, match=r"\(moon\) does not fit this plan: .* no layer before its last one"):
        own_work(bare, {"method.name": "moon"})


def test_moons_features_are_those_of_the_projection():
    work = session_of({"method.name": "moon", "model.projection": 7})
    data = work.federation.train
    features, _ = Trainer(work.plan.local, data.x, data.y, 17).network(data.x[:2].double())
    assert features.shape == (2, 7)
    assert run_rounds(work)[0].model.params.isfinite().all()
