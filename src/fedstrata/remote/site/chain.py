"""A site's half of a chain that the server cannot read: it holds what it trained until it may hand it on.

    hello                          > its key for letters (`privacy/envelopes.py`)
    hand_on  what, to whom; hello  > an envelope with the model that this site holds
    hop      task; how; envelope   > a report; the model stays here, or, at the end of the chain, goes to the server

What a site holds, and what an envelope brings, is what a task brings otherwise: the model, its norm statistics, and
the memory of an optimizer that travels with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fedstrata.client.local_step import all_finite
from fedstrata.core.messages import Tag, Tensors, fast_replace
from fedstrata.core.plan import Plan
from fedstrata.core.wire import pack, pack_report, pack_task, unpack, unpack_report, unpack_task
from fedstrata.privacy.envelopes import Letterbox, SpoiltError, StaleError, job_of
from fedstrata.privacy.frames import RefusedError
from fedstrata.remote.protocol import SPOILT, STALE, read_values
from fedstrata.remote.report_shapes import MOVES, expected_shapes

Train = Callable[[bytes], tuple[bytes, bytes]]  # a task in, what to reply out


class ChainSite:
    """What a site does in a chain, and what it holds of it."""

    def __init__(self, letters: Letterbox, run: str, plan: Plan):
        self._letters, self._run = letters, run
        shapes = expected_shapes(plan, "train") or {}
        self._shapes = {MOVES.get(name, name): shape for name, shape in shapes.items()}
        self._dtype = plan.local.dtype
        self._held: dict[Tag, Tensors] = {}

    def hello(self) -> tuple[bytes]:
        """Say under which key others can send something to this site."""
        return (self._letters.hello(),)

    def hand_on(self, about: bytes, hello: bytes) -> tuple[bytes]:
        """Seal what is held for the next site."""
        told = read_values(about)
        to, job = int(told["to"]), job_of(self._run, *_tag(told["at"]))
        return (self._letters.seal(pack({}, self._holding(_tag(told["what"]))), to, hello, job),)

    def hop(self, data: bytes, about: bytes, envelope: bytes, train: Train) -> tuple[bytes, bytes]:
        """Train from where the chain is, and keep the outcome, or give it to the server at the chain's end."""
        told, task = read_values(about), unpack_task(data)
        at = task.round, task.step
        job, holder = job_of(self._run, *at), told["holder"]
        try:
            start = task.down if holder is None else self._start(int(holder), _tag(told["what"]), envelope, job)
        except (SpoiltError, StaleError) as error:
            return STALE if isinstance(error, StaleError) else SPOILT, str(error).encode()
        what, reply = train(data if holder is None else pack_task(replace(task, down=start)))
        if envelope:
            self._letters.used(envelope, int(holder), job)
        report = unpack_report(reply)
        end = {name: start[MOVES[name]] + t if name in MOVES else t for name, t in report.aggregated.items()}
        self._held = {tag: self._held[tag] for tag in map(_tag, told["keep"]) if tag in self._held}
        if told["last"]:
            return what, pack_report(fast_replace(report, aggregated=end))
        if report.finite:
            self._held[at] = {MOVES.get(name, name): tensor for name, tensor in end.items()}
        return what, pack_report(report.open())

    def _start(self, holder: int, what: Tag, envelope: bytes, job: bytes) -> Tensors:
        """Find the model to start from: a site may follow itself."""
        if holder == self._letters.me:
            return self._holding(what)
        text = self._letters.open(envelope, holder, job)
        try:
            _, tensors = unpack(text)
        except Exception as error:  # whatever bytes can do to a reader
            raise SpoiltError(f"what client {holder} handed on cannot be read: {type(error).__name__}") from None
        if {name: tuple(t.shape) for name, t in tensors.items()} != self._shapes:
            raise SpoiltError(f"what client {holder} handed on has another shape than the model")
        for tensor in tensors.values():
            if tensor.is_floating_point() and (tensor.dtype != self._dtype or not bool(all_finite(tensor))):
                raise SpoiltError(f"what client {holder} handed on is not finite, or not in {self._dtype}")
        return tensors

    def _holding(self, what: Tag) -> Tensors:
        if what not in self._held:
            raise RefusedError(f"client {self._letters.me} holds no model of round and step {what}")
        return self._held[what]


def _tag(told: Any) -> Tag:
    return int(told[0]), int(told[1])
