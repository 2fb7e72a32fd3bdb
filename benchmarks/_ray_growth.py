"""What a cluster would do, on paper: docs/scale.md's table, reckoned from the figures of `benchmarks/results/ray.json`.

`python -m benchmarks._ray_growth` writes it.
"""

from __future__ import annotations

import json
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "scale.md"
BEGIN, END = "<!-- growth: written by python -m benchmarks._ray_growth -->", "<!-- end of growth -->"
NODES, WORKERS = (1, 2, 4, 8, 16, 32, 64), 8
CLIENTS, PER_ROUND = 1024, 10  # a round on paper, and of the benchmark
NUMBERS = 1_663_370  # of the CNN
LINK = 1.25e9  # bytes a second of the server's network


def growth(rows: dict[str, float]) -> list[tuple[int, float, float, float]]:
    """Return, by nodes: seconds that clients take, that the network takes, and rounds a second."""
    client = rows["cores"] / (rows["W1 CNN, one node"] * PER_ROUND)  # seconds of a core, whatever Ray adds included
    fixed = rows["a round of 4 tiny clients on two nodes"]
    found = []
    for nodes in NODES:
        train = -(-CLIENTS // (nodes * WORKERS)) * client
        network = nodes * (4 + 8) * NUMBERS / LINK  # the model down, and one sum in double precision up
        found.append((nodes, train, network, 1 / (train + network + fixed)))
    return found


def table() -> str:
    """Return the table in Markdown."""
    kept = json.loads((HERE / "results" / "ray.json").read_text())
    rows = {row["name"]: row["value"] for row in kept["rows"]} | {"cores": kept["machine"]["cores"]}
    found = growth(rows)
    alone = found[0][3]
    lines = [f"| {n} | {t:.2f} | {w:.2f} | {s:.3f} | {s / alone:.1f} |" for n, t, w, s in found]
    head = "| nodes | training, s | network, s | rounds a second | times one node |\n|---|---|---|---|---|"
    return "\n".join([head, *lines])


def written(page: str) -> str:
    """Return the page with the table of now."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
