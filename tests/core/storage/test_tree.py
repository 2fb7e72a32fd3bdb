"""State as JSON and arrays and back."""

import json
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field, fields, is_dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedstrata.core.storage.tree import flatten, restore


@dataclass
class Inner:
    value: Any = 0
    seen: dict[int, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outer:
    inner: Inner
    other: Any = None


class Pair(NamedTuple):
    a: int
    b: int


def there_and_back(value, like=None):
    """Flatten, pass through JSON text, restore; the arrays are copied as a file would."""
    arrays = {}
    text = json.dumps(flatten(value, arrays))
    return restore(json.loads(text), {k: v.clone() for k, v in arrays.items()}, value if like is None else like)


def equal(a, b):
    """Whether two states are the same, types and all."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())
    if is_dataclass(a):
        return all(equal(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    if isinstance(a, dict):
        same_keys = [(k, type(k)) for k in a] == [(k, type(k)) for k in b]
        return same_keys and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b


NUMBERS = st.integers() | st.floats(allow_nan=False)
PLAIN = st.none() | st.booleans() | NUMBERS | st.text(max_size=4)
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
DTYPES = st.sampled_from(["float32", "float64", "int64", "int32", "uint8", "bool"])
ARRAYS = DTYPES.flatmap(lambda d: hnp.arrays(d, SHAPES, elements={"allow_nan": False} if d[0] == "f" else None))
TENSORS = ARRAYS.map(lambda a: torch.from_numpy(a.copy()))
SCALARS = DTYPES.flatmap(lambda d: hnp.arrays(d, (), elements={"allow_nan": False} if d[0] == "f" else None)).map(
    lambda a: a[()]
)
SETS = st.sets(st.integers()) | st.frozensets(st.text(max_size=3)) | st.sets(st.tuples(st.integers(), st.integers()))
KEYS = st.integers(-3, 30) | st.sampled_from(["a", "b", "a/b", "0", "1", "key"]) | st.tuples(st.integers(0, 3))
STATES = st.recursive(
    PLAIN | ARRAYS | TENSORS | SCALARS | SETS,
    lambda inner: st.one_of(
        st.dictionaries(KEYS, inner, max_size=4),
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.builds(Inner, inner, st.dictionaries(st.integers(0, 9), inner, max_size=3)),
        st.builds(Outer, st.builds(Inner, inner), inner),
    ),
    max_leaves=8,
)


# ---- trees -------------------------------------------------------------------------------------------------------


@given(STATES)
@settings(max_examples=400, deadline=None, derandomize=True)
def test_a_state_comes_back_as_it_was(state):
    assert equal(there_and_back(state), state)


@pytest.mark.parametrize(
    "state",
    [
        np.array(2.5),
        torch.tensor(2.5),
        np.zeros((0, 3), np.float32),
        np.arange(6).reshape(2, 3).T,
        torch.arange(6).reshape(2, 3).T,
        torch.ones(2, dtype=torch.bfloat16),
        np.float64(0.1),
        np.float32(0.1),
        np.int64(7),
        np.bool_(True),
        True,
        10**30,
        float("inf"),
        {3: "a", "3": "b"},
        {3: np.zeros(1), "3": np.ones(1)},
        {"a/b": np.zeros(1), "a": {"b": np.ones(1)}},
        {None: np.zeros(1), "None": np.ones(1)},
        {(1, 2): (0, 1)},
        {np.int64(3): 1},
        {"array": 1, "numpy": True},
        {"fields": {"dtype": "x"}},
        (1, [2, (3,)], {4}, frozenset({5})),
        Outer(Inner(np.ones(2), {1: torch.zeros(1)}), Inner((1, 2))),
        [Inner(1), Inner(np.ones(2))],
        (Inner(1), {"deep": [Outer(Inner(2))]}),
        {7: Inner(1), 8: Inner(2)},
    ],
    ids=lambda s: repr(s).replace("\n", " ")[:60],
)
def test_awkward_states_come_back_as_they_were(state):
    assert equal(there_and_back(state), state)


def test_not_a_number_comes_back():
    assert np.isnan(there_and_back({"a": float("nan")})["a"])


def test_arrays_come_back_as_copies():
    arrays = {}
    saved = flatten({"a": np.zeros(2), "b": torch.zeros(2)}, arrays)
    back = restore(saved, arrays)
    back["a"][0] = back["b"][0] = 9
    assert restore(saved, arrays)["a"].tolist() == restore(saved, arrays)["b"].tolist() == [0, 0]


def test_dataclasses_are_filled_from_a_fresh_state_of_the_same_shape():
    saved = Outer(Inner(5, {1: "x"}), other=[1])
    assert there_and_back(saved, like=Outer(Inner())) == saved


def test_arrays_stand_aside_and_the_rest_is_json():
    arrays = {}
    saved = flatten({"m": [np.ones(2)], "n": 3}, arrays)
    assert json.loads(json.dumps(saved)) == saved
    assert [a.tolist() for a in arrays.values()] == [[1.0, 1.0]]


@pytest.mark.parametrize(
    "value", [object(), b"raw", 1j, lambda: 0, Inner, deque([1]), Path("x"), Decimal(1)], ids=lambda v: type(v).__name__
)
def test_what_cannot_be_saved_is_refused_with_its_place(value):
    with pytest.raises(TypeError, match=rf"{type(value).__name__} at state\.selector\.memory"):
        flatten({"selector": {"memory": value}}, {})


@pytest.mark.parametrize(
    "value",
    [
        Pair(1, 2),
        defaultdict(int, {1: 2}),
        Counter({1: 2}),
        np.array(["a", "b"]),
        {1, "a"},
    ],
    ids=lambda v: type(v).__name__,
)
def test_what_would_come_back_as_something_else_is_refused(value):
    """A run that cannot be resumed as it was must fail when it is saved, and say where."""
    try:
        back = there_and_back(value)
    except TypeError as refusal:
        back = refusal
    assert equal(back, value) or "a part's state holds" in str(back)


@dataclass
class Record:
    loss: float
    picks: np.ndarray


@dataclass
class Book:
    records: dict[int, Record] = field(default_factory=dict)
    last: Record | None = None
    every: list[Record] = field(default_factory=list)
    loose: dict = field(default_factory=dict)


def test_records_that_came_later_are_restored_by_their_annotation():
    book = Book({7: Record(0.5, np.arange(3))}, Record(1.0, np.zeros(1)), [Record(2.0, np.ones(2))])
    arrays = {}
    back = restore(json.loads(json.dumps(flatten(book, arrays))), arrays, like=Book())
    assert back.records[7].picks.tolist() == [0, 1, 2]
    assert (back.last.loss, back.every[0].loss) == (1.0, 2.0)


def test_a_record_where_another_type_is_announced_is_refused_when_it_is_saved():
    with pytest.raises(TypeError, match=r"holds Book at state\.last"):
        flatten(Book(last=Book()), {})
