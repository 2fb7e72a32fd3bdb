"""Processes that a command of `fedstrata deploy` starts: they end with it, or with the next one."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from contextlib import closing

import pytest

from fedstrata.core.errors import RequestError
from fedstrata.deploy import processes, state


def wait_for(true, seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


SLEEP = "import time; time.sleep(600)"
NESTED = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {SLEEP!r}]); time.sleep(600)"


def test_processes_end_with_all_that_they_started(tmp_path):
    household = processes.Household(tmp_path, "a test")
    child = household.start("one", [sys.executable, "-c", NESTED], tmp_path / "log", dict(os.environ))
    began = {pid: since for pid, (_, since) in processes.everybody().items()}
    head = [(child.pid, began[child.pid])]
    wait_for(lambda: len(processes.family(head)) == 2)
    members = processes.family(head)
    assert household.gone() is None
    assert processes.running(tmp_path)
    with pytest.raises(RequestError, match="a test is already running on this machine"):
        processes.Household(tmp_path, "a test")
    household.close()
    assert not processes.alive(members)
    assert not processes.running(tmp_path)


def test_a_process_that_is_started_on_a_full_disk_is_not_lost_sight_of(tmp_path, monkeypatch):
    household = processes.Household(tmp_path, "a test")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(processes, "write_atomically", full)
    child = household.start("one", [sys.executable, "-c", SLEEP], None, dict(os.environ))
    household.drop("one")
    child.kill()
    child.wait()
    household.close()


WITH_PARENT = "from fedstrata.core.machine.parent_line import end_with_parent; end_with_parent(); "
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "


def killed(folder, code: str) -> processes.Known:
    """Return the process that a command had started when it was killed."""
    script = f"""
import os, sys
from pathlib import Path
from fedstrata.deploy.processes import Household
Household(Path({str(folder)!r}), "x").start("one", [sys.executable, "-c", {code!r}], None, dict(os.environ))
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", script], check=False, env=dict(os.environ))
    (known,) = [tuple(k) for k in json.loads((folder / "processes.json").read_text())]
    return known


@pytest.mark.parametrize("code", [WITH_PARENT + SLEEP, WITH_PARENT + DEAF + SLEEP])
def test_what_a_killed_command_started_ends_by_itself(tmp_path, code):
    known = killed(tmp_path, code)
    wait_for(lambda: not processes.alive([known]), 60)
    processes.Household(tmp_path, "x").close()


def test_a_process_outlives_others_that_its_parent_started(tmp_path):
    household = processes.Household(tmp_path, "a test")
    told = WITH_PARENT + "print(__import__('os').environ.get('FEDSTRATA_PARENT_LINE'), flush=True); " + SLEEP
    first = household.start("one", [sys.executable, "-c", told], tmp_path / "log", dict(os.environ))
    household.start("two", [sys.executable, "-c", "pass"], None, dict(os.environ)).wait()
    household.drop("two")
    wait_for(lambda: (tmp_path / "log").read_text() == "None\n")  # what it starts itself has another parent
    assert first.poll() is None
    household.close()
    assert household._lines == {}


def test_a_killed_command_s_folder_for_sockets_is_removed_by_the_next_one(tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(state, "LONGEST_PATH", 1000)  # nobody listens there
    other = tmp_path / "tmp/fedstrata-site-b-x"
    other.mkdir()
    script = f"""
import os
from contextlib import closing
from pathlib import Path
from fedstrata.deploy import state
from fedstrata.deploy.processes import Household
folder, state.LONGEST_PATH = Path({str(tmp_path)!r}), 1000
with state.for_sockets("site-a") as sockets, closing(Household(folder, "x")):
    state.sweep_sockets(folder, sockets)
    (sockets / "site").touch()
    os.kill(os.getpid(), 9)
"""
    for _ in range(2):
        around = dict(os.environ, TMPDIR=str(tmp_path / "tmp"))
        subprocess.run([sys.executable, "-c", script], check=False, env=around)
        left = {*(tmp_path / "tmp").iterdir()} - {other}
        assert len(left) == 1, "that of the life before is gone"
    with state.for_sockets("site-a") as sockets, closing(processes.Household(tmp_path, "x")):
        state.sweep_sockets(tmp_path, sockets)
        assert {*(tmp_path / "tmp").iterdir()} == {other, sockets}
    assert [*(tmp_path / "tmp").iterdir()] == [other]


def test_what_a_killed_command_left_is_ended_by_the_next_one(tmp_path):
    known = killed(tmp_path, NESTED)
    assert processes.alive([known])
    assert processes.alive([(known[0], "0")]) == set(), "a process with the same number that began later is another"
    household = processes.Household(tmp_path, "x")
    try:
        wait_for(lambda: not processes.alive([known]))
    finally:
        household.close()
