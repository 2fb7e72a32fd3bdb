"""Run one campaign by name."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

NAMES = sorted(p.stem for p in Path(__file__).parent.glob("*.py") if not p.stem.startswith("_"))

if len(sys.argv) < 2 or sys.argv[1] not in NAMES:
    sys.exit(f"usage: python -m campaigns {{{','.join(NAMES)}}} [--help]")
sys.exit(import_module(f"campaigns.{sys.argv[1]}").main(sys.argv[2:]))
