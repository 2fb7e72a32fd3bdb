"""Questions to sites before a run begins; a site that gives no answer is an event, and may be the end of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedstrata.core.errors import FedstrataError, RequestError
from fedstrata.remote.protocol import within
from fedstrata.remote.server.site_registry import SiteRegistry, ask_sites, by_client, replies

Notes = list[tuple[str, dict[str, Any]]]  # events of getting there, for the run's folder once there is one
Refuse = Callable[[str, FedstrataError], None]


class FirstQuestions:
    """Asks the sites of a run, and notes who does not answer."""

    def __init__(self, registry: SiteRegistry, notes: Notes):
        self.registry, self.notes = registry, notes

    def heard(self, requests: Mapping[str, bytes], fields: int) -> dict[str, tuple[bytes, ...]]:
        """Ask before the run, and give the replies that are ones; every site without one is an event."""

        def refuse(name: str, error: FedstrataError) -> None:
            client = self.registry.names.index(name)
            self.note("site_refused", round=0, step=0, site=name, client=client, why=str(error))

        return self._replies(requests, fields, refuse)

    def all_heard(self, requests: Mapping[str, bytes], fields: int) -> dict[str, tuple[bytes, ...]]:
        """Ask before the run, all of them or nobody."""

        def refuse(name: str, error: FedstrataError) -> None:
            raise RequestError(f"site {name}: {error}")

        return self._replies(requests, fields, refuse)

    def _replies(self, requests: Mapping[str, bytes], fields: int, refuse: Refuse) -> dict[str, tuple[bytes, ...]]:
        registry = self.registry
        ours = {name: within(registry.run, request) for name, request in requests.items()}
        return replies(ours, ask_sites(registry.transport, ours, fields, registry.deadline), refuse)

    def everybody(self, requests: Mapping[int, bytes]) -> dict[int, bytes]:
        """Ask all sites before the run, by client; one that does not answer ends it."""
        names = self.registry.names
        said = by_client(names, lambda asked: self.heard(asked, 1))(requests)
        for client in requests:
            if client not in said:
                whys = [fields["why"] for _, fields in self.notes if fields.get("site") == names[client]]
                raise RequestError(f"site {names[client]}: {whys[-1]}; all sites are needed to begin, try again")
        return said

    def note(self, kind: str, **fields: Any) -> None:
        """Keep an event."""
        self.notes.append((kind, fields))


def say_too_few(there: int, wanted: int, notes: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Say that too few sites are left, and why."""
    return "; ".join([f"{wanted} sites are wanted, and {there} are left", *say_refusals(notes)])


def say_refusals(notes: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """Say why sites were left out before the run; those with the same reason together."""
    reasons: dict[str, dict[str, None]] = {}  # sites in their order, each once
    for kind, about in notes:
        if kind == "site_refused":
            reasons.setdefault(about["why"], {})[about["site"]] = None
    return [f"site{'s' * (len(who) > 1)} {', '.join(who)}: {why}" for why, who in reasons.items()]
