"""What a message holds is asked for again soon, where its sender is still sending it.

Flower tells of a message first and takes its objects then, and whoever asks for one in between waits a second before he
asks again. That is most of the time that a small message takes.
"""

from __future__ import annotations

from importlib import import_module

PAUSE = 0.05  # seconds before the second time; each further pause is twice as long, up to Flower's ten seconds


def ask_again_soon() -> None:
    """Let this process do so; AttributeError or KeyError where Flower is another one (1.41 and 1.42 are known)."""
    pull = import_module("flwr.supercore.inflatable.inflatable_utils").pull_objects
    pull.__kwdefaults__["initial_backoff"] = min(PAUSE, pull.__kwdefaults__["initial_backoff"])
