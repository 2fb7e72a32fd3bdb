"""Small runs for tests of corrections."""

from __future__ import annotations

from functools import partial

import torch
from quadratic import given_work, start

from fedstrata.runs.session import build_session
from fedstrata.runs.training import describe_experiment
from fedstrata.testing.tiny import TINY, in_process, tiny_federation

close = partial(torch.testing.assert_close, rtol=0)
EVERYBODY = {"train.clients_per_round": "all"}


def own_work(module, overrides, federation=None):
    """Prepare an experiment with a network of one's own on a tiny federation."""
    federation = federation or tiny_federation()
    usual = {key: value for key, value in TINY.items() if not key.startswith("model.")}
    return build_session(
        describe_experiment(None, None, {**usual, **overrides}, federation, module), federation, module
    )


def one_client(parts, overrides, n=2):
    """Let one of ten clients of n samples take a local step a sample; give the state, the engine and who it was."""
    alone = {"train.batch_size": 1, "train.lr": 0.1, "train.clients_per_round": 1, "method.combiner": "uniform"}
    work = given_work((n,) * 10, {"method.corrections": parts, **alone, **overrides})
    return work, start(work, 1.0, 1.0), in_process(work)
