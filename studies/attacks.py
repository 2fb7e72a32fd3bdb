"""What does each defence keep of a model when some clients lie? Every attack of `fedstrata.testing.attacks` in turn.

Digits of which one label is rare, dealt out evenly or two labels a client; the rare one lies with two clients. A lying
client may be one of them: it is drawn by the seed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from statistics import fmean
from textwrap import fill
from typing import Any

import numpy as np
from rich.progress import track
from sklearn.datasets import load_digits

from fedstrata import Federation
from fedstrata.testing.attacks import ATTACKS, Attack, Attackers
from fedstrata.testing.tiny import run_rounds, session_of

PAGE = Path(__file__).parent.parent / "docs" / "attacks.md"
ROUNDS, SEEDS = 15, 2
TRAINING = {
    "model.hidden": (32,),
    "train.epochs": 2,
    "train.batch_size": 8,
    "train.lr": 0.2,
    "train.clients_per_round": "all",
    "engine.precision": "fp32",
}
SHARES = (0.0, 0.1, 0.2, 0.3)
PARTITIONS = {"even": "Labels dealt out evenly", "skewed": "Two labels a client"}
CLIENTS, RARE, LEFT, HOLDERS = 20, 9, 0.5, 3  # the rare label, the share of its samples that is left, who has them
DEFENCES: dict[str, dict[str, Any]] = {  # each as strong as it must be for the largest share
    "`size`: none": {},
    "`size`, bounded as at sites": {"trust.clip": "median", "trust.samples": 2.0},
    "`norm-clip`": {"method.combiner": "norm-clip"},
    "`median`": {"method.combiner": "median"},
    "`trimmed-mean`": {"method.combiner": {"kind": "trimmed-mean", "trim": 0.3}},
    "`krum`": {"method.combiner": {"kind": "krum", "attackers": 0.3}},
    "`multi-krum`": {"method.combiner": {"kind": "multi-krum", "attackers": 0.3}},
    "`geometric-median`": {"method.combiner": "geometric-median"},
}
INTRODUCTION = """# What attackers do

