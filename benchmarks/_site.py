"""A site's process for measuring: it has samples of noise, and echoes what begins with `ECHO`."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from fedstrata.data.federation import Federation
from fedstrata.data.partitions.iid import Iid
from fedstrata.remote.flower.joining import with_stream
from fedstrata.remote.site.private_socket import serve
from fedstrata.remote.site.site_server import SiteServer

ECHO = b"echo"
SAMPLES, TESTS, SHAPE, CLASSES = 2_000, 30, (1, 28, 28), 10


def noise(seed: int) -> Federation:
    """Return images of noise, with every label as often as any other."""
    rng = np.random.default_rng(seed)

    def samples(count: int) -> tuple[np.ndarray, np.ndarray]:
        return rng.standard_normal((count, *SHAPE), dtype=np.float32), np.arange(count) % CLASSES

    return Federation.from_arrays(*samples(SAMPLES), 1, partition=Iid(), test=samples(TESTS), name="noise")


def main(name: str, socket: str, seed: str) -> None:
    """Serve until ended."""
    federation = noise(int(seed))
    site = SiteServer(name, lambda: federation)

    def answer(request: bytes) -> bytes:
        return request if request.startswith(ECHO) else site.answer(request)

    serve(with_stream(answer), Path(socket))


if __name__ == "__main__":
    main(*sys.argv[1:])
