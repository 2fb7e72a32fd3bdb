"""Heartbeats go on after one that was refused.

A thread of Flower's sends them, and ends with the first answer that it does not know, such as that of a server whose
disk is full. All else would go on; but a site would be away for the server from then on, and a run would be ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def beat_on(module: Any) -> None:
    """Let a module of Flower's do so; AttributeError where it has no heartbeats."""

    class Steady(module.HeartbeatSender):  # type: ignore[misc]
        """Tries again, as after a connection that broke."""

        def __init__(self, beat: Callable[[], bool]):
            failing = False

            def steady() -> bool:
                nonlocal failing
                try:
                    taken = beat()
                except Exception as error:
                    if not failing:
                        print(f"a heartbeat was refused, and is tried again: {error}", flush=True)
                    failing = True
                    return False
                failing = False
                return taken

            super().__init__(steady)

    module.HeartbeatSender = Steady
