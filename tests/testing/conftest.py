from __future__ import annotations

import pytest
from hooks import GIVEN


@pytest.fixture
def gives():
    """Say what a hook gives; a function is called with the hook's arguments."""
    yield lambda **hooks: GIVEN.update(hooks)
    GIVEN.clear()
