"""Before training: how skewed a federation is, and which recipes fit it. What `fedstrata.inspect` does.

Measures come from the label counts (`data/label_table.py`, `data/concentration.py`) and, where they are at hand, from
the samples (`contents`, `domains`); `rules` turn them into advice, whose costs are rehearsed (`rehearsal`) and whose
privacy is read off the plan. `terminal`, `figures` and `page` show it.
"""

from __future__ import annotations

from fedstrata.inspection.inspection import Inspection, inspect

__all__ = ["Inspection", "inspect"]
