"""Who trains which client: the same worker again and again, as long as none of them has more to do than others.

Rendezvous hashing (Thaler and Ravishankar, 1998): every client ranks all nodes by a hash of both, weighted by how many
workers a node has, and belongs to the first ones. A node that comes or goes moves only the clients that are its own.
Several nodes hold a client's samples, and any of their workers may train it; its home is one worker of the first, where
its state stays. A client leaves home only in a round in which its home would have more than its fair share of samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b

import numpy as np

SLACK = 1.02  # times the fair share, which a worker may have before its clients go elsewhere


def draw_uniform(name: str, clients: np.ndarray) -> np.ndarray:
    """Return a number between 0 and 1 for each pair of a name and a client, the same on every machine."""
    key = np.uint64(int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little"))
    with np.errstate(over="ignore"):  # whole numbers modulo 2**64
        z = (clients.astype(np.uint64) ^ key) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return ((z >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53


def rank_nodes(clients: np.ndarray, nodes: Mapping[str, int], replicas: int) -> np.ndarray:
    """Return each client's first nodes, as places among the nodes in order of name, [N, replicas].

    `nodes` are workers by node; one with twice as many gets twice as many clients.
    """
    names = sorted(nodes)
    scores = np.stack([-np.log(draw_uniform(name, clients)) / nodes[name] for name in names])
    return np.argsort(scores, axis=0, kind="stable")[:replicas].T


def choose_home(client: int, workers: Sequence[str]) -> str:
    """Return the worker, of those of a node, to which a client belongs."""
    return max(workers, key=lambda name: (draw_uniform(name, np.array([client]))[0], name))


def deal(
    sizes: Sequence[float], homes: Sequence[str], candidates: Sequence[Sequence[str]], workers: Sequence[str]
) -> list[str]:
    """Return who runs each task, longest first: at home, or where least is to do, if home has its share already."""
    load = dict.fromkeys(workers, 0.0)
    fair = SLACK * sum(sizes) / max(len(workers), 1)
    dealt = list(homes)
    for i in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        home = homes[i]
        if load[home] + sizes[i] > fair:
            home = min(candidates[i], key=lambda name: (load[name], name != homes[i], name))
        dealt[i] = home
        load[home] += sizes[i]
    return dealt
