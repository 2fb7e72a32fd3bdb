"""A rough guess of how long a run takes, to decide whether processes, or a compiler, pay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from fedstrata.client.products import products_a_sample
from fedstrata.core.client_parts import ClientPlan
from fedstrata.data.federation import Federation

SECONDS_A_STEP = 5e-4  # what a local step costs whatever its size
PRODUCTS_A_SECOND = 1e10  # of one core on small convolutions
SECONDS_A_STEP_ON_GPU, PRODUCTS_A_SECOND_ON_GPU = 1.4e-4, 4e13  # of an H200 on ten streams, measured
ON_ONE_STREAM = 2.5  # times as long a step takes whose successor must wait for it
SECONDS_TO_COMPILE, A_LAYER = 5.0, 0.55  # beside an H200: for the compiler itself, and for every layer
_ALIKE: ContextVar[int] = ContextVar("alike", default=1)


@contextmanager
def expecting(runs: int) -> Iterator[None]:
    """Tell engines that start meanwhile how many runs with the same steps this process makes: one compiles for all."""
    before = _ALIKE.set(runs)
    try:
        yield
    finally:
        _ALIKE.reset(before)


def runs_alike() -> int:
    """Return how many such runs are expected."""
    return _ALIKE.get()


@dataclass(frozen=True)
class Guess:
    """What a run costs, from the model's multiplications, the mean client and the number of client updates."""

    products: int  # of a sample's forward pass
    seconds: float  # of the whole run on one core
    on_gpu: float  # the same on a GPU
    compiling: float  # seconds before the first step of a GPU, if it is compiled

    @classmethod
    def of(cls, local: ClientPlan, federation: Federation, client_updates: int) -> Guess:
        """Guess."""
        samples = len(federation.train_split.rows) / len(federation)
        steps = local.epochs * samples / local.batch_size
        module = local.build().to(local.dtype)
        products = products_a_sample(module, local.inputs(federation.train.x[:2], local.dtype))
        all_products = 3 * products * local.epochs * samples
        update = steps * SECONDS_A_STEP + all_products / PRODUCTS_A_SECOND
        update_on_gpu = steps * SECONDS_A_STEP_ON_GPU + all_products / PRODUCTS_A_SECOND_ON_GPU
        on_gpu = client_updates * update_on_gpu
        if not client_updates:  # clients work together: a round is a pass over all samples, one step after another
            update_on_gpu += (ON_ONE_STREAM - 1) * steps * SECONDS_A_STEP_ON_GPU
            on_gpu = local.rounds * len(federation) * update_on_gpu / local.epochs
        layers = sum(not any(layer.children()) for layer in module.modules())
        return cls(products, client_updates * update, on_gpu, SECONDS_TO_COMPILE + layers * A_LAYER)
