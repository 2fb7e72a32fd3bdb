"""When the minutes are up, cells that run side by side end, in the middle of a round too."""

from multiprocessing import Pipe
from types import SimpleNamespace

from fedstrata.runs.compare import pool


def test_cells_at_work_end_when_no_time_is_left(monkeypatch):
    ended, told = [], []
    ours, theirs = Pipe()  # nobody ever answers on the other side
    monkeypatch.setattr(pool, "_end", ended.extend)
    monkeypatch.setattr(pool, "_on_one_worker", lambda experiment: experiment)
    experiment = SimpleNamespace(model="mlp")
    cells = [SimpleNamespace(path="a", method="fedavg", experiment=experiment, prunable=False)] * 2
    worker = pool.CellWorker(None, ours)
    done = pool._share_out(cells, lambda *said: told.append(said), 1, lambda: worker, lambda cell: True, lambda: 0.0)
    assert done is False
    assert theirs.recv() == ("a", experiment, False, 1)
    assert ended == [worker]
    assert not told
