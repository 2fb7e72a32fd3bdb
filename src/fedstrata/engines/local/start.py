"""How the local engine is started: how many workers, in this process, in processes of their own, or on GPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch

from fedstrata.client.vmapped import worth_grouping
from fedstrata.core.client_parts import ClientPlan
from fedstrata.core.errors import RequestError
from fedstrata.core.events import Log
from fedstrata.core.machine.threads import cores
from fedstrata.core.options import Count
from fedstrata.core.part import Part
from fedstrata.data.federation import Federation
from fedstrata.engines.local.compiled_step import Compiler
from fedstrata.engines.local.cost import Guess, runs_alike
from fedstrata.engines.local.engine import InProcessPool, LocalEngine, WorkerPool
from fedstrata.engines.local.gpu import (
    NEIGHBOURS,
    GpuPool,
    ask_for_queues,
    has_neighbours,
    set_precision,
    uses_gpu,
    workers_on_gpu,
)
from fedstrata.engines.local.processes import ProcessPool, why_not

# Of a GPU's time, by compiled steps, measured with the CNN; ResNet-18 saves half of it. Nobody measured fp64.
SAVED = {"fp32": 0.22, "tf32": 0.3, "bf16": 0.37, "fp64": 0.22}
KNOWN = 0.25  # of the time that compiling takes, if the same was compiled before
WORTH_A_PROCESS = 20.0  # seconds of work below which starting processes costs more than it saves


@dataclass(frozen=True)
class LocalEngineOptions(Part):
    """Workers on this machine: plain PyTorch in this process, one process a core, or streams on GPUs."""

    workers: Count | Literal["auto"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["fp32", "tf32", "bf16", "fp64"] = "fp32"
    client_state: Literal["memory", "disk"] = "memory"
    vmap: Literal["auto", "always", "never"] = "auto"  # whether clients are trained many at once
    cuda_graphs: bool = True  # whether a GPU replays recorded steps
    compile: bool | Literal["auto"] = "auto"  # whether they are compiled first

    def start(self, local: ClientPlan, federation: Federation, client_updates: int, log: Log) -> LocalEngine:
        """Start the workers.

        Parameters
        ----------
        local
            The client side of the plan.
        federation
            The clients' samples.
        client_updates
            About how many there will be: whether processes pay depends on it.
        log
            Where events go.

        Returns
        -------
        LocalEngine

        Raises
        ------
        RequestError
            Where what was asked for cannot be had: a GPU, or worker processes.
        """
        ask_for_queues()
        if self.device == "cuda" and not torch.cuda.is_available():
            raise RequestError('engine.device = "cuda" but torch sees no GPU; use "cpu" or "auto"')
        device = "cuda" if uses_gpu(self.device) else "cpu"
        guess = Guess.of(local, federation, client_updates)
        together = self._vmap(local, guess, device)

        told = set[str]()

        def remark(text: str, **more: bool) -> None:  # what may differ between equal runs stands under `wall`
            if text not in told:  # every worker says the same
                told.add(text)
                log("engine", wall={"remark": text, **more})

        here = partial(InProcessPool, local, federation, together, remark)
        compiler = None
        if device == "cuda":
            set_precision(self.precision)
            workers, why = (
                workers_on_gpu(guess.products * local.batch_size) if self.workers == "auto" else self.workers,
                None,
            )
            compiler = self._compiler(local, guess, together, remark)
            gpu = GpuPool(local, federation, together, remark, workers, self.cuda_graphs, compiler=compiler)
            pool: WorkerPool = gpu
            workers = gpu.workers
        else:
            if self.compile is True:
                remark("engine.compile = true: steps are compiled for GPUs alone, and this run is on a CPU")
            workers, why = self._workers(local, guess)
            pool = here() if workers == 1 else ProcessPool(local, federation, workers, together, remark)
        about = {"workers": workers, "device": device, "precision": self.precision, "vmap": together, "remark": why}
        about |= {"compiled": compiler is not None, "torch": torch.__version__}
        log("engine", wall=about)
        return LocalEngine(pool, device, here, self.client_state)

    def _vmap(self, local: ClientPlan, guess: Guess, device: str) -> bool:
        """Say whether clients are trained many at once."""
        if self.vmap == "auto":
            return worth_grouping(local.build(), guess.products * local.batch_size, device)
        return self.vmap == "always"

    def _compiler(
        self, local: ClientPlan, guess: Guess, together: bool, remark: Callable[..., None]
    ) -> Compiler | None:
        """Return what compiles local steps, where that was asked for or pays, and say so."""
        if not self.cuda_graphs or together or self.compile is False:
            if self.compile is True:
                why = "clients are trained many at once (engine.vmap)" if together else "engine.cuda_graphs is false"
                remark(f"engine.compile = true: local steps are not compiled: {why}")
            return None
        compiler = Compiler(local, self.precision, partial(remark, compiled=False))
        if self.compile == "auto":
            waiting = guess.compiling * (KNOWN if compiler.knows else 1.0)
            if has_neighbours():  # who keep the GPU busy meanwhile
                waiting /= NEIGHBOURS
            runs = runs_alike()
            if SAVED[self.precision] * guess.on_gpu * runs < waiting:
                return None
            whose = "the run is" if runs == 1 else f"each of {runs} runs alike is"
            remark(f"local steps are compiled: {whose} guessed to keep the GPU busy for {guess.on_gpu:.0f} s")
        return compiler

    def _workers(self, local: ClientPlan, guess: Guess) -> tuple[int, str | None]:
        """Return the number of processes, and what the user should know about it."""
        if self.workers == 1 or (self.workers == "auto" and (cores() == 1 or guess.seconds < WORTH_A_PROCESS)):
            return 1, None
        if reason := why_not(local):
            if self.workers != "auto":
                raise RequestError(f"engine.workers = {self.workers}: {reason}; use engine.workers = 1")
            return 1, f"one worker is used: {reason}"
        if self.workers == "auto":
            return cores(), None
        too_many = f"{self.workers} workers on {cores()} core(s) slow each other down"
        return self.workers, too_many if self.workers > cores() else None
