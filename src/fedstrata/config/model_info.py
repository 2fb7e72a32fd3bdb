"""What a model file says of its model, so that it can be used without the run that made it.

A `model.safetensors` is tensors by name and, under `about` in its header, this as JSON. A file from elsewhere has no
such header; it can be started from (`model.init`), and not be built.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedstrata.config.completion import GIVEN
from fedstrata.core.errors import RequestError
from fedstrata.data.preprocessing import Preprocessing
from fedstrata.data.reading import Label
from fedstrata.models.pretrained import read_weights

ABOUT = "about"  # the key in a file's header


@dataclass(frozen=True)
class ModelInfo:
    """What a model file says of its model.

    Attributes
    ----------
    model
        The architecture: name and options, as in `[model]`; "given" is a module that came from Python.
    head
        Name of the last layer.
    preprocessing
        From raw inputs to what the network sees.
    sample
        Shape and type of a stored sample: `{"shape": [1, 28, 28], "dtype": "uint8"}`.
    classes
        What each of its outputs stands for, in order: labels, or placeholders where labels were masked at real sites.
    method
        Name of the method.
    data
        Name of the data, and their fingerprint.
    versions
        Of what wrote it.
    columns
        Of a table: which column held the labels.
    label_directory
        Where classes are placeholders: their names, sealed for the sites that trained the model.
    class_names
        What the publisher of the data calls the classes, in order; empty where they are what they are called.
    """

    model: Mapping[str, Any]
    head: str
    preprocessing: Preprocessing
    sample: Mapping[str, Any]
    classes: tuple[Label, ...]
    method: str
    data: Mapping[str, str]
    versions: Mapping[str, str]
    columns: Mapping[str, str] = field(default_factory=dict)
    label_directory: Mapping[str, Any] | None = None
    class_names: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Write it down."""
        plain = {**asdict(self), "preprocessing": json.loads(self.preprocessing.to_json())}
        if not self.class_names:
            del plain["class_names"]
        return json.dumps(dict(sorted(plain.items())))

    @classmethod
    def from_json(cls, text: str) -> ModelInfo:
        """Read what `to_json` wrote."""
        said = json.loads(text)
        steps = Preprocessing.from_json(json.dumps(said.pop("preprocessing")))
        known = {key: value for key, value in said.items() if key in cls.__dataclass_fields__}
        names = {key: tuple(known.get(key, ())) for key in ("classes", "class_names")}
        return cls(preprocessing=steps, **{**known, **names})

    @property
    def given(self) -> bool:
        """Whether the architecture is a module that came from Python, which no file holds."""
        return self.model.get("name") == GIVEN


def read_model(path: Path, key: str) -> tuple[dict[str, Tensor], ModelInfo | None]:
    """Read a model file, and what it says of itself if it was written by a run; `key` names what asked for it."""
    tensors, about = read_weights(path, key)
    try:
        return tensors, ModelInfo.from_json(about[ABOUT]) if ABOUT in about else None
    except (KeyError, TypeError, ValueError):  # written before files were complete
        return tensors, None


def place_rows(
    network: nn.Module, info: ModelInfo, tensors: Mapping[str, Tensor], classes: Sequence[Label], key: str
) -> dict[str, Tensor]:
    """Return a model's tensors with the rows of its head in the order of other classes, found by name."""
    if tuple(classes) == info.classes:
        return dict(tensors)
    if missing := [label for label in classes if label not in info.classes]:
        known = ", ".join(map(repr, info.classes[:20]))
        raise RequestError(f"{key}: that model does not know the class {missing[0]!r}; it knows {known}")
    rows = torch.tensor([info.classes.index(label) for label in classes])
    head = network.get_submodule(info.head) if info.head in dict(network.named_modules()) else nn.Identity()
    layers = [name for name, layer in head.named_modules() if any(True for _ in layer.parameters(recurse=False))]
    last = ".".join(filter(None, [info.head, layers[-1] if layers else ""]))
    placed = dict(tensors)
    for name in (f"{last}.weight", f"{last}.bias"):
        if name in placed:
            if len(placed[name]) != len(info.classes):
                raise RequestError(f"{key}: {name} has not one row a class, so that classes cannot be put in order")
            placed[name] = placed[name].index_select(0, rows)
    return placed
