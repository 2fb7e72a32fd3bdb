"""On a CPU, what a GPU keeps and counts: client state by device, what leaves when memory is short, multiplications."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fedstrata.client.products import products_a_sample
from fedstrata.core.errors import FedstrataError
from fedstrata.engines.local import client_states
from fedstrata.engines.local.client_states import ClientStateStore
from fedstrata.engines.local.engine import InProcessPool
from fedstrata.engines.local.gpu import GpuPool

ONE, OTHER = torch.device("cuda:0"), torch.device("cuda:1")
TAG = (0, 0)


class Kept:
    """A tensor of 40 bytes as the store sees it."""

    def __init__(self, device):
        self.device, self.is_cuda = device, device.type == "cuda"


@pytest.fixture(autouse=True)
def pretended(monkeypatch):
    monkeypatch.setattr(client_states, "tensor_bytes", lambda tensors: 40 * len(tensors))
    monkeypatch.setattr(client_states, "to_host", lambda tensor: Kept(torch.device("cpu")))


def where(store):
    return {client: str(tensors["part/v"].device) for client, (_, tensors) in store.states.items()}


def test_each_device_has_its_own_room():
    store = ClientStateStore({ONE: 80, OTHER: 40})
    for client, device in enumerate((ONE, OTHER, ONE, OTHER)):
        store.put(client, TAG, {"part/v": Kept(device)})
    assert where(store) == {0: "cuda:0", 1: "cpu", 2: "cuda:0", 3: "cuda:1"}
    store.put(0, TAG, {"part/v": Kept(OTHER)})  # its next update was on the other one
    assert where(store) == {0: "cuda:1", 1: "cpu", 2: "cuda:0", 3: "cpu"}
    store.put(4, TAG, {"part/v": Kept(ONE)})
    assert where(store)[2] == where(store)[4] == "cuda:0"


def test_a_device_that_nobody_spoke_of_keeps_nothing():
    store = ClientStateStore({ONE: 80})
    store.put(0, TAG, {"part/v": Kept(OTHER), "here": Kept(torch.device("cpu"))})
    assert where(store) == {0: "cpu"}


def test_all_leaves_when_memory_is_short_and_stays_away():
    store = ClientStateStore({ONE: 80, OTHER: 80})
    assert not store.evict()  # nothing to gain
    store.put(0, TAG, {"part/v": Kept(ONE)})
    store.put(1, TAG, {"part/v": Kept(OTHER)})
    assert where(store) == {0: "cuda:0", 1: "cuda:1"}
    assert store.evict()
    assert not store.evict()
    store.put(2, TAG, {"part/v": Kept(ONE)})
    assert set(where(store).values()) == {"cpu"}


def pool_of(workers):
    """Return a pool as it is after its start, without a GPU."""
    pool = GpuPool.__new__(GpuPool)
    pool._workers = [SimpleNamespace(trainer=SimpleNamespace(recorder=f"recorder {i}")) for i in range(workers)]
    pool._streams = list(range(workers))
    return pool


def test_what_clients_keep_leaves_before_workers_do(monkeypatch):
    pool, said, failing = pool_of(4), [], [True, True, True, False]
    store = ClientStateStore({ONE: 80})
    store.put(0, TAG, {"part/v": Kept(ONE)})
    pool.evict, pool._give_up = store.evict, said.append

    def work(tasks, states):
        if failing.pop(0):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return "done"

    monkeypatch.setattr(pool, "_work", work)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert pool.work([], {}) == "done"
    assert [line.split(":")[0] for line in said] == [
        "what clients keep goes to the host's memory",
        "2 workers instead of 4",
        "1 workers instead of 2",
    ]
    assert len(pool._workers) == len(pool._streams) == 1
    failing[:] = [True]
    with pytest.raises(FedstrataError, match="even for one worker"):
        pool.work([], {})


def test_new_workers_of_clients_that_meet_record_nothing_either(monkeypatch):
    pool, seen = pool_of(1), []
    pool._workers[0].trainer.buf = SimpleNamespace(x=None, y=None)
    pool._make_worker = lambda x, y: SimpleNamespace(trainer=SimpleNamespace(recorder="new"))
    monkeypatch.setattr(
        InProcessPool, "lockstep", lambda self, *_: seen.extend(w.trainer.recorder for w in self._workers)
    )
    pool.lockstep([None] * 3, {}, None)
    assert seen == [None] * 3
    assert [worker.trainer.recorder for worker in pool._workers] == ["recorder 0", "new", "new"]


@pytest.mark.parametrize(
    ("layers", "shape", "products"),
    [
        ([nn.Linear(5, 7)], (5,), 35),
        ([nn.Linear(5, 7)], (11, 5), 11 * 35),  # a sequence: each weight once for each of its positions
        ([nn.Linear(5, 7)], (3, 4, 5), 12 * 35),
        ([nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.Flatten(), nn.Linear(8 * 36, 2)], (3, 6, 6), 36 * 216 + 576),
        ([nn.Conv1d(4, 6, 3, groups=2)], (4, 10), 8 * 6 * 2 * 3),
        ([nn.ConvTranspose1d(4, 6, 3, stride=3)], (4, 10), 10 * 4 * 6 * 3),
    ],
)
def test_multiplications_of_a_sample(layers, shape, products):
    assert products_a_sample(nn.Sequential(*layers), torch.zeros(2, *shape)) == products
