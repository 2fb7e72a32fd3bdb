"""The docstrings of the public names: their sections name what there is, and their examples run."""

from __future__ import annotations

import dataclasses
import doctest
import inspect
import re
import sys
from types import FunctionType, ModuleType

import pytest

from fedstrata import api
from fedstrata.core.part import Part

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
OBJECTS = {name: getattr(api, name) for name in api.__all__ if isinstance(getattr(api, name), type | FunctionType)}
OBJECTS = {name: found for name, found in OBJECTS.items() if found.__module__.startswith("fedstrata")}  # not numpy's
FUNCTIONS = sorted(name for name, found in OBJECTS.items() if isinstance(found, FunctionType))
PARTS = [
    "Architecture",
    "Combiner",
    "Correction",
    "DataSet",
    "Driver",
    "LRSchedule",
    "Noise",
    "Optimizer",
    "Partition",
    "Recipe",
    "Sampler",
    "Schedule",
    "Selector",
    "ServerStep",
]
STARTS = ["Comparison", "Experiment.of", "Federation", "Federation.from_arrays", "Federation.from_clients"]
STARTS += ["Federation.from_dataset", "Inspection", "Run"]


def examples() -> dict[str, doctest.DocTest]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    inherited = [base for value in OBJECTS.values() if isinstance(value, type) for base in value.__mro__[1:]]
    bases = {base.__name__: base for base in inherited if base.__module__.startswith("fedstrata")}
    found = [test for name, value in (bases | OBJECTS).items() for test in finder.find(value, name, globs={})]
    return {test.name: test for test in found if test.examples}


EXAMPLES = examples()


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_run(name, monkeypatch):
    script = ModuleType("__main__")  # parts that a script defines are found there by their names
    monkeypatch.setitem(sys.modules, "__main__", script)
    test, said = EXAMPLES[name], list[str]()
    test.globs = vars(script)
    result = doctest.DocTestRunner(optionflags=FLAGS).run(test, out=said.append, clear_globs=False)
    assert result.failed == 0, "".join(said)
    assert result.attempted == len(test.examples)  # none is skipped


def test_whatever_a_user_begins_with_has_an_example():
    assert not [name for name in (*FUNCTIONS, *PARTS, *STARTS) if name not in EXAMPLES]
    assert len(EXAMPLES) >= 50
    skipped = [name for name, test in EXAMPLES.items() if any(doctest.SKIP in e.options for e in test.examples)]
    assert not skipped


def methods(owner: type) -> dict[str, FunctionType]:
    """What a class itself defines and a user or a part's author calls or overrides."""
    own = {name: getattr(value, "__func__", value) for name, value in vars(owner).items() if not name.startswith("_")}
    return {name: value for name, value in own.items() if isinstance(value, FunctionType)}


CALLS = {name: found for name, found in OBJECTS.items() if isinstance(found, FunctionType)}
CALLS |= {
    f"{name}.{m}": f for name, found in OBJECTS.items() if isinstance(found, type) for m, f in methods(found).items()
}


def section(doc: str, title: str) -> list[str] | None:
    """The names that a section lists; None where there is none."""
    found = re.search(rf"^{title}\n-+\n(.*?)(?=^\w[\w ]*\n-+\n|\Z)", inspect.cleandoc(doc), re.DOTALL | re.MULTILINE)
    if found is None:
        return None
    lines = [line.split(" : ")[0] for line in found[1].splitlines() if line and not line.startswith(" ")]
    return [name.strip().lstrip("*") for line in lines for name in line.split(",")]


@pytest.mark.parametrize("name", CALLS)
def test_a_function_says_what_goes_in_and_what_comes_out(name):
    call = CALLS[name]
    doc = call.__doc__ or ""
    assert doc, "no docstring"
    owner, _, method = name.rpartition(".")
    inherited = owner and any(method in vars(base) for base in OBJECTS[owner].__mro__[1:])
    parameters = [p for p in inspect.signature(call).parameters if p not in ("self", "cls")]
    said = section(doc, "Parameters")
    if not (inherited and said is None):  # an override may leave it to the method that it overrides
        assert sorted(said or []) == sorted(parameters)
        nothing = inspect.signature(call).return_annotation in ("None", None)
        assert (section(doc, "Returns") is None) == nothing, "Returns"


def fields(kind: type) -> list[str]:
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind) if not field.name.startswith("_")]
    return [*getattr(kind, "_fields", getattr(kind, "model_fields", ()))]


@pytest.mark.parametrize("name", [name for name, found in OBJECTS.items() if isinstance(found, type)])
def test_a_class_names_what_it_holds(name):
    kind = OBJECTS[name]
    doc = kind.__doc__ or ""
    assert doc, "no docstring"
    assert not doc.startswith(f"{name}("), "the docstring is the one that dataclass makes"
    if issubclass(kind, Part):
        pass  # its options are told by `fedstrata list`
    elif own := fields(kind):
        assert [n for n in section(doc, "Attributes") or [] if n in own] == own
    elif "__init__" in vars(kind) and not issubclass(kind, Exception) and not getattr(kind, "_is_protocol", False):
        assert (section(doc, "Parameters") or []) == list(inspect.signature(kind).parameters)
    for said, value in vars(kind).items():
        if isinstance(value, property) and not said.startswith("_"):
            assert value.__doc__, said
