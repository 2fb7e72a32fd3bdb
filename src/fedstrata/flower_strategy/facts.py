"""What the clients of somebody's app say of themselves, where a part wants to know; they are asked once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedstrata.core.client_info import ClientInfo, label_facts
from fedstrata.core.errors import RequestError
from fedstrata.core.rng import Streams
from fedstrata.data.reading import order_labels
from fedstrata.flower_strategy.client import QUERY


@dataclass(frozen=True)
class NodeFacts:
    """Who is there, in the order of clients, and what they said of themselves."""

    nodes: list[int]
    counts: np.ndarray  # [N, C]; no classes where nobody was asked
    seconds: list[float]

    @classmethod
    def unknown(cls, nodes: list[int]) -> NodeFacts:
        """Know nothing but who is there."""
        return cls(nodes, np.zeros((len(nodes), 0), dtype=np.int64), [0.0] * len(nodes))

    @classmethod
    def asked(cls, grid: Grid, nodes: list[int]) -> NodeFacts:
        """Ask everybody once."""
        questions = [
            Message(RecordDict(), dst_node_id=node, message_type=f"{MessageType.QUERY}.{QUERY}") for node in nodes
        ]
        told = {r.metadata.src_node_id: _told(r) for r in grid.send_and_receive(questions)}
        if silent := [node for node in nodes if node not in told]:
            raise RequestError(f"node {silent[0]} does not answer the query {QUERY!r}")
        order = sorted(nodes, key=lambda node: (told[node]["client"], node))
        known = [told[node]["client"] for node in order if told[node]["client"] >= 0]
        if len(set(known)) < len(known):
            raise RequestError(f"two nodes say that they are client {max(known, key=known.count)}")
        classes = order_labels({label for one in told.values() for label in one["labels"]})
        counts = [
            [dict(zip(one["labels"], one["counts"], strict=True)).get(c, 0) for c in classes]
            for one in map(told.__getitem__, order)
        ]
        return cls(order, np.array(counts, dtype=np.int64), [told[node]["seconds"] for node in order])

    def client_info(self, needs: frozenset[str], streams: Streams) -> ClientInfo:
        """Tell parts what they declared they need."""
        sizes, classes = self.counts.sum(1), self.counts.shape[1]
        facts = {"sizes": lambda: sizes, **label_facts(lambda: self.counts)}
        return ClientInfo.of(sizes if classes else np.ones(len(sizes)), classes, facts, needs, streams)


def _told(reply: Message) -> dict[str, Any]:
    """Read a client's answer to the query."""
    node = reply.metadata.src_node_id
    if reply.has_error():
        raise RequestError(f"node {node} does not answer the query {QUERY!r}: {reply.error.reason}")
    told: dict[str, Any] = dict(cast(ConfigRecord, reply.content.get(QUERY) or ConfigRecord()))
    counts = told.get("counts")
    if not (
        isinstance(counts, list)
        and isinstance(told.get("labels"), list)
        and isinstance(told.get("client"), int)
        and isinstance(told.get("seconds"), float)
        and len(told["labels"]) == len(counts)
        and all(isinstance(count, int) and count >= 0 for count in counts)
    ):
        raise RequestError(
            f"node {node} answers the query {QUERY!r} otherwise than fedstrata.flower_strategy.describe does"
        )
    return told
