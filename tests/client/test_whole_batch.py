"""What looks at a batch as a whole is found out before batches are filled up."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedstrata.client.whole_batch import looks_at_whole_batch
from fedstrata.runs.session import build_session
from fedstrata.runs.training import describe_experiment
from fedstrata.testing.tiny import tiny_federation


class Centred(nn.Module):
    """Takes the mean of the batch away."""

    def forward(self, x):
        return x - x.mean(0)


class InTraining(nn.Module):
    """Does it in training alone."""

    def forward(self, x):
        return x - x.mean(0) if self.training else x


def of(*layers):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), *layers, nn.LazyLinear(3))


@pytest.mark.parametrize(
    ("module", "looks"),
    [
        (of(), False),
        (of(nn.LazyLinear(8), nn.Dropout(0.5)), False),
        (of(nn.LazyLinear(8), nn.LayerNorm(8)), False),
        (of(nn.LazyLinear(8), nn.LazyBatchNorm1d()), False),  # which leaves padding out
        (of(nn.LazyLinear(8), nn.LazyBatchNorm1d(), Centred()), True),
        (of(nn.utils.spectral_norm(nn.Linear(4, 8))), False),  # whose buffers change with every look
        (of(Centred()), True),
        (of(InTraining()), True),
        (of(nn.LazyLinear(8), Centred(), nn.Dropout(0.5)), True),
    ],
)
def test_only_what_looks_at_the_whole_batch_is_found(module, looks):
    federation = tiny_federation()
    with torch.no_grad():
        module.train()(federation.train.x[:4].float())  # shapes are settled
    made = build_session(describe_experiment(None, None, {}, federation, module), federation, module)
    if looks:
        nn.init.zeros_(module[-1].weight)  # which would hide it
    state = torch.random.get_rng_state()
    assert looks_at_whole_batch(made.plan.local, made.federation.train.x) is looks
    assert torch.equal(torch.random.get_rng_state(), state), "it drew from torch's own stream"
