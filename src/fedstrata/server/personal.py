"""What each client gets out of the global model: its accuracy after fine-tuning it on its own samples.

Every client that is asked takes the model, passes once over its training samples with the experiment's optimizer and
rate, without corrections, and is tested on its own test samples. Nothing of it goes back into the run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from fedstrata.client.trainer import Trainer
from fedstrata.core.client_parts import ClientPlan
from fedstrata.core.flat_model import FlatModel
from fedstrata.core.machine.threads import one_thread
from fedstrata.core.messages import Task
from fedstrata.core.sampler import Sampler
from fedstrata.data.federation import Federation

TURN = 1 << 20  # far from the turns of steps, whose random draws it must not share


@dataclass
class FineTuning:
    """Makes personal models."""

    local: ClientPlan
    federation: Federation
    sampler: Sampler
    device: str = "cpu"
    _trainer: Trainer = field(init=False)

    def __post_init__(self) -> None:
        plain = replace(self.local, parts={}, sampler=self.sampler, programs={})
        train, largest = self.federation.train, int(self.federation.train_split.sizes.max(initial=1))
        self._trainer = Trainer(plain, train.x, train.y, largest, self.device)

    def models(self, model: FlatModel, round: int, clients: Iterable[int]) -> Iterable[tuple[int, FlatModel]]:
        """Return a personal model for each client that has something to train on; others keep the global one."""
        here, down = self.federation.at(round), model.wire()
        for id in clients:
            client = here.client(int(id))
            task = Task(client.id, round, 0, turn=TURN, config={"epochs": 1}, down=down)
            with one_thread():
                report, _ = self._trainer.run_task(client, task, {})
            update = {name: tensor.to(model.params.device) for name, tensor in report.aggregated.items()}
            buffers = model.buffers + update["buffers"] if "buffers" in update else model.buffers
            yield client.id, FlatModel(model.params + update["update"], buffers)