Some of the clients lie; what is left of the model? `fedstrata.testing.attacks` puts attackers among simulated clients,
and every row below is a defence: a combiner, or the bounds that real sites have by default (`trust.clip = "median"`,
`trust.samples = 2`; [deploy.md](deploy.md#sites-that-lie)).

```toml
[engine]
kind = "fedstrata.testing.attacks:Attackers"
attack = "sign-flip"
share = 0.2

[method]
combiner = "geometric-median"
```

| `attack` | what an attacker sends, `strength` times |
|---|---|
| `sign-flip` | the opposite of its update [5] |
| `scaling` | its update [10] |
| `label-flip` | what it learned from labels the other way round |
| `gaussian` | noise of the length of its update [10] |
| `inner-product` | the opposite of the mean of what honest clients of its step send, which it knows [5] |
| `lying-counts` | the opposite of its update, and that it has learned it from so many samples [1e15] |
| `free-rider` | nothing, as if it were something |

`share` [0.2] of the clients are attackers: drawn by the seed, the same ones for every attack and defence, and with a
larger share more of them.

Each cell is accuracy, then the recall of a label that is rare: where a defence leaves out what is unlike the rest, the
rare label is the first thing to go, whether or not anybody lies. The column without attackers says what a defence costs
by itself. (A model that answers the same to everything has a recall of 0 or 1.)

How to read it: where labels are dealt out evenly, honest updates are alike, and `median`, `trimmed-mean`, `multi-krum`
and `geometric-median` bear even 30 % of attackers. Where clients hold two labels each, honest updates are as unlike
each other as lies are: no defence holds against every attack, those that leave clients out lose the rare label before
anybody lies, and the bounds cost least. They are the default at sites for that reason; against several liars a combiner
has to be chosen by the attack and the skew that one expects. Counts are bounded here by the median alone: at sites
nobody counts for more samples than it introduced itself with either, and in a simulation nobody does so.

"""
TRAINED = """{clients} clients on digits train in each of {rounds} rounds, {epochs} epochs in batches of {batch}; means
over {seeds}. Of label {rare} a share of {left:g} is left in the training data, and with two labels a client it lies
with {holders} clients, who may be attackers like anybody. Trimmed mean and Krum are told to expect 30 % of attackers.
"""


@dataclass(frozen=True)
class Figure:
    """What a run came to."""

    accuracy: float
    rare: float  # recall of the rare label

    def __str__(self) -> str:
        return f"{_short(self.accuracy)} / {_short(self.rare)}"


Cell = tuple[str, str, Attack | None, float]  # partition, defence, attack, share of attackers
Figures = Mapping[Cell, Figure]


def main(arguments: Sequence[str]) -> int:
    """Train and tell."""
    parser = argparse.ArgumentParser(prog="python -m studies attacks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--write", action="store_true", help="write the tables into the documentation")
    asked = parser.parse_args(arguments)
    text = tables(figures(track(list(cells()), "runs"), asked.rounds, asked.seeds))
    print(text)
    if asked.write:
        PAGE.write_text(page(text, asked.rounds, asked.seeds))
    return 0


def page(text: str, rounds: int, seeds: int) -> str:
    """Return the page with its tables."""
    trained = TRAINED.format(
        clients=CLIENTS,
        rounds=rounds,
        epochs=TRAINING["train.epochs"],
        batch=TRAINING["train.batch_size"],
        seeds="one seed" if seeds == 1 else f"{seeds} seeds",
        rare=RARE,
        left=LEFT,
        holders=HOLDERS,
    )
    command = "```sh\npython -m studies attacks --write  # writes this page\n```\n"
    return f"{INTRODUCTION}{fill(trained, 120)}\n\n{command}\n{text}"


def cells() -> Iterator[Cell]:
    """Return all cells; without attackers every attack is the same."""
    for partition, defence in product(PARTITIONS, DEFENCES):
        yield partition, defence, None, 0.0
        yield from ((partition, defence, attack, share) for attack, share in product(ATTACKS, SHARES[1:]))


def figures(wanted: Any, rounds: int, seeds: int) -> Figures:
    """Run cells; means over seeds."""
    return {cell: _mean([measure(cell, rounds, seed) for seed in range(seeds)]) for cell in wanted}


def measure(cell: Cell, rounds: int, seed: int) -> Figure:
    """Train once, without a run folder: there are hundreds of them."""
    partition, defence, attack, share = cell
    engine = Attackers(attack=attack or ATTACKS[0], share=share, workers=1)
    asked = {**TRAINING, **DEFENCES[defence], "train.rounds": rounds, "train.seed": seed, "engine": engine}
    session = session_of(asked, federation(partition, seed))
    state, _ = run_rounds(session, rounds, lambda work: work.start_engine(_nowhere))
    view = session.plan.view(session.client_info, rounds - 1, _nowhere)
    scores = session.make_evaluator("cpu")(state.model, view).figures
    return Figure(scores["accuracy"], scores["recall"][RARE])


@cache
def federation(partition: str, seed: int) -> Federation:
    """Return digits with a rare label, dealt out evenly, or two labels a client of which two have the rare one."""
    x, y = load_digits(return_X_y=True)
    x, y = (x / 16).astype(np.float32), y.astype(np.int64)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(y))
    test, train = order[:360], order[360:]
    rare = train[y[train] == RARE]
    train = np.setdiff1d(train, rare[round(LEFT * len(rare)) :])
    rows = rng.permutation(len(train))
    parts = np.array_split(rows, CLIENTS) if partition == "even" else _skewed(y[train][rows], rows)
    return Federation.from_arrays(x[train], y[train], parts, test=(x[test], y[test]))


def _skewed(labels: np.ndarray, rows: np.ndarray) -> list[np.ndarray]:
    """Deal every label to clients in turn, so that each has two; the rare one goes to the first ones beside theirs."""
    owners: dict[int, list[int]] = {RARE: list(range(HOLDERS))}
    usual = [label for label in range(10) if label != RARE]
    for turn in range(2 * CLIENTS):
        owners.setdefault(usual[turn % len(usual)], []).append(turn % CLIENTS)
    parts: list[list[np.ndarray]] = [[] for _ in range(CLIENTS)]
    for label, clients in owners.items():
        for client, own in zip(clients, np.array_split(rows[labels == label], len(clients)), strict=True):
            parts[client].append(own)
    return [np.concatenate(part) for part in parts]


def tables(found: Figures) -> str:
    """Write down, for each way to deal labels out, the worst attack by share and every attack at the middle share."""
    return "\n".join(
        f"## {title}\n\n{_by_share(found, name)}\n{_by_attack(found, name)}" for name, title in PARTITIONS.items()
    )


def _by_share(found: Figures, partition: str) -> str:
    head = ["under the worst attack", *(f"{share:.0%} attackers" for share in SHARES)]
    rows = []
    for defence in DEFENCES:
        cells = [str(found[partition, defence, None, 0.0])]
        for share in SHARES[1:]:
            by_attack = {attack: found[partition, defence, attack, share] for attack in ATTACKS}
            worst = min(by_attack, key=lambda attack: by_attack[attack].accuracy)
            cells.append(f"{by_attack[worst]} ({worst})")
        rows.append([defence, *cells])
    return _table(head, rows)


def _by_attack(found: Figures, partition: str) -> str:
    share = SHARES[2]
    rows = [[defence, *(str(found[partition, defence, attack, share]) for attack in ATTACKS)] for defence in DEFENCES]
    return _table([f"{share:.0%} attackers", *ATTACKS], rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in [head, ["---"] * len(head), *rows])


def _mean(runs: Sequence[Figure]) -> Figure:
    return Figure(fmean(run.accuracy for run in runs), fmean(run.rare for run in runs))


def _short(number: float) -> str:
    return f"{number:.2f}".removeprefix("0")


def _nowhere(*_: object, **__: object) -> None:
    """Events do not matter here."""
