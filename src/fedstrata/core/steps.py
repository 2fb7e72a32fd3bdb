"""How drivers and selectors become steps: a selector is let finish, a driver gets asks, and what they yield is checked.

A driver asks with `asks = yield from select()`. Selectors may answer with ids or with `Ask`s, at once or after probing;
none of that reaches the driver, which always gets a list of `Ask`s in order of id.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from operator import index
from typing import Any, NoReturn, cast

import numpy as np

from fedstrata.core.contract import broken, describe
from fedstrata.core.server_parts import Ask, Asking, Driver, Selector, Step, Steps, View

ALLOWED = "client ids or `Ask`s; to probe first, yield `Step`s and return them at the end"


def select_asks(selector: Selector, state: Any, view: View) -> Asking:
    """Let a selector finish, whether it probes or answers at once; in order of id, so that equal sets are equal."""
    asks = yield from pick_asks(selector, state, view)
    return sorted(asks, key=lambda ask: ask.client)


def pick_asks(selector: Selector, state: Any, view: View) -> Asking:
    """Do the same, in the selector's own order."""
    choice: Any = selector.select(state, view)
    if isinstance(choice, Generator):
        choice = yield from _check_steps(selector, "select", choice, view)
    if not isinstance(choice, Iterable) or isinstance(choice, str | bytes | Mapping):
        raise broken(selector, "select", f"gave {describe(choice)}; allowed: {ALLOWED}")
    asks = [_read_pick(selector, pick) for pick in choice]
    ids = np.array([ask.client for ask in asks], dtype=np.int64)
    there = np.zeros(view.client_info.clients, dtype=bool)
    there[view.eligible] = True
    for strange in ids[(ids < 0) | (ids >= len(there))].tolist():
        raise broken(selector, "select", f"chose client {strange}; there are 0 to {len(there) - 1}")
    if len(away := ids[~there[ids]]):
        raise broken(selector, "select", f"chose client {away[0]}, which is not there; allowed: ids of `view.eligible`")
    if len(np.unique(ids)) != len(ids):
        raise broken(selector, "select", f"asks a client twice: {sorted(ids.tolist())}")
    return asks


def drive_round(driver: Driver, state: Any, view: View, selector: Selector, selector_state: Any) -> Steps:
    """Return the steps of a round: the driver's, and those with which the selector probes on its behalf."""

    def select() -> Asking:
        return cast(Asking, _Asking(driver, select_asks(selector, selector_state, view)))

    steps: Any = driver.round(state, view, select)
    if not isinstance(steps, Generator):
        allowed = "a generator: it yields a `Step` for every exchange, and gets the `Outcome`"
        raise broken(driver, "round", f"gave {describe(steps)}; allowed: {allowed}")
    yield from _check_steps(driver, "round", steps, view)


class _Asking:
    """What `select()` gives to a driver: only of use behind `yield from`.

    It first yields itself, and goes on only if that came back: whoever loops over it gives nothing back.
    """

    def __init__(self, driver: Driver, asks: Asking):
        self._driver, self._asks, self._begun = driver, asks, False

    def __iter__(self) -> Generator[Any, Any, list[Ask]]:
        self._begun = True
        if (yield self) is not self:
            self._forgotten()
        asks: list[Ask] = yield from self._asks
        return asks

    def _forgotten(self, *_: object) -> NoReturn:
        raise broken(self._driver, "round", "uses what `select()` gives as it is; write `asks = yield from select()`")

    __len__ = __bool__ = __getitem__ = __contains__ = __reversed__ = __index__ = __call__ = _forgotten

    def __getattr__(self, name: str) -> NoReturn:
        self._forgotten()


def _check_steps(part: Driver | Selector, hook: str, steps: Generator[Any, Any, Any], view: View) -> Any:
    """Pass a part's steps on, and refuse what is none."""
    outcome: Any = None
    while True:
        try:
            step = steps.send(outcome)
        except StopIteration as end:
            return end.value
        if isinstance(step, _Asking) and step._begun:
            outcome = step
            continue
        if isinstance(step, _Asking | Generator):
            raise broken(part, hook, "yields a generator where it must yield from it; write `yield from`")
        if not isinstance(step, Step):
            raise broken(part, hook, f"yielded {describe(step)}; allowed: `Step`")
        for ask in step.asks:
            if not 0 <= ask.client < view.client_info.clients:
                raise broken(part, hook, f"asks client {ask.client}; there are 0 to {view.client_info.clients - 1}")
        outcome = yield step


def _read_pick(selector: Selector, pick: Any) -> Ask:
    if isinstance(pick, Ask):
        return pick
    try:
        if isinstance(pick, bool | np.bool_):
            raise TypeError  # Python counts with them, but a mask is no list of ids
        return Ask(index(pick))
    except TypeError:
        raise broken(selector, "select", f"chose {describe(pick)}; allowed: {ALLOWED}") from None
