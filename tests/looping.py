"""Coroutines for tests: in a thread of their own, because a browser's tests may keep a loop running in this one."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor


def run_loop(coroutine):
    """Run a coroutine to its end, and give what it returns."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()
