"""`check_dataset`, `check_noise`, `check_lr_schedule`, `check_recipe` and `check_engine` catch what they are for."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from fedstrata.core.errors import PartError, RequestError
from fedstrata.data.noise import Noise
from fedstrata.data.sets.base import Arrays, DataSet
from fedstrata.engines.local.start import LocalEngineOptions
from fedstrata.methods.lr_schedules import LRSchedule
from fedstrata.methods.recipes import Recipe
from fedstrata.testing import check_dataset, check_engine, check_lr_schedule, check_noise, check_recipe


@dataclass(frozen=True)
class Blobs(DataSet):
    """Two clouds of points."""

    seed: int = 0

    def load(self):
        rng = np.random.default_rng(self.seed)
        y = np.arange(60) % 2
        x = (rng.normal(size=(60, 5)) + 2 * y[:, None]).astype(np.float32)
        names = np.array(["left", "right"])[y]
        return Arrays(x[:40], names[:40], x[40:], names[40:], *self.groups())

    def groups(self):
        return None, None


@dataclass(frozen=True)
class Grouped(Blobs):
    """Points of four sites."""

    def groups(self):
        return np.arange(40) % 4, np.arange(20) % 4


@dataclass(frozen=True)
class Pictures(DataSet):
    """Small images with three channels."""

    def load(self):
        x = np.random.default_rng(0).integers(0, 256, (60, 3, 5, 5)).astype(np.uint8)
        y = np.arange(60) % 3
        return Arrays(x[:40], y[:40], x[40:], y[40:], mean=(0.5,) * 3, std=(0.2,) * 3)


@dataclass(frozen=True)
class Tokens(DataSet):
    """Rows of words, by number."""

    def load(self):
        x, y = np.random.default_rng(0).integers(0, 99, (60, 8)), np.arange(60) % 3
        return Arrays(x[:40], y[:40], x[40:], y[40:])


@pytest.mark.parametrize("part", [Blobs(), Blobs(seed=3), Grouped(), Pictures(), Tokens()], ids=str)
def test_a_sound_data_set_passes(part):
    check_dataset(part)


@dataclass(frozen=True)
class NoSeed(Blobs):
    """Is another one every time."""

    def load(self):
        return replace(super().load(), x=np.random.default_rng().random((40, 5)).astype(np.float32))


@dataclass(frozen=True)
class GlobalSeed(Blobs):
    """Draws from numpy's global generator, which somebody seeded."""

    def load(self):
        np.random.seed(1)  # noqa: NPY002  that is the point
        return replace(super().load(), x=np.random.random((40, 5)).astype(np.float32))  # noqa: NPY002


@dataclass(frozen=True)
class Rescales(Blobs):
    """Writes into the arrays that it gave before."""

    def load(self):
        if not SHARED:
            SHARED.append(super().load())
        SHARED[0].x[:] /= np.abs(SHARED[0].x).max()
        SHARED[0].x[0] += 1
        return SHARED[0]


SHARED: list[Arrays] = []


@dataclass(frozen=True)
class Leaks(Blobs):
    """Tests on what it trains on."""

    def load(self):
        own = super().load()
        return replace(own, test_x=own.x[:20], test_y=own.y[:20])


@dataclass(frozen=True)
class Doubles(Blobs):
    """Is in double precision."""

    def load(self):
        own = super().load()
        return replace(own, x=own.x.astype(np.float64), test_x=own.test_x.astype(np.float64))


@dataclass(frozen=True)
class ChannelsLast(Pictures):
    """Has its channels at the end."""

    def load(self):
        own = super().load()
        return Arrays(own.x.transpose(0, 2, 3, 1), own.y, own.test_x.transpose(0, 2, 3, 1), own.test_y)


@dataclass(frozen=True)
class FlatPictures(Pictures):
    """Gives images as rows of bytes."""

    def load(self):
        own = super().load()
        return Arrays(own.x.reshape(40, -1), own.y, own.test_x.reshape(20, -1), own.test_y)


@dataclass(frozen=True)
class OneClass(Blobs):
    """Has one label."""

    def load(self):
        own = super().load()
        return replace(own, y=np.zeros(40, dtype=int), test_y=np.zeros(20, dtype=int))


@dataclass(frozen=True)
class NewInTest(Blobs):
    """Tests on a label that nobody trains on."""

    def load(self):
        own = super().load()
        return replace(own, test_y=np.where(np.arange(20) == 3, "middle", own.test_y))


@dataclass(frozen=True)
class Missing(Blobs):
    """Lacks a number."""

    def load(self):
        own = super().load()
        own.x[7, 2] = np.nan
        return own


@dataclass(frozen=True)
class MixedGroups(Grouped):
    """Names groups by number here and by text there."""

    def groups(self):
        return np.arange(40) % 4, np.array(list("abcd"))[np.arange(20) % 4]


