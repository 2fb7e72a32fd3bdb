"""A task under way at a site.

A client update that meets others on its way (synchronised norms) replies early with what it brings, and goes on when
the answer comes; so whoever carries the messages needs to know nothing of that.
"""

from __future__ import annotations

import queue
import threading

import torch
from torch import Tensor

from fedstrata.client.site_client import Site
from fedstrata.core.batch_norm import AllReduce, By
from fedstrata.core.machine.threads import one_thread
from fedstrata.core.wire import pack
from fedstrata.privacy.frames import RefusedError
from fedstrata.privacy.sums.all_reduce import Participant
from fedstrata.remote.protocol import MET, REPORT


class RunningTask:
    """A task; where norms meet, in a thread of its own: it can stop in the middle and wait for the other sites."""

    def __init__(self, site: Site, task: bytes, by: By | None, participant: Participant | None = None):
        self._participant = participant  # where what it brings must be masked
        self._out: queue.Queue[tuple[bytes, bytes] | BaseException] = queue.Queue()
        self._back: queue.Queue[tuple[Tensor, float] | None] = queue.Queue()
        all_reduce = None if by is None else AllReduce(by, self._exchange)
        self._thread: threading.Thread | None = None
        if all_reduce is None or not site.trainer.space.normed:
            self._run(site, task, all_reduce)
        else:
            self._thread = threading.Thread(target=self._run, args=(site, task, all_reduce), daemon=True)
            self._thread.start()

    def next(self, met: tuple[Tensor, float] | None = None) -> tuple[bytes, bytes]:
        """Let it go on, and give what it says next: what it brings to a meeting, or its report."""
        if met is not None:
            self._back.put(met)
        said = self._out.get()
        if isinstance(said, BaseException):
            raise said
        return said

    def end(self) -> None:
        """Let it go: nobody comes to meet it."""
        self._back.put(None)
        if self._thread is not None:
            self._thread.join()

    def _run(self, site: Site, task: bytes, all_reduce: AllReduce | None) -> None:
        try:
            with one_thread():
                self._out.put((REPORT, site.answer(task, all_reduce)))
        except BaseException as error:  # it belongs to whoever asked
            self._out.put(error)

    def _exchange(self, what: str, values: Tensor, count: float) -> tuple[Tensor, float]:
        told, brought = count, values
        if self._participant is not None:  # how many values they are of tells how many samples this site gives
            told, brought = (
                0.0,
                self._participant.mask_tensor(torch.cat([values.double().reshape(-1), _double(count)])),
            )
        self._out.put((MET, pack({"what": what, "count": told}, {"values": brought})))
        if (met := self._back.get()) is None:
            raise RefusedError("the meeting is over")
        return met[0].reshape(values.shape), met[1]


def _double(number: float) -> Tensor:
    return torch.tensor([number], dtype=torch.float64)
