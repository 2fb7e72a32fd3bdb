"""docs/data.md says where every data set comes from, as the code has it."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from fedstrata.core import registry
from fedstrata.data.published import Published

PAGE = Path(__file__).parents[2] / "docs/data.md"


@pytest.mark.parametrize("name", [name for name in registry.names("datasets") if name not in ("own", "hf")])
def test_the_page_says_where_a_set_comes_from(name):
    rows = [line.strip("|").split("|") for line in PAGE.read_text().splitlines() if line.startswith(f"| `{name}` |")]
    assert len(rows) == 1
    publisher, package, licence = (cell.strip() for cell in rows[0][1:])
    part = registry.find("datasets", name, "NAME")
    assert licence == part.licence
    if issubclass(part, Published):
        hosts = {urlsplit(source.url).hostname for source in part.sources}
        assert {publisher} == hosts or (not hosts and "--from" in publisher)
        carried = part.package
        said = carried and f"{carried.registry} `{carried.name}` {carried.version}, {carried.size:.1f} MB"
        assert package == (said or "")