@dataclass(frozen=True)
class Huge(Blobs):
    """Is not scaled."""

    def load(self):
        own = super().load()
        return replace(own, x=own.x * np.float32(1e30), test_x=own.test_x * np.float32(1e30))


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (NoSeed(), "NoSeed: `load` gave another x the second time"),
        (GlobalSeed(), "GlobalSeed: `load` draws from numpy's global generator"),
        (Rescales(), "Rescales: `load` gave another x|Rescales: a second `load` changed the x"),
        (Leaks(), "Leaks: 100% of the test samples are also training samples"),
        (Doubles(), "Doubles: x is float64; allowed: uint8"),
        (ChannelsLast(), r"ChannelsLast: x has shape \(40, 5, 5, 3\), its channels last; .*transpose\(0, 3, 1, 2\)"),
        (FlatPictures(), r"FlatPictures: uint8 samples are images, and x has shape \(40, 75\)"),
        (OneClass(), r"OneClass: all labels are \[0\]; at least 2"),
        (NewInTest(), r"NewInTest: `load` gave samples that cannot be used: the test labels \['middle'\] do not occur"),
        (Missing(), "Missing: `load` gave samples that cannot be used: 1 samples hold NaN .* the first at row 7"),
        (MixedGroups(), "MixedGroups: groups are int64, test_groups <U1; allowed: text or whole numbers, the same"),
        (Huge(), "Huge: (no client could train|the model is not finite)"),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_a_broken_data_set_is_caught(part, said):
    SHARED.clear()
    with pytest.raises((AssertionError, PartError), match=said):
        check_dataset(part)


def test_samples_that_are_alike_by_nature_may_be_allowed():
    check_dataset(Leaks(), overlap=1.0)


# ---- noise -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fog(Noise):
    """Everything becomes paler."""

    share: float = 0.5

    def apply(self, x, y, clients, classes, streams):
        held, pale = np.concatenate(clients), x.astype(np.float32)
        pale[held] *= self.share
        return pale, y


@dataclass(frozen=True)
class Everywhere(Fog):
    """Reaches what nobody holds."""

    def apply(self, x, y, clients, classes, streams):
        return x.astype(np.float32) + 1, y


@dataclass(frozen=True)
class Unseeded(Fog):
    """Differs every time."""

    def apply(self, x, y, clients, classes, streams):
        held, wild = np.concatenate(clients), x.astype(np.float32)
        wild[held] += np.random.default_rng().random()
        return wild, y


@dataclass(frozen=True)
class InPlace(Fog):
    """Spoils what it was given."""

    def apply(self, x, y, clients, classes, streams):
        y[np.concatenate(clients)] = 0
        return x, y


@dataclass(frozen=True)
class Fussy(Fog):
    """Takes nothing."""

    def apply(self, x, y, clients, classes, streams):
        raise RequestError("no")


def test_sound_noise_passes():
    check_noise(Fog())


@pytest.mark.parametrize(
    ("noise", "said"),
    [
        (Everywhere(), "Everywhere changed a x that nobody holds"),
        (Unseeded(), "Unseeded: the same seed gave another x"),
        (InPlace(), "InPlace: `apply` writes into the arrays"),
        (Fussy(), "Fussy refused tables, float images and uint8 images"),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_broken_noise_is_caught(noise, said):
    with pytest.raises((AssertionError, PartError), match=said):
        check_noise(noise)


# ---- learning rates, recipes, engines --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Halving(LRSchedule):
    """Halves the rate every round."""

    def factor(self, round, rounds, unit=1.0):
        return 0.5**round


@dataclass(frozen=True)
class FromNothing(LRSchedule):
    """Begins with 0."""

    def factor(self, round, rounds, unit=1.0):
        return round / rounds


@dataclass(frozen=True)
class Counting(LRSchedule):
    """Counts how often it was asked."""

    def factor(self, round, rounds, unit=1.0):
        object.__setattr__(self, "calls", getattr(self, "calls", 0) + 1)
        return 1.0 / self.calls


def test_learning_rate_schedules():
    check_lr_schedule(Halving())
    with pytest.raises(AssertionError, match="FromNothing: the learning rate of the first round is 0"):
        check_lr_schedule(FromNothing())
    with pytest.raises(AssertionError, match="Counting: `factor` depends on when it was asked before"):
        check_lr_schedule(Counting())


def test_recipes():
    check_recipe(Recipe("Largest first.", "", {"selector": "size", "corrections": [{"kind": "prox"}]}, {"lr": 0.05}))
    with pytest.raises(AssertionError, match="is no Recipe"):
        check_recipe({"selector": "size"})
    with pytest.raises(AssertionError, match="needs a summary"):
        check_recipe(Recipe("", "", {}))
    with pytest.raises(RequestError, match=r'method.selector.kind = "sise" is unknown'):
        check_recipe(Recipe("Misspelt.", "", {"selector": "sise"}))


@dataclass(frozen=True)
class Forgets(LocalEngineOptions):
    """Loses what clients keep."""

    def start(self, local, federation, client_updates, note):
        engine = super().start(local, federation, client_updates, note)
        engine.restore = lambda client_states: None
        return engine


@dataclass(frozen=True)
class Reorders(LocalEngineOptions):
    """Weighs everybody alike, whatever the combiner says."""

    def start(self, local, federation, client_updates, note):
        engine = super().start(local, federation, client_updates, note)
        collect = engine.collect
        engine.collect = lambda weights: collect(dict.fromkeys(weights, 1 / len(weights)))
        return engine


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        (Forgets(workers=1), "off by .* from that of a resumed run"),
        (Reorders(workers=1), "off by .* from that of the plain engine"),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_a_broken_engine_is_caught(engine, said):
    with pytest.raises(AssertionError, match=said):
        check_engine(engine)
