"""Runs that all tests of reports share; none of them changes one."""

from __future__ import annotations

import pytest
from reported import SMALL

from fedstrata import train
from fedstrata.testing import tiny_federation


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """A finished run of six clients and three labels."""
    return train(overrides=SMALL, federation=tiny_federation(), out=tmp_path_factory.mktemp("small") / "run")
