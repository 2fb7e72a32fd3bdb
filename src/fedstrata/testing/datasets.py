"""Suites for data sets and noise: samples that clients can be made of, and that stay as they were loaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import numpy as np
import torch

from fedstrata.config.build import build_federation
from fedstrata.config.completion import own_options
from fedstrata.config.experiment import Experiment
from fedstrata.core import registry
from fedstrata.core.contract import broken
from fedstrata.core.errors import RequestError
from fedstrata.core.inputs import Inputs
from fedstrata.data.federation import Federation
from fedstrata.data.noise import Noise
from fedstrata.data.partitions.iid import Iid
from fedstrata.data.reading import read_samples
from fedstrata.data.sets.base import Arrays, DataSet, expect_arrays
from fedstrata.testing.conformance import check_part
from fedstrata.testing.draws import no_hidden_draws
from fedstrata.testing.tiny import run_rounds, session_of, tiny_federation

CLASSES, EACH, TESTS = 8, 12, 4  # classes, and samples of each, of the small run


def check_dataset(dataset: DataSet, overlap: float = 0.1) -> None:
    """Check what a data set loads: shapes, types, labels, groups; the same every time, and never changed.

    Test samples must be others than training samples. All must be fit to be dealt out and trained on.

    Parameters
    ----------
    dataset
        An object of a part of your own.
    overlap
        The share of test samples that may occur in training all the same, where samples are alike by nature.

    Raises
    ------
    AssertionError
        With what is wrong.

    Examples
    --------
    >>> import fedstrata
    >>> fedstrata.check_dataset(fedstrata.make_part("datasets", "digits"))
    """
    check_part(dataset)
    name = type(dataset).__name__
    arrays = expect_arrays(dataset, dataset.load())
    before = _digests(arrays)
    with no_hidden_draws(f"{name}: `load`", torch_too=True):  # the first time, libraries that are imported may draw
        again = _digests(expect_arrays(dataset, dataset.load()))
    for field, digest in before.items():
        assert again[field] == digest, f"{name}: `load` gave another {field} the second time; fix the seed"
    _check_unchanged(arrays, before, f"{name}: a second `load`")
    _check_types(name, arrays)
    _check_labels(dataset, arrays)
    _check_overlap(name, arrays, overlap)
    _check_by_name(dataset, arrays)
    _check_run(name, arrays)
    _check_unchanged(arrays, before, f"{name}: training")


def _digests(arrays: Arrays) -> dict[str, str]:
    """Tell arrays apart without a copy of them."""
    held = {f.name: getattr(arrays, f.name) for f in dataclasses.fields(arrays)}
    return {name: _digest(value) if isinstance(value, np.ndarray) else repr(value) for name, value in held.items()}


def _digest(array: np.ndarray) -> str:
    content = repr(array.tolist()).encode() if array.dtype == object else np.ascontiguousarray(array).data
    return f"{array.dtype} {array.shape} {sha256(content).hexdigest()}"


def _check_unchanged(arrays: Arrays, before: Mapping[str, str], who: str) -> None:
    for field, digest in _digests(arrays).items():
        assert digest == before[field], f"{who} changed the {field} that was loaded before; it must not be written to"


def _check_types(name: str, arrays: Arrays) -> None:
    x = arrays.x
    allowed = "uint8 [n, channels, height, width] for images, float32 for other features, int64 for tokens"
    assert x.dtype in (np.uint8, np.float32, np.int32, np.int64), f"{name}: x is {x.dtype}; allowed: {allowed}"
    if x.dtype == np.uint8:
        assert x.ndim == 4, f"{name}: uint8 samples are images, and x has shape {x.shape}; allowed: {allowed}"
    if x.ndim == 4:
        last = x.shape[3] in (1, 3) and x.shape[1] not in (1, 3)
        assert not last, f"{name}: x has shape {x.shape}, its channels last; allowed: {allowed}; transpose(0, 3, 1, 2)"


def _check_labels(dataset: DataSet, arrays: Arrays) -> None:
    """Read both sets as a federation does, which knows what cannot be trained on."""
    try:
        _, classes = read_samples(arrays.x, arrays.y, arrays.groups)
        read_samples(arrays.test_x, arrays.test_y, arrays.test_groups, classes=classes)
    except RequestError as error:
        raise broken(dataset, "load", f"gave samples that cannot be used: {error}") from None
    name = type(dataset).__name__
    assert len(classes) >= 2, f"{name}: all labels are {list(classes)}; at least 2 classes are needed"
    if arrays.groups is not None and arrays.test_groups is not None:
        kinds = {groups.dtype.kind for groups in (arrays.groups, arrays.test_groups) if len(groups)}
        assert kinds <= set("iuUS") and len(kinds) <= 1, (  # noqa: PT018  one sentence says both
            f"{name}: groups are {arrays.groups.dtype}, test_groups {arrays.test_groups.dtype}; "
            "allowed: text or whole numbers, the same in both"
        )


def _check_overlap(name: str, arrays: Arrays, most: float) -> None:
    known = {row.tobytes() for row in arrays.x}
    share = sum(row.tobytes() in known for row in arrays.test_x) / max(len(arrays.test_x), 1)
    assert share <= most, (
        f"{name}: {share:.0%} of the test samples are also training samples; deal them out once, or say how many may "
        "be alike: check_dataset(..., overlap=...)"
    )


def _check_by_name(dataset: DataSet, arrays: Arrays) -> None:
    """Check that an experiment can name it, with its options, and that partitions deal it out."""
    path, options = f"{type(dataset).__module__}:{type(dataset).__qualname__}", dataclasses.asdict(dataset)  # type: ignore[call-overload]
    clients = min(4, len(arrays.y))
    kinds = ["iid"] if arrays.groups is None else ["iid", "natural"]
    for kind in kinds:
        data = {"name": path, **options, "partition": {"kind": kind}} | ({"clients": clients} if kind == "iid" else {})
        asked = Experiment.of(Experiment.of({"data": data}).dump())  # once more, as from a file
        assert registry.build("datasets", asked.data.name, own_options(asked.data, options), "data") == dataset
        federation = build_federation(asked)
        name = type(dataset).__name__
        dealt = federation.samples + federation.left_out
        assert dealt == len(arrays.y), f"{name}: {kind} dealt {dealt} of {len(arrays.y)} samples"


def _check_run(name: str, arrays: Arrays) -> None:
    """Train on some of the samples for two rounds."""
    few = np.unique(arrays.y)[:CLASSES]
    rows = np.concatenate([np.flatnonzero(arrays.y == label)[:EACH] for label in few])
    tests = np.concatenate([np.flatnonzero(arrays.test_y == label)[:TESTS] for label in few])
    image = arrays.x.dtype == np.uint8
    x, test_x = arrays.x[rows], arrays.test_x[tests]
    if arrays.x.dtype.kind == "i":  # tokens, which the small network cannot look up
        x, test_x = x.astype(np.float32), test_x.astype(np.float32)
    federation = Federation.from_arrays(
        x,
        arrays.y[rows],
        min(4, len(rows)),
        partition=Iid(),
        test=(test_x, arrays.test_y[tests]),
        inputs=Inputs(255.0 if image else 1.0, arrays.mean, arrays.std),
    )
    state, rounds = run_rounds(session_of({"train.lr": 0.01, "engine.precision": "fp32"}, federation), 2)
    assert all(o.reports for outcomes in rounds for o in outcomes), f"{name}: no client could train on the samples"
    assert torch.isfinite(state.model.params).all(), f"{name}: the model is not finite after two rounds; scale x"


def check_noise(noise: Noise) -> None:
    """Check noise: the same from the same seed, in copies, within the labels, and only where clients hold samples.

    Parameters
    ----------
    noise
        An object of a part of your own.

    Raises
    ------
    AssertionError
        With what is wrong.

    Examples
    --------
    >>> import fedstrata
    >>> fedstrata.check_noise(fedstrata.make_part("noises", "label-noise", rate=0.2))
    """
    check_part(noise)
    name, tried = type(noise).__name__, 0
    for federation in (tiny_federation(), _pictures(np.float32), _pictures(np.uint8)):
        before = federation.train.x.clone(), federation.train.y.clone()
        try:
            with no_hidden_draws(f"{name}: `apply`", torch_too=True):
                disturbed = federation.with_noise([noise], seed=3)
        except RequestError:  # it may refuse some kinds of samples, but not all
            continue
        tried += 1
        again = federation.with_noise([noise], seed=3)
        for key in ("x", "y"):
            one, other = getattr(disturbed.train, key), getattr(again.train, key)
            assert torch.equal(one, other), f"{name}: the same seed gave another {key}; draw from `streams`"
            left = np.setdiff1d(np.arange(len(one)), federation.train_split.rows)
            old = getattr(federation.train, key)
            assert torch.equal(one[left], old[left].to(one.dtype)), f"{name} changed a {key} that nobody holds"
        assert torch.equal(federation.train.x, before[0]), f"{name} changed the samples in place"
        assert torch.equal(federation.train.y, before[1]), f"{name} changed the labels in place"
        state, _ = run_rounds(session_of({"train.lr": 0.01}, disturbed), 2)
        assert torch.isfinite(state.model.params).all(), f"{name}: the model is not finite after two rounds"
    assert tried, f"{name} refused tables, float images and uint8 images"


def _pictures(kind: Any) -> Federation:
    """Five clients with images of 8 x 8; five samples are nobody's."""
    rng = np.random.default_rng(1)
    x, y = (rng.random((45, 1, 8, 8)) * (255 if kind == np.uint8 else 1)).astype(kind), np.arange(45) % 3
    return Federation.from_arrays(x, y, [np.arange(i, 40, 5) for i in range(5)], test=(x[40:], y[40:]))
