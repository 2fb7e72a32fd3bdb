"""What a run says while it goes on: every event is written down, shown to whoever watches, and checked for trouble."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from fedstrata.core.plan import per_round
from fedstrata.data.feature_checks import describe_uneven
from fedstrata.runs.folder import Run
from fedstrata.runs.health import (
    PROBABILITIES,
    SOFTMAX,
    UNSEEN,
    Health,
    describe_noise,
    describe_untrained,
    ends_in_softmax,
    may_be_uneven,
)
from fedstrata.runs.session import Session
from fedstrata.runs.trackers.base import How
from fedstrata.runs.tracking import Tracking

REVEALING = {  # what an event tells of the clients' data
    "round": (
        "label_divergence",
        "label_divergence_selected",
        "label_imbalance",
        "labels",
        "client_accuracy",
        "client_deciles",
    ),
    "clusters": ("members",),
}


class StopSignal:
    """What `watch` returns to end a run; there is one, `fedstrata.STOP`."""

    def __repr__(self) -> str:
        return "fedstrata.STOP"


STOP: Final = StopSignal()
ASKED = "asked for by watch"  # why such a run ended

Watch = Callable[[Mapping[str, Any]], object]


class Journal:
    """The events of one run, from its first to its last."""

    def __init__(self, session: Session, folder: Run, watch: Watch | None, began: float, tracking: Tracking):
        federation = session.federation
        self.stop_asked = False  # by whoever watches
        self.scored = False  # whether the last round was evaluated
        self._folder, self._watch, self._began = folder, watch, began
        self._tracking = tracking
        self._hides_data = session.hides_data
        self._softmax = ends_in_softmax(session.plan, federation)
        own = session.model is not None or ":" in session.experiment.model.name
        self._look_at = (session.plan, federation) if own and session.remote is None else None
        looks = not session.hides_data and session.remote is None  # at data that are here and no secret
        self._doubts = federation.doubts if looks else ()
        uneven = looks and federation.uneven_features is not None
        features = describe_uneven(federation.scale_remedy) if uneven else ""
        known = PROBABILITIES if self._softmax else features
        beside = "" if looks or known or not may_be_uneven(federation) else UNSEEN
        self._weak_delta = session.weak_delta
        clients = session.client_info.clients
        asked = min(per_round(session.plan.clients_per_round, clients), clients)
        noise = describe_noise(session.experiment.privacy.dp, session.plan.space.P, asked)
        self._health = Health(session.experiment, len(federation.classes), federation.tests, known, beside, noise)
        for event in folder.events():  # of a run that goes on
            self._health.see(event)

    def tell(self, event: Mapping[str, Any]) -> None:
        """Show an event to whoever watches, without writing it down."""
        if self._watch is not None and self._watch(event) is STOP:
            self.stop_asked = True

    def log(self, kind: str, **fields: Any) -> None:
        """Write an event down and show it."""
        if kind == "round":
            fields["wall"] = {"seconds": round(time.perf_counter() - self._began, 3)}
            self.scored = "accuracy" in fields
        if self._hides_data:  # they are made of what the server is not told
            fields = {key: value for key, value in fields.items() if key not in REVEALING.get(kind, ())}
        self._folder.log(kind, **fields)
        self.tell({"event": kind, **fields})
        self._tracking.tell({"event": kind, **fields})
        self.say_news()
        if wrong := self._health.see({"event": kind, **fields}):
            self.log("training", round=fields["round"], why=wrong.why)

    @contextmanager
    def tracked(self) -> Iterator[None]:
        """Tell trackers how the run ended, however it did."""
        how: How = "failed"
        try:
            yield
            how = "finished"
        except KeyboardInterrupt:
            how = "stopped"
            raise
        finally:
            self._tracking.end(how)
            self.say_news()

    def say_news(self) -> None:
        """Write down what trackers have to say."""
        for kind, fields in self._tracking.news():
            self.log(kind, **fields)

    def warn_before(self) -> None:
        """Say what is seen of the model, the data and the privacy before anything is trained."""
        if self._softmax:
            self.log("warning", what="model", why=SOFTMAX)
        if self._look_at is not None and (untrained := describe_untrained(*self._look_at)):
            self.log("warning", what="model", why=untrained)
        for doubt in self._doubts:
            self.log("warning", what="data", why=doubt)
        if self._weak_delta is not None:
            self.log("warning", what="privacy", why=self._weak_delta)

    def why_stop(self) -> str | None:
        """Say why the next round is the last, or None."""
        return ASKED if self.stop_asked else None
