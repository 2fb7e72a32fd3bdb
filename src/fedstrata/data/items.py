"""Samples and labels out of data sets from Python: pairs, torch data sets, loaders, Hugging Face `datasets`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from fedstrata.core.errors import RequestError
from fedstrata.core.warn_caller import warn_caller
from fedstrata.data.reading import read_features, read_labels, refuse_mixed_pixels

SAMPLE = ("x", "image", "img", "input", "inputs", "pixel_values", "features", "data", "sample")
LABEL = ("y", "label", "labels", "target", "targets", "class", "fine_label")
AGAIN = 4  # samples that are read twice, to see whether they are the same

Read = tuple[Tensor, np.ndarray]  # samples and labels


def is_data_set(data: Any) -> bool:
    """Whether this is one data set, no list of them; a pair (x, y) may be either, and is not asked about here."""
    return isinstance(data, Dataset | DataLoader) or (hasattr(data, "column_names") and not isinstance(data, Mapping))


def read_dataset(data: Any) -> Read:
    """Read a pair (x, y), a torch Dataset or DataLoader, or a Hugging Face data set; items are pairs or dicts."""
    if isinstance(data, tuple | list) and len(data) == 2:
        return read_features(data[0]), read_labels(data[1])
    if isinstance(data, DataLoader):
        if data.collate_fn is not default_collate:
            raise RequestError("this DataLoader makes batches in its own way (collate_fn); give its data set instead")
        data = data.dataset  # every item once: a loader may shuffle, and drop the last batch
    refused = isinstance(data, tuple | list | Mapping | IterableDataset)
    if refused or not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        raise RequestError(
            "a data set must be a pair (x, y), a torch Dataset with a length, a DataLoader of one, or a Hugging Face "
            f"Dataset, not {type(data).__name__}"
        )
    items = [data[i] for i in range(len(data))]
    if not items:
        return torch.zeros(0, 0), np.zeros(0, dtype=np.int64)
    again = [data[i] for i in range(min(len(data), AGAIN))]
    if isinstance(items[0], Mapping):
        x, y = _keys(items[0])
        if lacking := [i for i, item in enumerate(items) if x not in item or y not in item]:
            raise RequestError(f"item {lacking[0]} of the data set has no {x} or no {y}")
        samples, labels = [item[x] for item in items], [item[y] for item in items]
        again = [item[x] for item in again]
        labels = _class_names(data, y, labels)
    else:
        if any(not isinstance(item, tuple | list) or len(item) != 2 for item in items):
            raise RequestError("every item of a data set must be a pair (sample, label), or a dict of them")
        samples, labels = [item[0] for item in items], [item[1] for item in items]
        again = [item[0] for item in again]
    features = _stacked(samples)
    if not torch.equal(*(t.view(torch.uint8) for t in (_stacked(again), features[: len(again)]))):  # a gap is itself
        warn_caller(
            "samples of the data set differ each time they are read, and each is read only once: crops, flips and "
            "other random changes stay as they were drawn; leave them out, and set train.augment"
        )
    return read_features(features), read_labels(labels)


def read_train_and_test(data: Any) -> tuple[Read, Read | None]:
    """Read one data set, or a mapping of a "train" and a "test" one."""
    if not isinstance(data, Mapping):
        return read_dataset(data), None
    if "train" not in data or not set(data) <= {"train", "test"}:
        raise RequestError(f"data sets are {', '.join(map(str, data))}; allowed: train, and test if any")
    return read_dataset(data["train"]), read_dataset(data["test"]) if "test" in data else None


def _keys(item: Mapping[str, Any]) -> tuple[str, str]:
    """Find out which entries of a dict are the sample and the label."""
    found = [[key for key in item if str(key).lower() in names] for names in (SAMPLE, LABEL)]
    for what, names, keys in (("sample", SAMPLE, found[0]), ("label", LABEL, found[1])):
        if len(keys) != 1:
            raise RequestError(
                f"items of the data set have {', '.join(map(str, item))}; {len(keys) or 'none'} of them could be the "
                f"{what}: call one of them {names[0]} (known: {', '.join(names)})"
            )
    return found[0][0], found[1][0]


def _class_names(data: Any, key: str, labels: list[Any]) -> list[Any]:
    """Return labels by name, where a Hugging Face data set has names for its numbers."""
    features = getattr(data, "features", None)
    names = getattr(features.get(key), "names", None) if isinstance(features, Mapping) else None
    return labels if names is None else [names[int(label)] if int(label) >= 0 else None for label in labels]


def _stacked(samples: Sequence[Any]) -> Tensor:
    """Make one tensor of samples; images of Pillow become uint8 [n, channels, height, width]."""
    if all(hasattr(sample, "getbands") for sample in samples):
        grey = all(sample.mode in ("1", "L") for sample in samples)
        arrays = [np.asarray(sample.convert("L" if grey else "RGB")) for sample in samples]
        x = [torch.from_numpy(np.array(a[None] if grey else a.transpose(2, 0, 1))) for a in arrays]
    else:
        if strange := [type(sample).__name__ for sample in samples if isinstance(sample, tuple | list | Mapping)]:
            raise RequestError(f"a sample must be one array, tensor or image, not a {strange[0]} of several")
        x = [torch.as_tensor(np.asarray(sample)) for sample in samples]
    if len(shapes := {tuple(t.shape) for t in x}) > 1:
        raise RequestError(f"samples must all have the same shape; there are {sorted(shapes)}")
    return torch.stack(x)


def join_samples(
    data_sets: Mapping[str, Any] | Sequence[Any], of: str = "client"
) -> tuple[Tensor, np.ndarray, list[np.ndarray]]:
    """Join one data set a client into shared arrays, with the rows of each; `of`: whose, in what is refused."""
    named = name_data_sets(data_sets, of)
    refuse_other_columns(named)
    pairs = []
    for holder, data in named.items():
        try:
            x, y = read_dataset(data)
            if len(x) != len(y):  # here, because totals may match, and the labels of others would move
                raise RequestError(f"{len(x)} samples but {len(y)} labels")
        except RequestError as error:
            raise RequestError(f"{holder}: {error}") from None
        pairs.append((x, y))
    held = [(x, y) for x, y in pairs if len(y)]
    if not held:
        raise RequestError("no client has any samples")
    if len(shapes := {tuple(x.shape[1:]) for x, _ in held}) > 1:
        raise RequestError(f"clients hold samples of different shapes: {sorted(shapes)}")
    refuse_mixed_pixels({holder: x.dtype for holder, (x, y) in zip(named, pairs, strict=True) if len(y)})
    if len({y.dtype.kind for _, y in held}) > 1:
        raise RequestError("some clients name their labels by text, others by number; use one of them")
    stops = np.cumsum([len(y) for _, y in pairs])
    rows = [np.arange(stop - len(y), stop) for stop, (_, y) in zip(stops, pairs, strict=True)]
    return torch.cat([x for x, _ in held]), np.concatenate([y for _, y in held]), rows


def name_data_sets(data_sets: Mapping[str, Any] | Sequence[Any], of: str = "client") -> dict[str, Any]:
    """Return data sets by what they are called in errors."""
    named = data_sets if isinstance(data_sets, Mapping) else dict(enumerate(data_sets))
    return {f"{of} {name}": data for name, data in named.items()}


def refuse_other_columns(data_sets: Mapping[str, Any]) -> None:
    """Refuse data frames, by holder, with other columns than the first: samples are taken by position, not by name."""
    tables = {holder: data[0] for holder, data in data_sets.items() if isinstance(data, tuple | list) and len(data)}
    columns = {holder: list(map(str, x.columns)) for holder, x in tables.items() if hasattr(x, "columns")}
    first = next(iter(columns), "")
    for holder, names in columns.items():
        if names != columns[first]:
            other = sorted(set(names) ^ set(columns[first]))
            how = f"other columns than {first}: {', '.join(other)}"
            how = how if other else f"the columns of {first} in another order"
            raise RequestError(f"{holder} has {how}; they are taken by position, so give all tables the same")
