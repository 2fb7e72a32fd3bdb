"""What a site says of its data before a run. Samples never leave a site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite, prod
from typing import Any

import numpy as np
import torch

from fedstrata import __version__
from fedstrata.core.errors import RequestError
from fedstrata.core.registry import validate
from fedstrata.data.federation import Federation
from fedstrata.data.preprocessing import Preprocessing
from fedstrata.data.scaling import Scale

MOST = 10**9  # samples of a site, and numbers of a sample
CLASSES, NAME = 100_000, 200  # labels of a site, and characters of one: they are written into every run's events
LONGEST = 1000  # characters of a column's name, or of a value
COUNTED = frozenset({"labels", "totals", "counts"})  # facts of the client info that are made of label counts


@dataclass(frozen=True)
class Introduction:
    """One site's data, described."""

    shape: tuple[int, ...]  # of a sample
    dtype: str
    classes: tuple[int | str, ...] | None  # its labels, where the server may know
    samples: int
    tests: int
    scale: float
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    fingerprint: str  # changes when its data do
    speed: float = 1.0
    counts: tuple[int, ...] | None = None  # samples of each of its labels, where the server may know
    preprocessing: Preprocessing | None = None  # done to raw inputs; with `unscaled`, to be done
    version: str = ""  # of the site's fedstrata
    roll: int = 0  # the serial number of the roll that it goes by
    roll_refused: str = ""  # why not by the one that the server brought
    unscaled: Scale | None = None  # how features are still to be scaled, together with those of the other sites

    @classmethod
    def of(cls, federation: Federation, named: bool = True, counts: np.ndarray | None = None) -> Introduction:
        """Describe a site's own data, a federation of one: its labels where they may be named, and counts as given."""
        x, inputs = federation.train.x, federation.inputs
        raw = federation.unscaled is not None and x.is_floating_point()
        return cls(
            shape=tuple(x.shape[1:]),
            dtype=str(torch.float32 if raw else x.dtype).removeprefix("torch."),
            classes=federation.classes if named else None,
            samples=int(federation.train_split.sizes[0]),
            tests=int(federation.test_split.sizes[0]),
            scale=inputs.scale,
            mean=inputs.mean,
            std=inputs.std,
            fingerprint=federation.fingerprint,
            counts=None if counts is None else tuple(counts.tolist()),
            preprocessing=federation.preprocessing,
            unscaled=federation.unscaled,
            version=__version__,
        )

    def dump(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @classmethod
    def read(cls, values: Mapping[str, Any], site: str) -> Introduction:
        """Read what a site said; it is not trusted to say it right."""
        facts: Introduction = validate(cls, dict(values), f"site {site}")
        counted = facts.samples, facts.tests, *(facts.counts or ())
        scales = facts.scale, facts.speed, *(facts.mean or ()), *(facts.std or ())
        possible = all(0 <= number <= MOST for number in counted) and all(map(isfinite, scales))
        if not possible or facts.classes == () or facts.speed <= 0:
            raise RequestError(f"site {site} describes its data with impossible numbers")
        names = [
            facts.dtype,
            facts.fingerprint,
            facts.version,
            facts.roll_refused,
            *(label for label in facts.classes or () if isinstance(label, str)),
        ]
        if not all(len(name) <= NAME and name.isprintable() for name in names) or len(facts.classes or ()) > CLASSES:
            raise RequestError(
                f"site {site} has labels that are no plain text of at most {NAME} characters, or more than {CLASSES:,}"
            )
        if facts.counts is not None and len(facts.counts) != len(facts.classes or ()):
            raise RequestError(f"site {site} counts its labels wrongly")
        if not isinstance(getattr(torch, facts.dtype, None), torch.dtype) or min(facts.shape, default=1) < 1:
            raise RequestError(f"site {site} has samples of a kind that there is not: {facts.dtype} {facts.shape}")
        if prod(facts.shape) > MOST:
            raise RequestError(f"site {site} has samples with shape {facts.shape}, which nobody could hold")
        _check_told(facts.preprocessing, facts.shape, facts.unscaled is not None, site)
        return facts


def _check_told(told: Preprocessing | None, shape: tuple[int, ...], unscaled: bool, site: str) -> None:
    """Refuse what a site says of its preprocessing if it cannot be so; it is not trusted to say it right."""
    if told is None:
        return
    features = len(told.features) if told.columns else (shape or (0,))[0]
    fills = [column.fill for column in told.columns if column.fill is not None]
    numbers = [told.scale, *(told.mean or ()), *(told.std or ()), *(f for f in fills if not isinstance(f, str))]
    words = [word for column in told.columns for word in (column.name, *(column.values or ()))]
    known = (told.mean is None) == (told.std is None) and len(told.mean or ()) == len(told.std or ())
    named = not told.columns or (shape == (features,) and len({c.name for c in told.columns}) == len(told.columns))
    values = all(len(set(column.values or ())) == len(column.values or ()) for column in told.columns)
    sound = all(map(isfinite, numbers)) and told.scale > 0 and min(told.std or (1.0,)) > 0
    if not unscaled and any(column.fill == "median" for column in told.columns):
        known = False
    if unscaled and told.mean is not None and len(told.mean) != features:
        known = False
    if not (known and named and values and sound) or max(map(len, words), default=0) > LONGEST:
        raise RequestError(f"site {site} describes its features in a way that cannot be")
