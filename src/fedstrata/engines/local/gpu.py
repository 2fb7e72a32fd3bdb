"""Workers on GPUs: each replays its own recorded step on its own stream, several side by side on every device.

Samples lie on the device as the network takes them, and batches are gathered there; what clients keep between client
updates stays there too, as far as it fits. The host only submits work, to one worker after another, and reads nothing
until all of a step is submitted. Clients are dealt longest first. Where a device runs out of memory, what clients keep
goes to the host, and after that half of the workers are given up. The step is done again: a client update leaves
nothing behind.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from threading import Thread

import torch
from torch import Tensor

from fedstrata.client.whole_batch import WHOLE_BATCH, looks_at_whole_batch
from fedstrata.core.batch_norm import By
from fedstrata.core.client_parts import ClientPlan
from fedstrata.core.engine import SumTensors
from fedstrata.core.errors import FedstrataError
from fedstrata.core.inputs import Inputs
from fedstrata.core.messages import Task, Tensors
from fedstrata.data.federation import Federation
from fedstrata.engines.local.compiled_step import TENSOR_CORES, Compiler
from fedstrata.engines.local.cuda_graph import Recorder
from fedstrata.engines.local.engine import Answer, Assignment, InProcessPool, Worker, group_tasks

LARGE = 1e9  # multiplications of a batch that keep a GPU busy by themselves
FOR_SAMPLES, FOR_STATE = 0.25, 0.25  # of the memory that is free, for normalised samples and for client state
CHUNK = 8192  # samples that are normalised at a time
MPS_PIPES = "CUDA_MPS_PIPE_DIRECTORY"  # set where processes compute on a GPU side by side
NEIGHBOURS = 4  # as many as fill a GPU


def uses_gpu(device: str) -> bool:
    """Say whether `engine.device` means a GPU on this machine."""
    return device != "cpu" and torch.cuda.is_available()


def has_neighbours() -> bool:
    """Say whether other processes use the GPU while this one does not."""
    return MPS_PIPES in os.environ


def wake_gpu() -> None:
    """Begin what a GPU needs before its first step, a second in which the host can read data."""
    ask_for_queues()
    Thread(target=_first_step, name="wake-gpu", daemon=True).start()


def ask_for_queues() -> None:
    """Get a hardware queue for every worker, which otherwise share eight; works until the GPU is first used."""
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


def _first_step() -> None:
    with suppress(RuntimeError):  # what goes wrong here goes wrong again where it is told of
        w = torch.zeros(4, 1, 3, 3, device="cuda")
        torch.conv2d(w.new_zeros(1, 1, 8, 8), w).flatten(1) @ w.new_zeros(144, 1)
        torch.cuda.synchronize()


def set_precision(precision: str) -> None:
    """Say how a GPU computes: left alone, torch rounds convolutions to tf32, and products not."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision in TENSOR_CORES


def workers_on_gpu(products: float) -> int:
    """Say how many workers a GPU has, by the multiplications of a batch: small kernels leave room for others."""
    return (10 if products < LARGE else 4) * torch.cuda.device_count()


