"""Between clients and server: updates are clipped, noised and summed so that nobody sees a single one.

An engine as the loop knows it, around another one whose reports it keeps to itself. What a client does at a real site
before anything leaves it, this does in its place; the protocol's parties are separate objects that exchange bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedstrata.core.engine import AllReduceSum, Engine
from fedstrata.core.errors import UnsummableError
from fedstrata.core.messages import Report, Sums, Tag, Task, Tensors, fast_replace, tensor_bytes
from fedstrata.core.rng import Streams
from fedstrata.core.server_parts import Step
from fedstrata.privacy import FEWEST
from fedstrata.privacy.noise import UpdateNoise, at_most_one
from fedstrata.privacy.simulated import identities, job_of, secrets
from fedstrata.privacy.sums.all_reduce import MaskedAllReduce, Participant
from fedstrata.privacy.sums.fixed_point import Encoding, TooLargeError
from fedstrata.privacy.sums.protocol import SumTask as Sum
from fedstrata.privacy.sums.protocol import enough_weight
from fedstrata.privacy.sums.secure_sum import Parties, secure_sum

NOT_TOLD = float("nan")


class ProtectedEngine:
    """An engine whose updates leave their clients clipped, noised or masked."""

    all_reduce_sum: AllReduceSum | None = None

    def __init__(
        self,
        engine: Engine,
        streams: Streams,
        clients: int,
        encoding: Encoding | None,
        noise: UpdateNoise | None,
        note: Callable[..., None],
    ):
        self._engine, self._streams, self._encoding, self._noise, self._note = engine, streams, encoding, noise, note
        self.device, self.can_fuse = engine.device, engine.can_fuse
        self._tasks: Sequence[Task] = ()
        self._size = 0  # numbers that each client of this step sends
        self._sums = 0  # of this step
        self._overhead_bytes = 0, 0
        if encoding is not None:
            self._server, self._clients, self._key_directory = identities(streams, clients)
            engine.all_reduce_sum = self._all_reduce

    def ask(self, step: Step, tasks: Sequence[Task]) -> list[Report]:
        """Run tasks; give the open half of every report, as far as it may be told."""
        self._tasks, self._sums, self._overhead_bytes = tasks, 0, (0, 0)
        try:
            if self._encoding is not None and step.together is not None and len(tasks) < FEWEST:
                raise TooLargeError(f"fewer than {FEWEST} clients do not meet under masks")
            reports: list[Report] = self._engine.ask(step, tasks)
        except TooLargeError as error:  # in a meeting: everybody's computation is lost
            clients = [task.client for task in tasks]
            self._note("dropped", round=tasks[0].round + 1, step=tasks[0].step, clients=clients, why=str(error))
            return []
        if not step.combine:
            return reports
        if self._noise is not None:  # an update that is not finite counts as zero: who sent one must not show
            reports = [fast_replace(report, finite=True) for report in reports]
        if self._noise is not None and self._noise.local:  # numbers without noise would tell what the noise hides
            reports = [fast_replace(report, loss=NOT_TOLD, update_norm=NOT_TOLD, metrics={}) for report in reports]
        if self._encoding is None:
            return reports
        whole = self._engine.each()
        self._size = max((sum(t.numel() for t in one.aggregated.values()) for one in whole.values()), default=0)
        return reports if self._noise is not None else self._encodable(reports, whole)

    def collect(self, weights: Mapping[int, float]) -> Sums:
        """Sum what the last step's clients sent: once, because two sums would tell their difference."""
        if self._sums:
            raise RuntimeError("masked or noised updates are summed once a step; use another combiner")
        self._sums += 1
        if self._encoding is not None:
            self._enough(weights)
        whole = self._engine.each()
        sent = {client: whole[client].aggregated for client in weights}
        shares, most = at_most_one(np.array(list(weights.values())))
        weighed = dict(zip(weights, shares.tolist(), strict=True))
        values = {client: self._leaving(client, aggregated) for client, aggregated in sent.items()}
        total = self._total(values, weighed) if values else np.zeros(0)
        if self._noise is not None:
            total = total + self._noise.of_sum(len(total), lambda: self._draw("noise"))
        layout: Tensors = next(iter(sent.values()), {})
        if self._encoding is not None:
            up = self._overhead_bytes[0] - sum(tensor_bytes(aggregated) for aggregated in sent.values())
            self._overhead_bytes = up, self._overhead_bytes[1]
        given = parted(total * most, layout)
        if (met := self._engine.collect({}).total.get("statistics")) is not None:
            given["statistics"] = met
        return Sums(given, float(sum(weights.values())), len(weights), shares=dict(weights))

    def each(self) -> Mapping[int, Report]:
        """Refuse: nobody sees a single update."""
        raise RuntimeError("single updates are not shown where they are masked or noised")

    def overhead_bytes(self) -> tuple[int, int]:
        """Return the bytes of masks, keys and shares."""
        return self._overhead_bytes

    def settle(self, accepted: Collection[int], tag: Tag) -> None:
        """Commit client state."""
        self._engine.settle(accepted, tag)

    def client_states(self) -> Mapping[int, tuple[Tag, Tensors]]:
        """Return client state."""
        client_states: Mapping[int, tuple[Tag, Tensors]] = self._engine.client_states()
        return client_states

    def restore(self, client_states: Mapping[int, tuple[Tag, Tensors]]) -> None:
        """Take client state back."""
        self._engine.restore(client_states)

    def close(self) -> None:
        """End the workers."""
        self._engine.close()

    # ---- the client's half

    def _leaving(self, client: int, aggregated: Tensors) -> np.ndarray:
        """Return what leaves a client, before weights and masks: flat, in double precision."""
        flat = np.concatenate([t.detach().cpu().double().numpy().reshape(-1) for t in aggregated.values()])
        if self._noise is None:
            return flat
        unit = 0.0 if self._encoding is None else self._encoding.unit
        return self._noise.leaving(flat, unit, lambda: self._draw("noise", client))

    def _encodable(self, reports: list[Report], whole: Mapping[int, Report]) -> list[Report]:
        """Leave out who would have to send a number that the words cannot hold; every client left out is an event."""
        assert self._encoding is not None
        most = self._encoding.most(len(self._tasks))
        large = [r.client for r in reports if r.finite and _largest(whole[r.client].aggregated) > most]
        if large:
            task = self._tasks[0]
            why = f"a number above {most:g} does not fit privacy.encoding; use more bits or a smaller fraction"
            self._note("dropped", round=task.round + 1, step=task.step, clients=large, why=why)
        return [report for report in reports if report.client not in large]

    # ---- the protocol

    def _enough(self, weights: Mapping[int, float]) -> None:
        enough_weight(weights)
        if self._sum().alone(weights):
            raise UnsummableError(f"{len(weights)} of {len(self._tasks)} are too few to take the masks off")

    def _total(self, values: Mapping[int, np.ndarray], weights: Mapping[int, float]) -> np.ndarray:
        if self._encoding is None:
            total: np.ndarray = np.sum([weights[client] * flat for client, flat in values.items()], axis=0)
            return total
        sum_ = self._sum()
        where = {"round": self._tasks[0].round, "step": self._tasks[0].step}
        parties = Parties(
            self._server,
            {client: self._clients[client] for client in sum_.members},
            self._key_directory,
            lambda client: secrets(self._streams, "sum", client, **where),
        )
        aggregated = secure_sum(values, weights, sum_.members, parties, sum_.job, self._encoding)
        self._overhead_bytes = sum(aggregated.up.values()), sum(aggregated.down.values())
        return aggregated.total

    def _sum(self) -> Sum:
        first, encoding = self._tasks[0], self._encoding
        assert encoding is not None
        members = tuple(sorted(task.client for task in self._tasks))
        job = job_of(self._streams, "sum", first.round, first.step)
        return Sum(job, members, self._size, self._key_directory.digest, encoding)

    def _all_reduce(self, tasks: Sequence[Task]) -> MaskedAllReduce:
        where = {"round": tasks[0].round, "step": tasks[0].step}
        job = job_of(self._streams, "meeting", **where)
        return MaskedAllReduce(
            [
                Participant(
                    task.client,
                    self._clients[task.client],
                    self._key_directory,
                    job,
                    secrets(self._streams, "meeting", task.client, **where),
                )
                for task in tasks
            ]
        )

    def _draw(self, purpose: str, client: int = -1) -> Any:
        first = self._tasks[0]
        return self._streams(purpose, first.round, first.step, client)


def parted(flat: np.ndarray, like: Tensors) -> dict[str, Tensor]:
    """Cut a flat sum into tensors."""
    parts = np.split(flat, np.cumsum([t.numel() for t in like.values()])[:-1]) if like else []
    return {
        name: torch.from_numpy(part).to(t.dtype).reshape(t.shape)
        for (name, t), part in zip(like.items(), parts, strict=False)
    }


def _largest(tensors: Tensors) -> float:
    return max((float(t.abs().max()) for t in tensors.values() if t.numel()), default=0.0)
