"""Cells at a time on a GPU: how many hardware queues each may take."""

from __future__ import annotations

import pytest

from fedstrata.runs.compare import gpu_sharing


@pytest.mark.parametrize(("jobs", "wanted", "each"), [(4, None, 16), (100, None, 1), (4, "10", 10), (4, "32", 16)])
def test_cells_share_the_queues_and_a_user_may_ask_for_fewer(jobs, wanted, each, monkeypatch):
    monkeypatch.setenv(gpu_sharing.MPS_PIPES, "/somebody's")
    monkeypatch.delenv(gpu_sharing.CONNECTIONS, raising=False)
    if wanted:
        monkeypatch.setenv(gpu_sharing.CONNECTIONS, wanted)
    with gpu_sharing.sharing_gpu(jobs) as environment:
        assert environment[gpu_sharing.CONNECTIONS] == str(each)


def test_processes_share_the_cores_that_compile(monkeypatch):
    monkeypatch.setattr(gpu_sharing, "can_share", lambda: False)
    monkeypatch.setattr(gpu_sharing, "cores", lambda: 16)
    monkeypatch.delenv(gpu_sharing.COMPILERS, raising=False)
    for asked, said in (({}, "4"), ({gpu_sharing.COMPILERS: "3"}, "3")):
        for key, value in asked.items():
            monkeypatch.setenv(key, value)
        with gpu_sharing.sharing_gpu(4) as environment:
            assert environment[gpu_sharing.COMPILERS] == said
