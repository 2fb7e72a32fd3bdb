"""Campaigns in a small size: nothing may be lost."""

from __future__ import annotations

import pytest

pytest.importorskip("resource")

from campaigns.fuzz import play


@pytest.mark.extended
def test_no_reader_falls_over_what_it_reads(tmp_path):
    rows = play(tmp_path, cases=6_000)
    assert sum(row.tried for row in rows) > 5_000
    assert {row.name: row.examples for row in rows if row.lost} == {}
