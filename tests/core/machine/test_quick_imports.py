from __future__ import annotations

import gc
import subprocess
import sys

from fedstrata.core.machine.quick_imports import quick_imports

CODE = """
import gc
from fedstrata.core.machine.quick_imports import quick_imports
try:
    with quick_imports():
        assert not gc.isenabled()
        import does_not_exist
except ModuleNotFoundError:
    print(gc.isenabled(), gc.get_freeze_count() > 0)
"""


def test_nothing_is_collected_meanwhile_and_then_as_before():
    """In another process: what is frozen stays so."""
    said = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["True", "True"]


def test_where_nothing_was_collected_before_nothing_is_afterwards(monkeypatch):
    monkeypatch.setattr(gc, "isenabled", lambda: False)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    monkeypatch.setattr(gc, "disable", lambda: None)
    called = []
    monkeypatch.setattr(gc, "enable", lambda: called.append("enabled"))
    with quick_imports():
        pass
    assert called == []
