"""Waiting for what another process does: on a condition, never for a time that a busy machine may need more of."""

from __future__ import annotations

import time

PATIENCE = 300.0  # seconds, after which something is wrong on the slowest machine


def wait_until(condition, *processes):
    """Wait until a condition holds; fail if a process ends before that."""
    ended = time.monotonic() + PATIENCE
    while not condition():
        for process in processes:
            assert process.poll() is None, f"it ended with exit code {process.returncode}"
        assert time.monotonic() < ended, "nothing happened"
        time.sleep(0.01)
