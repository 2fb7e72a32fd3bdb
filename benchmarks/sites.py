"""What real sites cost: three on this machine, each in a process of its own, over Flower, streams with TLS.

An exchange: a request of so many bytes goes to all three at once, and comes back from all three. Steps: Stratify on
LeNet-5, the same engine once over the stream and once with a message for every request. A round: FedAvg with next to
nothing to do, evaluation included, against Flower's own strategy and loop on the same nodes, whose clients give the
model back. Bytes: what a run's account says, against what TCP carried, TLS and all. At rest: a server and its sites as
`fedstrata deploy` starts them, with keys, while nobody asks for anything; and the seconds from `deploy run` to the
first finished round, everything on this machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from benchmarks._idle import measure_idle
from benchmarks._loopback import loopback
from benchmarks._rows import row
from fedstrata.deploy.run_app import COMPONENTS

SITES, FEWER = ("a", "b", "c"), ("a", "b")
NAMES = {"4000": "4 KB", "250000": "250 KB", "2500000": "2.5 MB", "25000000": "25 MB"}
SOON, OFTEN, NOT_SLOWER, CLOSE = 10.0, 1_000.0, 1.0, 5.0  # ms of an exchange; times; times; percent
IDLE, SMALL, BEGUN = 1.0, 250.0, 10.0  # percent of a core; MB; seconds


def measure(quick: bool = False) -> list[dict[str, Any]]:
    """Return what was measured, in one go."""
    sites = FEWER if quick else SITES
    with loopback(sites) as flower:
        ours = flower.told_by("_exchanges", COMPONENTS["clientapp"], 900.0, quick)
        stock = flower.told_by("_stock", "benchmarks._stock:client", 900.0, quick)
    at_rest = measure_idle(sites, 2.0, rest=5) if quick else measure_idle(sites, 60.0)
    return [*_rows(ours, stock, len(sites)), *_at_rest(at_rest)]


def versions() -> dict[str, str]:
    """Say what carried it."""
    return {name: version(name) for name in ("flwr", "grpcio")}


def _rows(ours: dict[str, Any], stock: dict[str, Any], sites: int) -> Iterator[dict[str, Any]]:
    for size, seconds in ours["stream"].items():
        goal = SOON if size == "250000" else None
        yield row(f"stream, an exchange of {NAMES[size]} with {sites} sites", 1_000 * seconds, "ms", at_most=goal)
    yield row("messages, an exchange of 250 KB", 1_000 * ours["message"], "ms")
    yield row("messages against the stream, 250 KB", ours["message"] / ours["stream"]["250000"], "x")
    yield row("stream, Stratify batch on LeNet-5", 1 / ours["batch"], "steps/s")
    by_messages = ours["batch by messages"]
    gain = None if by_messages is None else by_messages / ours["batch"]
    yield row("the same against a message for every request", gain, "x", at_least=OFTEN)
    yield row("messages, a round of FedAvg", ours["round"], "s")
    yield row("the same against Flower's own strategy", ours["round"] / stock["round"], "x", at_most=NOT_SLOWER)
    for method, (told, carried) in ours["bytes"].items():
        yield row(f"bytes on the wire beyond the account, {method}", 100 * abs(carried / told - 1), "%", at_most=CLOSE)


def _at_rest(told: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for party in ("server", "site"):
        yield row(f"at rest, a {party}", told[f"{party} cpu"], "% of a core", at_most=IDLE)
        yield row(f"at rest, memory of a {party}", told[f"{party} mb"], "MB", at_most=SMALL)
        yield row(f"at rest, processes of a {party}", told[f"{party} processes"], "")
    yield row("`deploy run` to the first round, sites just started", told["soon"], "s", at_most=BEGUN)
    yield row("the same, sites at rest", told["rested"], "s", at_most=BEGUN)
