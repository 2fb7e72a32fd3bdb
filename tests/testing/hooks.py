"""What the hooks of odd parts give is told by the test: an experiment can only hold plain values."""

from __future__ import annotations

NOTHING = object()
GIVEN: dict[str, object] = {}


def given(hook, default, *args):
    value = GIVEN.get(hook, NOTHING)
    return default() if value is NOTHING else value(*args) if callable(value) else value
