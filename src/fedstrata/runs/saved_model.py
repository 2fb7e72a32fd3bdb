"""A model file as something to work with: a module, predictions, scores."""

from __future__ import annotations

import copy
import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedstrata.client.probe import CHUNK
from fedstrata.config.build import make_network_builder
from fedstrata.config.model_info import ModelInfo, read_model
from fedstrata.config.sections import ModelChoice
from fedstrata.core.errors import RequestError
from fedstrata.core.rng import Streams
from fedstrata.data.fitting import SampleForm
from fedstrata.data.raw_inputs import RawInputs, class_indices, read_inputs
from fedstrata.data.reading import Label, read_labels
from fedstrata.runs.classifier import Classifier
from fedstrata.server.metrics import accuracy, mean_recall, recalls


@dataclass(frozen=True)
class SavedModel:
    """The model in a file.

    Attributes
    ----------
    path
        The file.
    names
        What its outputs stand for, where the file holds placeholders and a site has opened their names.
    network
        Where the network came from Python and is still at hand, that network.
    """

    path: Path
    names: tuple[Label, ...] | None = None
    network: nn.Module | None = field(default=None, repr=False)

    @classmethod
    def find(cls, path: str | Path, network: nn.Module | None = None) -> SavedModel:
        """Take a run folder, whose last model it is, or a model file."""
        path = Path(path)
        file = path / "model.safetensors" if path.is_dir() else path
        if not file.is_file():
            why = "it is no run folder" if path.is_dir() else "there is no such file"
            if (path / "experiment.toml").exists():
                command = f"fedstrata run --resume {shlex.quote(str(path))}"
                why = f"its run is not finished; if it was interrupted, `{command}` goes on with it"
            below = [found for depth in ("*", "*/*", "*/*/*") for found in sorted(path.glob(f"{depth}/{file.name}"))]
            if below:  # a folder of runs, or a comparison
                why = f"name one of the runs below it, such as {below[0].parent}"
            raise RequestError(f"{path} holds no model: {why}")
        if not os.access(file, os.R_OK):
            raise RequestError(f"{file} cannot be read: its permissions do not allow it")
        return cls(file, network=network)

    @cached_property
    def _read(self) -> tuple[dict[str, Tensor], ModelInfo | None]:
        return read_model(self.path, str(self.path))

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Tensors by name."""
        return self._read[0]

    @property
    def info(self) -> ModelInfo:
        """What the file says of itself."""
        if self._read[1] is None:
            raise RequestError(
                f"{self.path} does not say what its model is; only files that a run of this version wrote can be used "
                "on their own"
            )
        return self._read[1]

    @property
    def classes(self) -> tuple[Label, ...]:
        """What the outputs stand for, in order."""
        return self.info.classes if self.names is None else self.names

    @property
    def class_names(self) -> tuple[str, ...]:
        """What the outputs are called, in order: by the publisher of the data, or else as the labels are."""
        own = self.info.class_names if self.names is None else ()
        return own or tuple(map(str, self.classes))

    @property
    def has_names(self) -> bool:
        """Whether outputs are called otherwise than their labels."""
        return self.class_names != tuple(map(str, self.classes))

    def module(self, model: nn.Module | None = None) -> Classifier:
        """Build the network, with its weights and what comes before it, ready to be used."""
        info = self.info
        if info.given and model is None:
            model = self.network
        if info.given and model is None:
            raise RequestError(
                f"the module in {self.path} came from Python, and its file holds the weights alone; open the run with "
                "it, as fedstrata.Run(folder, model)"
            )
        if not info.given and model is not None:
            raise RequestError(f"{self.path} holds a {info.model['name']}; it needs no model")
        network = self._built() if model is None else copy.deepcopy(model)
        kinds = {tensor.dtype for tensor in self.tensors.values() if tensor.is_floating_point()}
        try:
            network.to("cpu", torch.float64 if torch.float64 in kinds else torch.float32)
            network.load_state_dict(self.tensors)
        except RuntimeError as error:
            _, *wrong = str(error).split("\n\t")  # torch says what is wrong in lines of their own
            why = "; ".join(line.strip().rstrip(".") for line in wrong) or str(error)
            raise RequestError(f"{self.path} does not fit that model: {why}") from None
        return Classifier(network, info.preprocessing, self.classes).eval()

    def _built(self) -> nn.Module:
        choice, shape = ModelChoice(**self.info.model), _network_shape(self.info)
        return make_network_builder(choice, shape, len(self.info.classes), Streams(0))()

    def inputs(self, raw: Any, label: str | None = None) -> RawInputs:
        """Read raw inputs, whatever holds them; `label` names a table's column of labels, if not as in training."""
        info = self.info
        form = SampleForm(_network_shape(info), info.sample["dtype"], info.preprocessing.scale)
        return read_inputs(raw, info.preprocessing, form, label or info.columns.get("label"))

    def logits(self, x: Tensor, model: nn.Module | None = None) -> Tensor:
        """Return the logits of samples as `inputs` gives them, some at a time."""
        module = self.module(model)
        together = len(x) if self.info.preprocessing.per_client else CHUNK  # those are scaled by all there are
        with torch.no_grad():
            return torch.cat([module(x[at : at + together]) for at in range(0, len(x), together)])

    def probabilities(self, x: Tensor, model: nn.Module | None = None) -> np.ndarray:
        """Return how likely each class is, by sample."""
        shares: np.ndarray = self.logits(x, model).double().softmax(1).numpy()
        return shares

    def evaluate(
        self,
        raw: Any,
        model: nn.Module | None = None,
        label: str | None = None,
        say: Callable[[str], None] = lambda _: None,
        y: Any = None,
    ) -> dict[str, Any]:
        """Score the model on samples whose labels are known; `label` is as in `inputs`, `say` is told its notes.

        `y` are the labels, where what holds the samples does not have them, or has others.
        """
        table = bool(self.info.preprocessing.columns)
        if label is not None and not table:
            raise RequestError(f"--label = {label} names a column of a table; the model is of none: leave it out")
        held = self.inputs(raw, label)
        for note in held.notes:
            say(note)
        if y is not None:
            held = replace(held, labels=read_labels(y).tolist())
        if held.labels is None:
            column = label or self.info.columns.get("label", "label")
            named = f"a column {column}, or name another with --label COLUMN"
            wanted = named if table else "an .npz with y, or folders by class"
            if not isinstance(raw, str | Path):
                raise RequestError("these samples have no labels to compare with; give them as y, one a sample")
            raise RequestError(f"{raw} has no labels to compare with; give {wanted}")
        if len(held.labels) != len(held):
            raise RequestError(f"{len(held)} samples but {len(held.labels)} labels")
        true = class_indices(held.labels, self.classes, self.class_names)
        logits = self.logits(held.x, model)
        hits = logits.argmax(1).numpy() == true
        recall = recalls(hits, true, len(self.classes))
        return {
            "samples": len(true),
            "accuracy": accuracy(hits),
            "balanced_accuracy": mean_recall(recall),
            "loss": float(cross_entropy(logits, torch.from_numpy(true))),
            "recall": {str(label): share for label, share in zip(self.classes, recall, strict=True)},
        }


def _network_shape(info: ModelInfo) -> tuple[int, ...]:
    return tuple(info.sample["shape"])
