"""Random streams keyed by (seed, purpose, round, step, client).

No generator state exists anywhere: a stream is made from its key when it is needed and thrown away.
Changing one part never shifts another part's draws, any worker can train any client, and a resumed run
has nothing to restore.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import torch

Rng = np.random.Generator
PRIVATE = "private"  # a purpose that begins so is drawn from a site's own secret too, which no server can draw again


@dataclass(frozen=True)
class Streams:
    """All random streams of one run, each keyed (seed, purpose, round, step, client).

    Attributes
    ----------
    seed
        Of the run.
    secret
        Of a real site. Everybody knows the seed: what must hide something from others is drawn with this, too.
    """

    seed: int
    secret: bytes = b""

    def key(self, purpose: str, round: int = -1, step: int = 0, client: int = -1) -> int:
        """Return the 128-bit key of a stream, the same on every machine.

        Parameters
        ----------
        purpose
            What is drawn: streams of different purposes never touch.
        round, step, client
            Where in the run.

        Returns
        -------
        int
        """
        text = f"{self.seed}|{purpose}|{round}|{step}|{client}"
        secret = self.secret if purpose.startswith(PRIVATE) else b""
        return int.from_bytes(blake2b(text.encode(), digest_size=16, key=secret).digest(), "little")

    def __call__(self, purpose: str, round: int = -1, step: int = 0, client: int = -1) -> Rng:
        """Return a fresh generator at the start of the stream."""
        return np.random.Generator(np.random.Philox(key=self.key(purpose, round, step, client)))

    def torch_seed(self, purpose: str, round: int = -1, step: int = 0, client: int = -1) -> int:
        """Return 63 bits of the key, for torch generators and counter-based dropout.

        Parameters
        ----------
        purpose
            What is drawn: streams of different purposes never touch.
        round, step, client
            Where in the run.

        Returns
        -------
        int
        """
        return self.key(purpose, round, step, client) & (2**63 - 1)


def unpredictable() -> Rng:
    """Return a generator that nobody can make again: for noise that hides something from others at real sites."""
    return np.random.Generator(np.random.Philox(key=int.from_bytes(os.urandom(16), "little")))


@contextmanager
def seed_torch(seed: int) -> Iterator[None]:
    """Let code that draws from torch's global generator draw from a stream, and leave the generator as it was.

    `torch.manual_seed` would do, but it takes a millisecond: it records a stack trace for GPUs it has not seen.
    """
    before = torch.default_generator.get_state()
    on_gpu = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    torch.default_generator.manual_seed(seed)
    if on_gpu is not None:
        torch.cuda.manual_seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(before)
        if on_gpu is not None:
            torch.cuda.set_rng_state(on_gpu)