class GpuPool(InProcessPool):
    """Runs tasks on one or several GPUs."""

    def __init__(
        self,
        local: ClientPlan,
        federation: Federation,
        together: bool,
        give_up: Callable[[str], None],
        workers: int = 1,
        record: bool = True,
        largest: int | None = None,
        compiler: Compiler | None = None,
    ):
        self._record, self._streams, self._compiler = record, list[torch.cuda.Stream](), compiler
        devices = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
        self._pad = not looks_at_whole_batch(local, federation.train.x)
        if not self._pad:
            give_up(f"a step is recorded for every size of a batch: {WHOLE_BATCH}")
        local, x = prepare_samples(local, federation.train.x, devices[:workers])
        self._data = {d: (x[d], federation.train.y.to(d)) for d in devices[:workers]}
        self._wanted = [devices[i % len(devices)] for i in range(workers)]
        super().__init__(local, federation, together, give_up, largest)
        while len(self._workers) < workers and self._has_room():
            self._workers.append(self._make_worker(*self._data[self._wanted[len(self._workers)]]))
        self.room = {torch.device(d): int(FOR_STATE * torch.cuda.mem_get_info(d)[0]) for d in self._data}

    @property
    def workers(self) -> int:
        """How many there are."""
        return len(self._workers)

    def _has_room(self) -> bool:
        """Say whether the next worker fits; each needs about as much as the last, and some for what it computes."""
        device = self._wanted[len(self._workers)]
        free, _ = torch.cuda.mem_get_info(device)
        used = 4 * (8 * self._workers[0].trainer.space.P)
        if free > 4 * used:
            return True
        self._give_up(f"{len(self._workers)} workers instead of {len(self._wanted)}: {device} has no memory for more")
        return False

    def _make_worker(self, x: Tensor, y: Tensor) -> Worker:
        device = self._wanted[min(len(self._streams), len(self._wanted) - 1)]
        fastest = 1.0 if self._federation.speeds is None else float(self._federation.speeds.max())
        worker = Worker(self._local, *self._data[device], self._largest, fastest, device, self._pad, self._give_up)
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.default_stream(device))
        if self._record:
            trainer = worker.trainer
            step = trainer.step if self._compiler is None else self._compiler.step_of(trainer)
            trainer.recorder = Recorder(step, trainer.state, stream, self._give_up)
            worker.record = lambda vmapped: Recorder(vmapped.step, vmapped.state, stream, self._give_up)
        self._streams.append(stream)
        return worker

    def work(self, tasks: Sequence[Task], client_states: Mapping[int, Tensors]) -> list[Answer]:
        """Make all client updates; answers in task order."""
        while True:
            try:
                return self._work(tasks, client_states)
            except torch.OutOfMemoryError as error:
                kept = len(self._workers)
                if self.evict is not None and self.evict():
                    self._give_up("what clients keep goes to the host's memory: the device ran out of memory")
                elif kept == 1:
                    raise FedstrataError(
                        f"the GPU has too little memory even for one worker: {error}; use a smaller train.batch_size "
                        'or model, or engine.device = "cpu". The last checkpoint is safe'
                    ) from None
                else:
                    kept //= 2
                    self._give_up(f"{kept} workers instead of {len(self._workers)}: the device ran out of memory")
            del self._workers[kept:], self._streams[kept:]
            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    def _work(self, tasks: Sequence[Task], client_states: Mapping[int, Tensors]) -> list[Answer]:
        queues: list[list[list[int]]] = [[] for _ in self._workers]
        load = [0] * len(queues)
        for group in group_tasks(tasks, self._sizes, self._together, len(self._data)):
            shortest = load.index(min(load))
            queues[shortest].append(group)
            load[shortest] += sum(int(self._sizes[tasks[i].client]) for i in group)
        down = self._send_down(tasks[0])
        answers: dict[int, Answer] = {}
        for turn in range(max(map(len, queues))):
            begun = []  # every worker gets work before anything is collected
            for worker, stream, queue in zip(self._workers, self._streams, queues, strict=True):
                if turn < len(queue):
                    stream.wait_stream(torch.cuda.default_stream(stream.device))
                    with torch.cuda.stream(stream):
                        who = [self._assign_on(tasks[i], client_states, down, stream.device) for i in queue[turn]]
                        begun.append((stream, queue[turn], worker.submit(who)))
            for stream, group, collect in begun:
                with torch.cuda.stream(stream):
                    answers |= dict(zip(group, collect(), strict=True))
        for stream in self._streams:
            torch.cuda.default_stream(stream.device).wait_stream(stream)
        return [answers[i] for i in range(len(tasks))]

    def lockstep(
        self, tasks: Sequence[Task], client_states: Mapping[int, Tensors], by: By, add: SumTensors | None = None
    ) -> tuple[list[Answer], Tensor | None]:
        """Clients that meet compute step by step: what they tell each other cannot be recorded."""
        self._need_workers(len(tasks))  # those that are new have recorders too
        recorders = [worker.trainer.recorder for worker in self._workers]
        for worker in self._workers:
            worker.trainer.recorder = None
        try:
            return super().lockstep(tasks, client_states, by, add)
        finally:  # where a step fails and the run goes on, too
            for worker, recorder in zip(self._workers, recorders, strict=True):
                worker.trainer.recorder = recorder

    def _assignments(self, tasks: Sequence[Task], client_states: Mapping[int, Tensors]) -> list[Assignment]:
        down, places = self._send_down(tasks[0]), [worker.trainer.buf.w.device for worker in self._workers]
        return [self._assign_on(task, client_states, down, at) for task, at in zip(tasks, places, strict=False)]

    def _send_down(self, task: Task) -> dict[torch.device, Tensors]:
        """Bring what all tasks of a step share to every device."""
        return {torch.device(d): {k: to_device(t, d) for k, t in task.down.items()} for d in self._data}

    def _assign_on(
        self,
        task: Task,
        client_states: Mapping[int, Tensors],
        down: Mapping[torch.device, Tensors],
        device: torch.device,
    ) -> Assignment:
        """Bring what a client update needs to the device, without waiting for it.

        Samplers and programs keep theirs here.
        """
        client, task, client_state = self._assignment(task, client_states)
        moved = {k: to_device(t, device) if "/" in k else t for k, t in client_state.items()}
        return client, replace(task, down=down[device]), moved

    def _use_stream(self) -> AbstractContextManager[None]:
        return self._on_stream() if self._streams else nullcontext()

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        stream = self._streams[0]
        stream.wait_stream(torch.cuda.default_stream(stream.device))
        with torch.cuda.stream(stream):
            yield
        torch.cuda.default_stream(stream.device).wait_stream(stream)


def to_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Bring a tensor to a device; the host goes on at once."""
    return tensor.pin_memory().to(device, non_blocking=True) if not tensor.is_cuda else tensor.to(device)


def prepare_samples(local: ClientPlan, x: Tensor, devices: Sequence[str]) -> tuple[ClientPlan, dict[str, Tensor]]:
    """Put samples on devices as the network takes them, once for all steps, if there is room for so many numbers.

    Returns the plan for such samples, in which only augmentation is left to be done.
    """
    there = {device: x.to(device) for device in devices}
    wide = x.numel() * torch.empty((), dtype=local.dtype).element_size()
    if local.inputs.keeps(x) or any(wide > FOR_SAMPLES * torch.cuda.mem_get_info(device)[0] for device in devices):
        return local, there
    for device, stored in there.items():
        there[device] = torch.cat([local.inputs(part, local.dtype) for part in torch.split(stored, CHUNK)])
    return replace(local, inputs=Inputs(crop=local.inputs.crop, flip=local.inputs.flip)), there
