"""What a site says of its features before a run, and how it brings them to the scale that all sites agreed on.

A question is answered with sums over all training samples. Where sums are masked, all sites of the run must be in the
meeting, and a sum that could be subtracted from an earlier one is not given (`Served`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import torch

from fedstrata.core.errors import RequestError
from fedstrata.data.columns import lacking, rearrange
from fedstrata.data.federation import Federation
from fedstrata.data.formats.tabular import some
from fedstrata.data.preprocessing import Preprocessing
from fedstrata.data.reading import Samples
from fedstrata.data.scaling import answers, median_places, scale_samples
from fedstrata.data.statistics import Answers, Kind, Question
from fedstrata.privacy.features import WHOLE, to_words
from fedstrata.privacy.frames import RefusedError
from fedstrata.privacy.labels.served import Served
from fedstrata.privacy.sums.all_reduce import Participant
from fedstrata.remote.protocol import read_values
from fedstrata.remote.site.feature_questions import FeatureQuestions
from fedstrata.remote.site.policy.gate import MOST

if TYPE_CHECKING:
    from fedstrata.remote.site.privacy import SitePrivacy

FAR, FEW = 10.0, 8  # how much smaller a column is here where a unit is another one; of fewer samples nobody knows


class SiteFeatures:
    """Answers questions about a site's features; `load` gives its data, `guard` its place in meetings."""

    def __init__(self, load: Callable[[], Federation], guard: SitePrivacy, served: Served):
        self._load, self._guard, self._served = load, guard, served
        self._meeting: tuple[bytes, Participant] | None = None
        self._asked: tuple[str, Answers] | None = None
        self._questions: dict[str, FeatureQuestions] = {}  # by run

    def answer(self, run: str, about: bytes, place: bytes, invitation: bytes) -> tuple[bytes]:
        """Answer a question of a run; with an invitation, under masks."""
        told = read_values(about)
        question, known = _question(told), str(told["preprocessing"])
        if self._asked is None or self._asked[0] != known:
            self._asked = known, self._answers(Preprocessing.from_json(known))
        self._of(run).check(question, len(median_places(Preprocessing.from_json(known).columns)))
        numbers = np.asarray(self._asked[1](question), dtype=np.float64)
        if not invitation:
            return (numbers.astype("<f8").tobytes(),)
        try:
            words = to_words(numbers[None], question.counts)[0]
        except RequestError as error:
            raise RefusedError(str(error)) from None
        return (self._met(read_values(place), invitation).mask(words, encoding=WHOLE).tobytes(),)

    def _of(self, run: str) -> FeatureQuestions:
        if run not in self._questions:
            self._questions = dict(list(self._questions.items())[1 - MOST :])
        return self._questions.setdefault(run, FeatureQuestions())

    def _answers(self, known: Preprocessing) -> Answers:
        federation = raw_in_order(self._load(), known)
        return answers(federation.train.x.numpy(), federation.train_split[0], known.columns)

    def _met(self, place: dict[str, Any], invitation: bytes) -> Participant:
        """Return this site's place in a meeting, in which all sites of the run must be."""
        if self._meeting is None or self._meeting[0] != invitation:
            participant = self._guard.participant(invitation)
            if len(participant.present) < len(place["sites"]):
                raise RefusedError("features are added up over all sites of a run, and some are missing")
            self._served.sent(participant.keys)
            self._meeting = invitation, participant
        return self._meeting[1]


def on_the_scale(federation: Federation, told: str | None) -> Federation:
    """Return a site's data as the run sees them; `told` is what sites agreed on."""
    if federation.unscaled is None:
        return federation
    if told is None:
        raise RefusedError("the run does not say how features are scaled; begin a new one")
    done = Preprocessing.from_json(told)
    if (done.per_client, done.mean is None) != (federation.unscaled == "per-client", _stays_raw(federation)):
        raise RefusedError(f'this site asks for another scale than the run\'s: data.scale = "{federation.unscaled}"')
    raw = raw_in_order(federation, done)
    (train, test), inputs = scale_samples([(raw.train, raw.train_split), (raw.test, raw.test_split)], done)
    return replace(raw, train=train, test=test, inputs=inputs, preprocessing=done, unscaled=None)


def describe_units(federation: Federation) -> str | None:
    """Name columns of numbers that are small here, and vary little, beside all sites: one of them has another unit.

    Only a site can see that where sums are masked; it looks at its own data as a run scales them.
    """
    done = federation.preprocessing
    if not done.columns or done.mean is None or done.std is None or len(federation.train_split[0]) < FEW:
        return None
    own = federation.train.x[federation.train_split[0]].double()
    spread, mean = own.std(0).tolist(), (own.mean(0) * torch.tensor(done.std) + torch.tensor(done.mean)).tolist()
    starts = np.cumsum([0, *(column.width for column in done.columns)]).tolist()
    numbers = [(column.name, at) for column, at in zip(done.columns, starts, strict=False) if column.values is None]
    small = [name for name, at in numbers if 0 < spread[at] < 1 / FAR]
    if not (odd := [name for name, at in numbers if name in small and 0 < mean[at] / (done.mean[at] or 1) < 1 / FAR]):
        return None
    return (
        f"{some(odd)}: mean and deviation of values here are less than a {FAR:.0f}th of those over all sites; some "
        "site may have another unit"
    )


def raw_in_order(federation: Federation, known: Preprocessing) -> Federation:
    """Return a site's data with its features in the order of the run, which goes by the names of columns."""
    own = federation.preprocessing.columns
    if (why := lacking(own, known.columns)) is not None:
        raise RefusedError(f"this site's table {why}, which is not so in the run; begin a new one")

    def arranged(samples: Samples) -> Samples:
        x = rearrange(samples.x.numpy(), own, known.columns) if own else samples.x.numpy()
        return replace(samples, x=torch.from_numpy(x))

    return replace(federation, train=arranged(federation.train), test=arranged(federation.test))


def _stays_raw(federation: Federation) -> bool:
    return federation.unscaled != "federated" and federation.preprocessing.mean is None


def _question(told: dict[str, Any]) -> Question:
    kind, numbers = told["kind"], told["numbers"]
    if kind not in get_args(Kind):
        raise RefusedError("there is no such question about features")
    dtype = np.uint64 if kind == "below" else np.float64
    return Question(kind, None if numbers is None else np.array(numbers, dtype=dtype))
