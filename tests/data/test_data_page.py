"""docs/data.md says where every data set comes from, as the code has it."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from fedstrata.config.build import label_names
from fedstrata.config.experiment import Experiment
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


@pytest.mark.parametrize("name", [name for name in registry.names("datasets") if name not in ("own", "hf")])
def test_the_names_of_labels_are_those_of_all_labels_that_are_published(name):
    part = registry.find("datasets", name, "NAME")
    options = [{}, *({"labels": "coarse"} for _ in [0] if name == "cifar100")]
    for asked in options:
        made = part(**asked)
        names = made.label_names
        assert len(set(names.values())) == len(names)
        published = dict(made.expected()[0]) if isinstance(made, Published) else {}
        if names and published:
            assert names.keys() == published.keys()


def test_names_of_labels_are_shown_in_the_order_of_the_classes():
    names = label_names(Experiment.of({"data": {"name": "fashion-mnist"}}).data)
    assert (names[0], names[9]) == ("T-shirt/top", "Ankle boot")
    letters = label_names(Experiment.of({"data": {"name": "femnist"}}).data)
    assert (letters[9], letters[10], letters[36], letters[61]) == ("9", "A", "a", "z")
    assert label_names(Experiment.of().data) == {}
