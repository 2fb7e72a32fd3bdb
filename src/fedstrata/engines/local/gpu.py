"""Lanes on GPUs: each replays its own recorded step on its own stream, several side by side on every device.

Samples lie on the device and batches are gathered there. The host only submits work, to one lane after another, and
reads nothing until all of a step is submitted. Clients are dealt longest first. A lane that runs out of memory is given
up, and the step is done again by those that are left: a visit leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from fedstrata.client.all_reduce import Add
from fedstrata.core.batch_norm import By
from fedstrata.core.client_parts import Local
from fedstrata.core.errors import FedstrataError
from fedstrata.core.messages import Task, Tensors
from fedstrata.core.transfer import away, home
from fedstrata.data.federation import Federation
from fedstrata.engines.local.cuda_graph import Recorder
from fedstrata.engines.local.groups import grouped
from fedstrata.engines.local.in_process import InProcess
from fedstrata.engines.local.worker import Answer, Bench, Visiting

LARGE = 1e9  # multiplications of a batch that keep a GPU busy by themselves


def lanes_on_gpu(products: float) -> int:
    """Say how many lanes a GPU has, by the multiplications of a batch: small kernels leave room for others."""
    return (10 if products < LARGE else 4) * torch.cuda.device_count()


class OnGpu(InProcess):
    """Visits clients on one or several GPUs."""

    def __init__(
        self,
        local: Local,
        federation: Federation,
        together: bool,
        give_up: Callable[[str], None],
        lanes: int = 1,
        record: bool = True,
    ):
        self._record, self._streams = record, list[torch.cuda.Stream]()
        devices = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
        self._data = {d: (federation.train.x.to(d), federation.train.y.to(d)) for d in devices[:lanes]}
        self._wanted = [devices[i % len(devices)] for i in range(lanes)]
        super().__init__(local, federation, together, give_up)
        while len(self._benches) < lanes and self._room():
            self._benches.append(self._make_bench(*self._data[self._wanted[len(self._benches)]]))

    @property
    def lanes(self) -> int:
        """How many there are."""
        return len(self._benches)

    def _room(self) -> bool:
        """Say whether the next lane fits; each needs about as much as the last, and some for what it computes."""
        device = self._wanted[len(self._benches)]
        free, _ = torch.cuda.mem_get_info(device)
        used = 4 * (8 * self._benches[0].lane.space.P)
        if free > 4 * used:
            return True
        self._give_up(f"{len(self._benches)} lanes instead of {len(self._wanted)}: {device} has no memory for more")
        return False

    def _make_bench(self, x: Tensor, y: Tensor) -> Bench:
        device = self._wanted[min(len(self._streams), len(self._wanted) - 1)]
        fastest = 1.0 if self._federation.speeds is None else float(self._federation.speeds.max())
        bench = Bench(self._local, *self._data[device], int(self._sizes.max()), fastest, device, True, self._give_up)
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.default_stream(device))
        if self._record:
            bench.lane.recorder = Recorder(bench.lane.step, bench.lane.state, stream, self._give_up)
            bench.record = lambda flock: Recorder(flock.step, flock.state, stream, self._give_up)
        self._streams.append(stream)
        return bench

    def work(self, tasks: Sequence[Task], keeps: Mapping[int, Tensors]) -> list[Answer]:
        """Make all visits; answers in task order."""
        while True:
            try:
                return self._work(tasks, keeps)
            except torch.OutOfMemoryError as error:
                if len(self._benches) == 1:
                    raise FedstrataError(
                        f"the GPU has too little memory even for one lane: {error}; use a smaller train.batch_size "
                        'or model, or engine.device = "cpu". The last checkpoint is safe'
                    ) from None
                half = len(self._benches) // 2
                self._give_up(f"{half} lanes instead of {len(self._benches)}: the device ran out of memory")
            del self._benches[half:], self._streams[half:]
            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    def _work(self, tasks: Sequence[Task], keeps: Mapping[int, Tensors]) -> list[Answer]:
        queues: list[list[list[int]]] = [[] for _ in self._benches]
        load = [0] * len(queues)
        for group in grouped(tasks, self._sizes, self._together, len(self._data)):
            lane = load.index(min(load))
            queues[lane].append(group)
            load[lane] += sum(int(self._sizes[tasks[i].client]) for i in group)
        down = {d: {k: away(t, d) for k, t in tasks[0].down.items()} for d in self._data}
        answers: dict[int, Answer] = {}
        for turn in range(max(map(len, queues))):
            begun = []  # every lane gets work before anything is collected
            for bench, stream, queue in zip(self._benches, self._streams, queues, strict=True):
                if turn < len(queue):
                    stream.wait_stream(torch.cuda.default_stream(stream.device))
                    with torch.cuda.stream(stream):
                        who = [self._there(tasks[i], keeps, down, stream.device) for i in queue[turn]]
                        begun.append((stream, queue[turn], bench.begin(who)))
            for stream, group, collect in begun:
                with torch.cuda.stream(stream):
                    answers |= dict(zip(group, collect(), strict=True))
        for stream in self._streams:
            torch.cuda.default_stream(stream.device).wait_stream(stream)
        return self._brought_home([answers[i] for i in range(len(tasks))])

    def lockstep(
        self, tasks: Sequence[Task], keeps: Mapping[int, Tensors], by: By, add: Add | None = None
    ) -> tuple[list[Answer], Tensor | None]:
        """Clients that meet compute step by step: what they tell each other cannot be recorded."""
        recorders = [bench.lane.recorder for bench in self._benches]
        for bench in self._benches:
            bench.lane.recorder = None
        done = super().lockstep(tasks, keeps, by, add)
        for bench, recorder in zip(self._benches, recorders, strict=False):
            bench.lane.recorder = recorder
        return done

    def _there(
        self, task: Task, keeps: Mapping[int, Tensors], down: Mapping[str, Tensors], device: torch.device
    ) -> Visiting:
        """Bring what a visit needs to the device, without waiting for it; samplers and programs keep theirs here."""
        client, task, keep = self._visiting(task, keeps)
        moved = {k: away(t, device) if "/" in k else t for k, t in keep.items()}
        return client, replace(task, down=down[f"cuda:{device.index}"]), moved

    def _brought_home(self, answers: Sequence[Answer]) -> list[Answer]:
        """Keep client state in the host's memory; read only when all work is submitted."""
        return [(r, None if new is None else {k: home(t) for k, t in new.items()}) for r, new in answers]

    def _at_work(self) -> AbstractContextManager[None]:
        return self._on_stream() if self._streams else nullcontext()

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        stream = self._streams[0]
        stream.wait_stream(torch.cuda.default_stream(stream.device))
        with torch.cuda.stream(stream):
            yield
        torch.cuda.default_stream(stream.device).wait_stream(stream)
