"""What an exchange with real sites takes: three on this machine, each in a process of its own, TLS on, echoing.

A request of so many bytes goes to all three at once, and comes back from all three; medians of many, after some to
warm up. Sites do nothing but give back what they got.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from multiprocessing import get_context
from statistics import median
from time import perf_counter
from typing import Any

from fedstrata.engines.flower.joining import with_stream
from fedstrata.engines.flower.stream import open_stream
from fedstrata.engines.sites.transport import Failure

SITES = ("a", "b", "c")
WARM = 20
SIZES = {"4 KB": (4_000, 400, None), "250 KB": (250_000, 400, 10.0), "2.5 MB": (2_500_000, 60, None)}
SIZES |= {"25 MB": (25_000_000, 12, None)}  # bytes, exchanges, goal in milliseconds


def measure() -> list[dict[str, Any]]:
    """Give the milliseconds of one exchange with three sites, by size."""
    rows, messages = [], Processes()
    stream = open_stream(messages, "127.0.0.1:0", "benchmark")
    try:
        for name, (size, times, goal) in SIZES.items():
            requests, seconds = dict.fromkeys(SITES, os.urandom(size)), []
            for _ in range(min(WARM, times) + times):
                start = perf_counter()
                replies = stream.exchange(requests, 60.0)
                seconds.append(perf_counter() - start)
                if replies != requests:
                    raise AssertionError(f"{sorted(replies)} answered, or not with what they got")
            took = 1_000 * median(seconds[-times:])
            met = goal is None or took <= goal
            about = f"stream, an exchange of {name} with {len(SITES)} sites"
            rows.append({"name": about, "value": took, "unit": "ms", "goal": goal, "met": met})
    finally:
        stream.close()
        messages.close()
    return rows


def versions() -> dict[str, str]:
    """Say what carried it."""
    return {"grpcio": version("grpcio")}


class Processes:
    """Stands in for Flower's messages: each site is a process, started when the first request for it comes."""

    def __init__(self) -> None:
        self._places = {name: ProcessPoolExecutor(1, get_context("spawn")) for name in SITES}

    def names(self) -> list[str]:
        """Give all."""
        return sorted(SITES)

    def exchange(
        self, requests: Mapping[str, bytes], deadline: float | None = None, enough: int | None = None
    ) -> dict[str, bytes | Failure]:
        """Let processes answer."""
        told = {name: self._places[name].submit(answered, request) for name, request in requests.items()}
        return {name: reply.result(deadline) for name, reply in told.items()}

    def close(self) -> None:
        """End them."""
        for place in self._places.values():
            place.shutdown()


def answered(request: bytes) -> bytes:
    """Do what a site's process does with a request, where all that is asked for is an echo."""
    return with_stream(bytes)(request)
