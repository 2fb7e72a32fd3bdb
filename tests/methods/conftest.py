from __future__ import annotations

import pytest

from fedstrata.core.machine.threads import one_thread


@pytest.fixture(autouse=True)
def _one_thread():
    """Rounds that tests run themselves keep to one thread, as those of the loop do."""
    with one_thread():
        yield
