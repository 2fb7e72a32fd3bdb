"""Where the published data sets lie, packed, for tests that want the real ones; without them such tests are skipped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

PACKS = Path(os.environ.get("FEDSTRATA_PACKS", Path(__file__).parents[2] / "shared" / "data"))
needs_packs = pytest.mark.skipif(
    not PACKS.is_dir(), reason=f"no data packs at {PACKS}; FEDSTRATA_PACKS says where they are"
)
