"""The tests themselves, where shells and schedulers start them: with Ctrl-C ignored, as in every background job."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent
STOPPING = (  # tests that press Ctrl-C
    "tests/cli/test_cli.py::test_ctrl_c_stops_cleanly_and_says_how_to_resume",
    "tests/cli/test_cli.py::test_a_stop_that_a_library_swallowed_is_asked_for_again",
    "tests/runs/test_compare.py::test_ctrl_c_ends_all_workers_and_the_comparison_goes_on_where_it_was",
)
IGNORING = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(sys.executable, sys.argv[1:])"
)


@pytest.mark.extended
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="Windows has other signals")
def test_ctrl_c_is_heard_in_tests_that_run_in_the_background():
    pytest_there = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *STOPPING]
    command = [sys.executable, "-c", IGNORING, *pytest_there]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert done.stdout.count(".") >= len(STOPPING)
