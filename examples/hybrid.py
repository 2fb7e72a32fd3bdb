"""Stratify in hybrid: batches first, single samples as they arrive.

A model is trained on what ten sites hold today, in batch-data learning. Deployed, it goes on with single-sample
learning on new samples, each of which is there for one round and then gone; no site ever has two labels.

Run it with `python examples/hybrid.py`.
"""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

import fedstrata

images, digits = load_digits(return_X_y=True)
images = (images / 16).astype(np.float32)
order = np.random.default_rng(0).permutation(len(digits))
today, later, test = np.split(order, [100, 1400])


def sites(rows: np.ndarray) -> fedstrata.Federation:
    """Return ten sites with one digit each."""
    x, y = images[rows], digits[rows]
    return fedstrata.Federation.from_arrays(
        x, y, [np.flatnonzero(y == digit) for digit in range(10)], test=(images[test], digits[test])
    )


if __name__ == "__main__":
    first = fedstrata.train(method="stratify-batch", federation=sites(today), overrides={"train.rounds": 20})
    arriving = sites(later).moving(stream=fedstrata.Stream(start=0.0, until=10, window=1))
    then = fedstrata.train(
        method="stratify-single",
        federation=arriving,
        overrides={
            "train.rounds": 10,
            "train.lr": 0.03,
            "train.lr_schedule": "cosine",
            "model.init": str(first.path / "model.safetensors"),
        },
    )
    print(f"batches on {len(today)} samples: accuracy {first.summary['accuracy']:.4f}")
    print(f"then {len(later)} new ones, each there for one round: accuracy {then.summary['accuracy']:.4f}")
