"""What processes share has room on disk where memory has too little, as in containers, and nobody dies of that."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedstrata import train
from fedstrata.core.errors import FedstrataError
from fedstrata.engines.local.processes import ProcessPool
from fedstrata.engines.local.shared_memory import HERE, ON_DISK, NoRoomError, Region, SharedFiles
from fedstrata.testing.tiny import session_of

SMALL, LARGE = {"a": np.arange(10.0)}, {"a": np.arange(1e6), "b": np.arange(3)}
IN_A_SMALL_CONTAINER = "mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "


@pytest.fixture
def files():
    shared = SharedFiles()
    yield shared
    shared.close()


def free(monkeypatch, size):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=size))


def test_what_has_no_room_in_memory_goes_to_disk_and_is_found_there(files, monkeypatch):
    free(monkeypatch, 1 << 20)
    one, other = Region(files.numbers), Region(files.numbers)
    first, end = one.put(SMALL)
    assert other.take(first)["a"].tolist() == SMALL["a"].tolist()
    assert not other.on_disk
    then, _ = one.put(LARGE, end)
    assert (first["a"][0], then["a"][0]) == (HERE, ON_DISK)
    assert {name: array.tolist() for name, array in other.take(then).items()} == {
        name: array.tolist() for name, array in LARGE.items()
    }
    assert other.take(first)["a"].tolist() == SMALL["a"].tolist()
    assert one.on_disk
    assert other.on_disk


def test_room_that_others_took_meanwhile_is_noticed(files, monkeypatch):
    free(monkeypatch, 1 << 40)
    allocate = os.posix_fallocate

    def full(file, start, size):
        if file == files.numbers[HERE]:
            raise OSError(errno.ENOSPC, "No space left on device")
        allocate(file, start, size)

    monkeypatch.setattr(os, "posix_fallocate", full)
    region = Region(files.numbers)
    layout, _ = region.put(LARGE)
    assert layout["a"][0] == ON_DISK
    assert region.take(layout)["a"].tolist() == LARGE["a"].tolist()


@pytest.mark.parametrize("said", [errno.EOPNOTSUPP, None])
def test_where_no_room_can_be_reserved_files_are_made_longer(files, monkeypatch, said):
    def refuse(*_):
        raise OSError(said, "not offered")

    if said is None:
        monkeypatch.delattr(os, "posix_fallocate")  # macOS
    else:
        monkeypatch.setattr(os, "posix_fallocate", refuse)
    region = Region(files.numbers)
    layout, _ = region.put(LARGE)
    assert region.take(layout)["a"].tolist() == LARGE["a"].tolist()


def test_no_room_anywhere_is_an_error_that_says_what_to_do(files, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(NoRoomError, match=r"/dev/shm nor .* room for 8 MB .*--shm-size.*TMPDIR.*engine.workers = 1"):
        Region(files.numbers).put(LARGE)


@pytest.mark.extended
def test_a_run_in_a_container_with_little_shared_memory_ends_as_elsewhere(tmp_path):
    """In a mount namespace of its own, with 1 MB at /dev/shm and a model of 2 MB."""
    asked = {"train.rounds": 1, "data.clients": 4, "model.name": "mlp", "model.hidden": [8000], "engine.workers": 2}
    asked |= {"engine.device": "cpu", "train.epochs": 1}
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""
        from fedstrata import train
        train(overrides={asked!r}, out={str(tmp_path / "there")!r})
        """)
    )
    inside = ["unshare", "-m", "sh", "-c", IN_A_SMALL_CONTAINER + '"$@"', "sh", sys.executable, str(script)]
    if (
        not shutil.which("unshare")
        or subprocess.run([*inside[:4], IN_A_SMALL_CONTAINER + "true"], check=False).returncode
    ):
        pytest.skip("needs the right to mount a file system")
    ended = subprocess.run(inside, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    elsewhere = train(overrides=asked | {"engine.workers": 1}, out=tmp_path / "here")
    there = type(elsewhere)(tmp_path / "there")
    assert all(torch.equal(t, there.model()[name]) for name, t in elsewhere.model().items())
    assert any("--shm-size" in str(event.get("wall", {}).get("remark")) for event in there.events())


@pytest.mark.usefixtures("quick_processes")
def test_that_disk_is_used_is_said_once(monkeypatch):
    free(monkeypatch, 0)
    work, remarks = session_of(), []
    pool = ProcessPool(work.plan.local, work.federation, 2, give_up=remarks.append)
    pool.work([], {})
    pool.close()
    (said,) = remarks
    assert "/dev/shm has too little room" in said


def test_workers_that_die_before_they_are_ready_are_named_and_nothing_is_left(monkeypatch):
    started = []

    def start(module, *files, environment=None):
        child = start_child("fedstrata.no_such_module", *files, environment=environment)
        started.append(child[0])
        return child

    processes = sys.modules[ProcessPool.__module__]
    start_child = processes.start_child
    monkeypatch.setattr(processes, "start_child", start)
    work = session_of()
    with pytest.raises(
        FedstrataError, match=r"worker 0 ended with exit code 1 before it was ready.*engine.workers = 1"
    ):
        ProcessPool(work.plan.local, work.federation, 2)
    assert [process.poll() is not None for process in started] == [True, True]
