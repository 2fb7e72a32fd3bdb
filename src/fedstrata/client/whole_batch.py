"""Whether a module looks at its batch as a whole: such a batch cannot be filled up with samples that do not count."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedstrata.client.network import Network
from fedstrata.core.client_parts import ClientPlan
from fedstrata.core.rng import seed_torch

WHOLE_BATCH = "what the model makes of a sample depends on the others of its batch"
MOST = 1000  # samples among which one is looked for that is not like the first


def looks_at_whole_batch(local: ClientPlan, x: Tensor) -> bool:
    """Say whether a norm of one's own, a mean over the batch or the like is in training: one look at two samples.

    torch's batch norms leave out what does not count, and are passed over.
    """
    other = next((i for i in range(1, min(len(x), MOST)) if not torch.equal(x[i], x[0])), None)
    if other is None:
        return False
    seen = []
    for rows in ([0, other], [0, 0]):
        network = Network(local.build().to(local.dtype), local.head).train()  # anew: a look may change its buffers
        for layer in network.modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                layer.eval()
        with torch.no_grad(), seed_torch(0):  # what is drawn is the same both times
            features, logits = network(local.inputs(x[rows].cpu(), local.dtype))
        seen.append(torch.cat([features[0], logits[0]]))  # a head of zeros hides what lies before it
    beside_another, beside_itself = seen
    return not torch.allclose(beside_another, beside_itself, rtol=1e-4, atol=1e-5, equal_nan=True)
