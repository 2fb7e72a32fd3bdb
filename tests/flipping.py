"""A problem on paper: the first model takes every sample for the other label, and one step of more than 1.135 cures it.

Samples are +1 with label 1 and -1 with label 0; the weights begin with (1, -1), which gives the wrong label the
probability e / (e + 1/e) = 0.881. The gradient of one full batch is therefore (0.881, -0.881), and a step with rate lr
leads to (1 - 0.881 lr, 0.881 lr - 1): all samples are right as soon as lr > 1 / 0.881 = 1.135, and none before.
"""

from collections import OrderedDict

import numpy as np
import torch
from torch import nn

from fedstrata import Federation

ONE_STEP = {
    "train.rounds": 1,
    "train.epochs": 1,
    "train.batch_size": 64,
    "train.clients_per_round": "all",
    "engine.vmap": "never",
    "engine.workers": 1,
}


def clients(swapped_test=False):
    """Return two clients with ten samples each; the labels of the test set may be the wrong way round."""
    y = np.arange(20) % 2
    test_y = np.arange(10) % 2
    x = (2.0 * y - 1)[:, None]
    test = (2.0 * test_y - 1)[:, None], 1 - test_y if swapped_test else test_y
    return Federation.from_arrays(x, y, [range(10), range(10, 20)], test=test)


def network():
    """Return the model that is always wrong."""
    module = nn.Sequential(OrderedDict(head=nn.Linear(1, 2, bias=False)))
    module.head.weight.data = torch.tensor([[1.0], [-1.0]])
    return module
