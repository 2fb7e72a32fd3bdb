"""FedAvg by pfl-research, in one process, as its own benchmarks set it up; it takes batches in a fixed order."""

from __future__ import annotations

from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.peers.job import LR, Job, Stopwatch, network


class Classifier(nn.Module):
    """A network with its loss, which is what pfl trains."""

    def __init__(self, inner: nn.Module, watch: Stopwatch):
        super().__init__()
        self.inner, self.watch = inner, watch

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss of a batch."""
        self.watch.steps += 1
        return cross_entropy(self.inner(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        """Nothing is evaluated."""
        return {}


class Lap(TrainingProcessCallback):
    """Ends a round."""

    def __init__(self, watch: Stopwatch):
        self.watch = watch

    def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
        """Take the time."""
        self.watch.lap()
        return False, Metrics()


def run(job: Job, watch: Stopwatch) -> None:
    """Run the rounds."""
    torch.set_num_threads(job.threads)
    x, y = job.arrays()

    def dataset(client: int) -> PyTorchTensorDataset:
        return PyTorchTensorDataset((x[job.rows(client)], y[job.rows(client)]), user_id=str(client))

    data = FederatedDataset(dataset, get_user_sampler("minimize_reuse", list(range(job.clients))))
    module = Classifier(network(job.model), watch)
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=job.rounds,
            evaluation_frequency=10**9,
            train_cohort_size=job.per_round,
            val_cohort_size=0,
        ),
        SimulatedBackend(data, data, postprocessors=[WeightByDatapoints()]),
        model,
        NNTrainHyperParams(local_learning_rate=LR, local_num_epochs=1, local_batch_size=job.batch),
        callbacks=[Lap(watch)],
        send_metrics_to_platform=False,
    )
