"""A client behind bytes: its data, its state and a lane of its own; what a real site runs.

The server names in each task which report of this client it last accepted; the client goes on from the state of that
report. It keeps three versions: the one a checkpoint of the server relies on, the accepted one, and the newest.
"""

from __future__ import annotations

from fedstrata.clientside import Client
from fedstrata.errors import FedstrataError
from fedstrata.lane import Lane
from fedstrata.messages import Tag, Tensors
from fedstrata.norms import Meeting
from fedstrata.wire import pack_report, unpack_task


class Site:
    """Answers tasks for one client."""

    def __init__(self, client: Client, lane: Lane):
        self.client, self.lane = client, lane
        self._versions: dict[Tag | None, Tensors] = {None: {}}

    def answer(self, message: bytes, meeting: Meeting | None = None) -> bytes:
        """Do a task and give the report."""
        task = unpack_task(message)
        if task.accepted not in self._versions:
            raise FedstrataError(f"client {self.client.id} has no state of round and step {task.accepted}")
        report, keep = self.lane.visit(self.client, task, self._versions[task.accepted], meeting)
        kept = {tag: self._versions[tag] for tag in (None, task.durable, task.accepted) if tag in self._versions}
        self._versions = kept | {(task.round, task.step): keep}
        return pack_report(report)
