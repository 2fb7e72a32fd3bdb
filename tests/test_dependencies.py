"""Dependencies of all extras, and theirs: each is pinned for CI, and its licence is one that we know and may use."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = Path(__file__).parent.parent
LOCK = PROJECT / "requirements" / "ci.txt"
FREE = {  # licences that ask for nothing but their notice: SPDX names, and what older packages call them
    *("0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0"),
    *("ISC", "MIT", "MIT-0", "MIT-CMU", "PSF-2.0", "Zlib", "Public Domain"),
    *("3-Clause BSD License", "Apache 2.0", "Apache Software License", "BSD", "BSD License", "ISC License ISCL"),
    *("MIT License", "Python Software Foundation License"),
}
REVIEWED = {  # others, with the reason why we use them
    "certifi": "MPL-2.0: used as it is, and not changed",
    "hypothesis": "MPL-2.0: used as it is, in tests only",
    "pathspec": "MPL-2.0: used as it is, in tests and pages only",
    "tqdm": "MPL-2.0 in part: used as it is, and not changed",
}


def needed(name: str, extras: frozenset[str], found: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return every package that is installed because something needs it, with its extras."""
    key = canonicalize_name(name)
    new = {"", *extras} - found.get(key, set())
    if not new:
        return found
    try:
        requires = metadata.requires(name) or []
    except metadata.PackageNotFoundError:  # of another system, or of an extra that is not here
        return found
    found.setdefault(key, set()).update(new)
    for text in requires:
        need = Requirement(text)
        if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in new):
            needed(need.name, frozenset(need.extras), found)
    return found


CUDA = re.compile(r"(nvidia|cuda|triton)\b")  # of torch's build for GPUs, which `make lock` leaves out, too
PACKAGES = sorted(name for name in needed("fedstrata", frozenset({"dev"}), {}) if not CUDA.match(name))


def licence(name: str) -> str:
    """Return what a package says of its licence, as an expression."""
    about = metadata.metadata(name)
    if expression := about.get("License-Expression"):
        return expression
    classifiers = [c.rpartition(" :: ")[2] for c in about.get_all("Classifier", []) if c.startswith("License ::")]
    return " AND ".join(classifiers) or (about.get("License") or "unknown").strip().splitlines()[0]


def free(expression: str) -> bool:
    """Say whether a licence asks for nothing: one of those between OR, all of those between AND."""
    choices = re.sub(r"[()]", "", expression).split(" OR ")
    return any(all(part.strip() in FREE for part in choice.split(" AND ")) for choice in choices)


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("MIT AND GPL-3.0-only", False),
        ("GPL-3.0-only OR Apache-2.0", True),
        ("unknown", False),
        ("Apache-2.0 WITH LLVM-exception AND (MIT)", True),
    ],
)
def test_licences_are_read_as_they_are_meant(expression, allowed):
    assert free(expression) is allowed


def test_every_dependency_has_a_licence_that_we_know():
    assert len(PACKAGES) > 50
    said = {name: licence(name) for name in PACKAGES if name not in REVIEWED}
    assert {name: text for name, text in said.items() if not free(text)} == {}, "read it, and add it to REVIEWED"


def test_exceptions_are_still_needed():
    here = {name: licence(name) for name in REVIEWED if name in PACKAGES}
    assert here
    assert not [name for name, text in here.items() if free(text)]


def pins() -> dict[str, str]:
    lines = [line for line in LOCK.read_text().splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line) for line in lines), "builds for one machine"
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


def test_every_dependency_is_pinned_for_ci():
    missing = set(PACKAGES) - pins().keys() - {"fedstrata"}
    assert not missing, "run make lock"
    assert not [name for name in pins() if name.startswith("nvidia-")]


def test_pins_allow_what_the_project_asks_for():
    known = pins()
    asked = [Requirement(text) for text in metadata.requires("fedstrata") or []]
    wrong = [str(need) for need in asked if need.name in known and known[need.name] not in need.specifier]
    assert wrong == []
