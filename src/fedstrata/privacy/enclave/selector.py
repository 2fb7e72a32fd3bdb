"""FLIPS whose clusters nobody sees: the selector at the server only relays what is public anyway."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from fedstrata.core.errors import FedstrataError
from fedstrata.core.server_parts import Selector
from fedstrata.core.steps import Outcome, Scores, View
from fedstrata.privacy.enclave.requests import Request


class Asks(Protocol):
    """The server's handle of the service."""

    @property
    def asked(self) -> Sequence[Request]:
        """What the live service was asked since it began."""

    def ask(self, request: Request) -> list[int]:
        """Ask it."""


@dataclass
class EnclaveAnswers:
    """All requests of a run so far. With what parties tell a fresh service again, they give the same clusters."""

    requests: list[Request] = field(default_factory=list)


@dataclass(frozen=True)
class InEnclave(Selector):
    """FLIPS inside an enclave: clusters of label distributions that the server does not learn."""

    paper: ClassVar[str] = "Bhope et al., FLIPS, 2023"

    enclave: Asks = field(compare=False, repr=False)

    def init(self, view: View) -> EnclaveAnswers:
        """Begin with nothing asked."""
        return EnclaveAnswers()

    def select(self, state: EnclaveAnswers, view: View) -> list[int]:
        """Let the service select."""
        return self._ask(state, Request.to_select(view))

    def feedback(self, state: EnclaveAnswers, view: View, outcomes: Sequence[Outcome], scores: Scores) -> None:
        """Tell the service who is missing."""
        self._ask(state, Request.to_learn(view, outcomes))

    def _ask(self, state: EnclaveAnswers, request: Request) -> list[int]:
        self._catch_up(state.requests)
        told = self.enclave.ask(request)
        state.requests.append(request)
        return told

    def _catch_up(self, requests: Sequence[Request]) -> None:
        """Ask a service that was started anew all that the last one was asked."""
        asked = self.enclave.asked
        if len(asked) > len(requests) or any(not _same(a, b) for a, b in zip(asked, requests, strict=False)):
            raise FedstrataError("this enclave service has served another run; start a fresh one")
        for request in requests[len(asked) :]:
            self.enclave.ask(request)


def _same(a: Request, b: Request) -> bool:
    return a is b or a.written() == b.written()
