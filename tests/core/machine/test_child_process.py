"""What can go to a child process, and how a child ends."""

from __future__ import annotations

import subprocess
import sys

from fedstrata.core.machine.child_process import start_child, wait_or_kill, why_unsendable
from tests.interpreters import KNOWN


def test_what_cannot_be_sent_says_why():
    assert why_unsendable([1, "two"], "the plan", "the model") is None
    assert why_unsendable(lambda: 0, "the plan", "the model").startswith("the plan cannot be sent to another process (")


def test_what_the_script_itself_defines_stays_there():
    code = (
        "from fedstrata.core.machine.child_process import why_unsendable\n"
        "class Mine: pass\n"
        "print(why_unsendable(Mine(), 'the plan', 'the model'))\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.startswith("the model is defined in the script itself, which other processes do not import")


def test_a_process_that_does_not_end_is_killed():
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as stuck:
        wait_or_kill(stuck, 0.05)
        assert stuck.returncode == -9


def test_tests_can_start_children_from_a_process_that_is_ready(monkeypatch):
    """What `Interpreters` does not know is started as always, in two seconds each: nothing fails, and all is slow."""
    asked = {}
    monkeypatch.setattr(subprocess, "Popen", lambda args, **how: asked.update(how))
    start_child("fedstrata.runs.compare.worker")
    assert asked
    assert asked.keys() <= KNOWN
