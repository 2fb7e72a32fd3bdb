"""From your own CSV to predictions: train over the rows' owners, then ask the model about new rows.

Run it with `python examples/own_csv.py`. The same from a terminal:

    fedstrata run --set data.name=own --set data.path=wine.csv --set data.label=kind --set data.client=vineyard
    fedstrata predict runs/fedavg-1 new.csv
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from sklearn.datasets import load_wine

import fedstrata


def write(path: Path, rows: np.ndarray, labelled: bool) -> None:
    """Write wines as people keep them: every column on a scale of its own."""
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow([*wine.feature_names, *(["kind", "vineyard"] if labelled else [])])
        for row in rows:
            table.writerow([*wine.data[row], *([kinds[row], owners[row]] if labelled else [])])


wine = load_wine()
kinds = wine.target_names[wine.target]
owners = np.array(["mosel", "rhine", "nahe", "saar"])[np.random.default_rng(0).integers(0, 4, len(kinds))]

if __name__ == "__main__":
    order = np.random.default_rng(1).permutation(len(kinds))
    write(Path("wine.csv"), order[30:], labelled=True)
    write(Path("new.csv"), order[:30], labelled=False)  # nobody trains on these
    run = fedstrata.train(
        overrides={
            "data.name": "own",
            "data.path": "wine.csv",
            "data.label": "kind",
            "data.client": "vineyard",
            "train.rounds": 20,
            "train.clients_per_round": "all",
        }
    )
    found = run.predict("new.csv")  # raw columns, by name; the model's file knows how they were scaled
    print(f"test set: accuracy {run.summary['accuracy']:.4f}")
    print(f"new wines: accuracy {(found == kinds[order[:30]]).mean():.4f}")
    print("first three:", ", ".join(found[:3]))
