"""A client behind bytes: its data, its state and a trainer of its own; what a real site runs.

The server names in each task which report of this client it last accepted; the client goes on from the state of that
report. It keeps three versions: the one a checkpoint of the server relies on, the accepted one, and the newest.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter

from fedstrata.client.trainer import Trainer
from fedstrata.core.batch_norm import AllReduce
from fedstrata.core.client_parts import Client
from fedstrata.core.errors import FedstrataError
from fedstrata.core.messages import Tag, Tensors, fast_replace
from fedstrata.core.wire import pack_report, unpack_task


class StatelessError(FedstrataError):
    """A client no longer has the state from which it is asked to go on."""


class Versions:
    """A client's states by the report they belong to: those that somebody may still ask for."""

    def __init__(self) -> None:
        self.by_tag: dict[Tag | None, Tensors] = {None: {}}

    def keep(self, versions: Mapping[Tag | None, Tensors]) -> None:
        """Keep these and no others."""
        self.by_tag = dict(versions)


class Site:
    """Answers tasks for one client."""

    def __init__(self, client: Client, trainer: Trainer, versions: Versions | None = None):
        self.client, self.trainer, self._versions = client, trainer, versions or Versions()

    def answer(self, message: bytes, all_reduce: AllReduce | None = None) -> bytes:
        """Do a task and give the report."""
        began, task, known = perf_counter(), unpack_task(message), self._versions.by_tag
        if task.accepted not in known:
            raise StatelessError(f"client {self.client.id} has no state of round and step {task.accepted}")
        report, client_state = self.trainer.run_task(self.client, task, known[task.accepted], all_reduce)
        kept = {tag: known[tag] for tag in (None, task.durable, task.accepted) if tag in known}
        self._versions.keep(kept | {(task.round, task.step): client_state})
        return pack_report(fast_replace(report, seconds=perf_counter() - began))
