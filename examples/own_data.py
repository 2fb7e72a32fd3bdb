"""Bring your own clients and your own network: here three sites with different digits each.

Run it with `python examples/own_data.py`.
"""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits
from torch import nn

import fedstrata

images, digits = load_digits(return_X_y=True)
images = (images / 16).astype(np.float32)
names = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])[digits]

sites = [np.isin(digits, held) for held in ([0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9])]
first_owner = [here & ~np.any(sites[:i], axis=0) if i else here for i, here in enumerate(sites)]
federation = fedstrata.Federation.from_clients([(images[here], names[here]) for here in first_owner])

network = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10))

if __name__ == "__main__":
    for method in ("fedavg", "scaffold", "fedyogi"):
        run = fedstrata.train(
            method=method,
            federation=federation,
            model=network,
            overrides={"train.rounds": 20, "train.clients_per_round": "all"},
        )
        print(
            f"{method:10} accuracy {run.summary['accuracy']:.4f}, worst site {run.summary['worst10']:.4f}: {run.path}"
        )
