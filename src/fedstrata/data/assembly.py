"""A federation's parts out of arrays: a test set, who holds what, and features on one scale."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch

from fedstrata.core.errors import RequestError
from fedstrata.core.index import Split
from fedstrata.core.inputs import Inputs
from fedstrata.core.rng import Streams
from fedstrata.data.items import is_data_set, read_dataset, refuse_other_columns
from fedstrata.data.ownership import copy_rows, deal_samples, owner_names, read_holders, take_for_server
from fedstrata.data.partitions.base import hold_out
from fedstrata.data.preprocessing import Preprocessing
from fedstrata.data.reading import Label, Samples, read_samples, refuse_mixed_pixels
from fedstrata.data.scaling import Part, Scale, Scaled, bring_to_scale, to_be_scaled


def assemble(
    x: Any,
    y: Any,
    clients: Any,
    partition: Any,
    test: Any,
    test_clients: Any,
    groups: Any,
    inputs: Inputs | None,
    preprocessing: Preprocessing | None,
    scale: Scale | None,
    proxy: int,
    seed: int,
    scaled: bool = True,
) -> dict[str, Any]:
    """Return the fields of a federation; `Federation.from_arrays` says what the arguments mean.

    Without `scaled`, features stay raw: they are of one owner, and others have a say in how they are scaled.
    """
    if is_data_set(test):
        test = read_dataset(test)
    if not isinstance(test, tuple | float | int):
        raise RequestError("test must be a tuple (x, y), (x, y, groups), a torch Dataset or the fraction to hold out")
    if isinstance(test, tuple):
        refuse_other_columns({"x": (x,), "test": test})
    gaps = scale is not None and preprocessing is not None and preprocessing.fills
    samples, classes = read_samples(x, y, groups, gaps=gaps)
    if not len(samples):
        raise RequestError("there are no samples")
    streams = Streams(seed)
    train_rows, test_samples, test_rows = _split_off_test(samples, classes, test, gaps, streams)
    train_rows, held = take_for_server(proxy, train_rows, samples.y.numpy(), streams)
    if clients is None or isinstance(clients, int | Integral):
        deal = deal_samples(partition, clients, samples.labelled(train_rows), test_samples.labelled(test_rows), streams)
        split, test_split = Split.of(deal.train).among(train_rows), Split.of(deal.test).among(test_rows)
        notes, names = tuple(deal.notes), None if deal.names is None else tuple(map(str, deal.names))
    elif partition is not None:
        raise RequestError(
            "clients says already who holds what, and a partition would deal samples out: give the partition a number "
            "(clients=10), or None for as many as it finds; or leave the partition out"
        )
    else:
        own_test = test_samples is samples
        split, test_split = read_holders(clients, train_rows, len(samples), test_clients, test_rows, own_test)
        notes, names = (), owner_names(clients)
    if test_samples is samples:
        test_samples, test_split = copy_rows(samples, test_rows), test_split.numbered(test_rows)
    if not len(split.rows):
        raise RequestError("no client has any training samples")
    parts = (samples, split), (test_samples, test_split), (copy_rows(samples, held), None)
    done = _scale(scale, scaled, parts, inputs, preprocessing)
    train, test_samples, proxies = done.parts
    return {
        "train": train,
        "test": test_samples,
        "train_split": split,
        "test_split": test_split,
        "classes": classes,
        "left_out": len(train_rows) - len(split.rows),
        "notes": notes,
        "inputs": done.inputs,
        "proxy": proxies if len(held) else None,
        "preprocessing": done.preprocessing,
        "features_told": done.told,
        "unscaled": None if scaled else scale,
        "names": names,
    }


def _split_off_test(
    samples: Samples, classes: tuple[Label, ...], test: tuple[Any, ...] | float, gaps: bool, streams: Streams
) -> tuple[np.ndarray, Samples, np.ndarray]:
    """Return the rows to train on, and test samples with their rows: of the same samples where some are held out."""
    if not isinstance(test, tuple):
        labels = samples.y.numpy()
        train_rows, test_rows = hold_out(np.arange(len(labels)), labels, test, streams("hold-out"))
        return train_rows, samples, test_rows
    given, _ = read_samples(*test, classes=classes, gaps=gaps)
    if len(given):
        refuse_mixed_pixels({"the training set": samples.x.dtype, "the test set": given.x.dtype})
    return np.arange(len(samples)), given, np.arange(len(given))


def _scale(
    scale: Scale | None,
    scaled: bool,
    parts: Sequence[Part],
    inputs: Inputs | None,
    preprocessing: Preprocessing | None,
) -> Scaled:
    """Bring samples to one scale, if they shall be; else say what is done to them anyway, or is still to be done."""
    samples, whole = parts[0][0], [own for own, _ in parts]
    inputs = inputs or Inputs(scale=255.0 if samples.x.dtype == torch.uint8 else 1.0)
    if scale is None:
        return Scaled(whole, inputs, preprocessing or Preprocessing.of(inputs, samples.x.shape[1:]), None)
    asked = preprocessing or Preprocessing()
    if not scaled:
        return Scaled(whole, inputs, to_be_scaled(scale, samples.x.numpy(), asked), None)
    return bring_to_scale(scale, parts, asked)
