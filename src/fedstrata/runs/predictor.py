"""What a run and its best round can do with their model: predict, build it, write it for others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from fedstrata.core.errors import RequestError
from fedstrata.core.warn_caller import warn_caller
from fedstrata.data.reading import Label
from fedstrata.runs.classifier import Classifier
from fedstrata.runs.export import SUFFIXES, export
from fedstrata.runs.saved_model import SavedModel


class Predictor(ABC):
    """What a run and its best round share: a saved model that can be used at once."""

    @property
    @abstractmethod
    def saved(self) -> SavedModel:
        """The model as its file describes it."""

    @property
    def classes(self) -> tuple[Label, ...]:
        """What the outputs of the model stand for, in order."""
        return self.saved.classes

    @property
    def class_names(self) -> tuple[str, ...]:
        """What they are called: "Ankle boot" for fashion-mnist's label 9; else as the labels are."""
        return self.saved.class_names

    def module(self, model: nn.Module | None = None) -> Classifier:
        """Build the model, ready to be used: raw inputs go in, logits in the order of `classes` come out.

        Parameters
        ----------
        model
            Where the network came from Python and the run was opened without it, that network; it is left as it was.

        Returns
        -------
        Classifier
            A `torch.nn.Module` in eval mode.

        Raises
        ------
        RequestError
            If the run is not finished, or the network came from Python and is not known here.
        """
        return self.saved.module(model)

    def predict(self, x: Any, model: nn.Module | None = None) -> np.ndarray:
        """Return the label that the model finds the likeliest for each sample.

        Parameters
        ----------
        x
            Raw inputs: an array or tensor, a data frame or a mapping of columns, a file (CSV, Parquet, .npz, .npy), an
            image, a list of images, a folder of them, or a torch Dataset of pairs; one sample alone, too.
        model
            As in `module`.

        Returns
        -------
        ndarray
            A label a sample.

        Raises
        ------
        RequestError
            If the inputs do not fit what the model was trained on.

        Examples
        --------
        >>> import fedstrata
        >>> from sklearn.datasets import load_digits
        >>> run = fedstrata.train(overrides={"train.rounds": 10, "data.partition": "iid"})
        >>> images = load_digits().images[:, None]
        >>> float((run.predict(images) == load_digits().target).mean()) > 0.8
        True
        """
        saved = self.saved
        found: np.ndarray = np.array(saved.classes)[saved.logits(_read(saved, x), model).argmax(1).numpy()]
        return found

    def predict_proba(self, x: Any, model: nn.Module | None = None) -> np.ndarray:
        """Return how likely the model finds each class, as scikit-learn's classifiers do.

        Parameters
        ----------
        x
            As in `predict`.
        model
            As in `module`.

        Returns
        -------
        ndarray
            [samples, classes], in the order of `classes`.
        """
        saved = self.saved
        return saved.probabilities(_read(saved, x), model)

    def evaluate(
        self, x: Any, y: Any = None, label: str | None = None, model: nn.Module | None = None
    ) -> dict[str, Any]:
        """Score the model on samples whose labels are known, as `fedstrata evaluate` does.

        Parameters
        ----------
        x
            As in `predict`.
        y
            A label a sample; without it, `x` has them: in a column, as `y` of an .npz, as folders that are named by
            class, or in the pairs of a torch Dataset.
        label
            The column of labels in a table, if not that of training.
        model
            As in `module`.

        Returns
        -------
        dict
            `samples`, `accuracy`, `balanced_accuracy`, `loss`, and `recall` by class.

        Raises
        ------
        RequestError
            If there are no labels, one is no class of the model, or the inputs do not fit it.

        Examples
        --------
        >>> import fedstrata
        >>> from sklearn.datasets import load_digits
        >>> run = fedstrata.train(overrides={"train.rounds": 10, "data.partition": "iid"})
        >>> scores = run.evaluate(load_digits().images[:, None], load_digits().target)
        >>> scores["samples"], scores["accuracy"] > 0.8
        (1797, True)
        """
        return self.saved.evaluate(x, model, label, y=y)

    def export(self, path: str | Path, kind: str | None = None, model: nn.Module | None = None) -> None:
        """Write the model for programs that do not know fedstrata.

        Parameters
        ----------
        path
            The file to write.
        kind
            "onnx", "torch-export", "torchscript" or "state-dict"; if not given, what the file's ending says: .onnx,
            .pt2, .ts or .pt.
        model
            As in `module`.

        Raises
        ------
        RequestError
            If the file cannot be written, or its ending says no kind.
        """
        endings = {ending: name for name, ending in SUFFIXES.items()}
        if (chosen := kind or endings.get(Path(path).suffix)) not in SUFFIXES:
            raise RequestError(f"{path} does not say a kind; allowed: kind = {', '.join(SUFFIXES)}")
        export(self.saved, chosen, Path(path), model)


def _read(saved: SavedModel, x: Any) -> Tensor:
    """Read raw inputs; columns of which nothing is there are warned of."""
    held = saved.inputs(x)
    for note in held.filled:
        warn_caller(note)
    return held.x
