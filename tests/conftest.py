from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # tests run side by side: nobody may spin while others work
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # nor wait for a core that another worker has

import hypothesis
import pytest
from interpreters import ADDRESS, ready

from fedstrata.cli import main

for number in (signal.SIGINT, signal.SIGHUP):  # a shell's background jobs ignore them, and so would what tests start
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

hypothesis.settings.register_profile("patient", deadline=None)  # a busy machine is no reason to fail
hypothesis.settings.load_profile("patient")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    """Runs land under ./runs by default: no test may write into the checkout."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch):
    """Whether files survive a power cut is not tested by cutting the power."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def cli(capsys, monkeypatch):
    """Run the command line in this process; give exit code, standard output and standard error."""

    def call(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedstrata", *args])
        monkeypatch.setattr(signal, "signal", lambda *_: None)
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call


@pytest.fixture(scope="session")
def interpreters():
    """Return the process that has imported torch already."""
    with ready() as starting:
        yield starting


@pytest.fixture
def quick_processes(interpreters, monkeypatch):
    """Start processes of Python from one that is ready: the same processes, without two seconds of imports each."""
    monkeypatch.setattr(subprocess, "Popen", interpreters.popen)
    monkeypatch.setenv(ADDRESS, interpreters.address)


def pytest_collection_finish():
    """Look no more at what is there for good, torch and thousands of tests, when garbage is collected."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter):
    """Say loudly that pages were not tested; one skipped test is easily missed."""
    skipped = [r for r in terminalreporter.stats.get("skipped", ()) if "no Chromium here" in str(r.longrepr)]
    if skipped:
        terminalreporter.write_line(
            f"WARNING: NO CHROMIUM: {len(skipped)} browser tests WERE SKIPPED", red=True, bold=True
        )
