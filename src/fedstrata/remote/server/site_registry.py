"""The sites of a run, by name: who is there, what they said of their data, and how they are asked.

A site whose process was restarted does not know the run any more. It is told again and asked again in the same breath;
if its data are other ones by then, it is asked what they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Any, TypeVar

from fedstrata import __version__
from fedstrata.core.errors import FedstrataError, RequestError
from fedstrata.core.events import Log
from fedstrata.core.plain_text import plain_text
from fedstrata.core.storage.files import write_atomically
from fedstrata.data.reading import Label
from fedstrata.remote.introduction import Introduction
from fedstrata.remote.protocol import (
    AbsentError,
    SiteError,
    VersionError,
    build_request,
    read_reply,
    read_values,
    to_json,
    within,
)
from fedstrata.remote.protocol_version import PROTOCOL
from fedstrata.remote.server.federation import common_classes
from fedstrata.remote.transport import Failure, Transport

Said = tuple[bytes, ...] | FedstrataError  # the fields of a reply, or why there are none
Ask = Callable[[Mapping[int, bytes]], dict[int, bytes]]  # requests by client -> the replies that came
OFTEN = 0.2  # seconds between two looks for sites
FILE = "sites.json"  # in the run folder
T = TypeVar("T")


@dataclass
class SiteRegistry:
    """Everybody who takes part in a run; client i is the i-th site."""

    transport: Transport
    run: str  # no other run is called that
    facts: dict[str, Introduction]
    question: Mapping[str, Any]  # what sites are asked about their data
    deadline: float | None = None  # seconds for an exchange
    patience: float = 600.0  # seconds in which enough sites must be there at all
    classes: Sequence[Label] = ()
    welcome: Callable[[str], bytes] = lambda _: b""  # what tells a site of the run
    fixed: str | None = None  # why no site can go on with other data than it began with
    note: Log = lambda *_, **__: None
    miss: Callable[[Collection[str]], None] = lambda _: None  # told who must come before the run goes on
    changed: bool = False  # whether some site's data are other ones than at the beginning
    away: set[str] = field(default_factory=set)  # who was there before, and is not
    keys: Mapping[str, str] = field(default_factory=dict)  # identities of sites as they were when the run began
    shut_out: Callable[[], Mapping[str, str]] = dict  # who cannot go on in this run by now, and why
    out: set[str] = field(default_factory=set)  # of whom that was said

    @property
    def names(self) -> list[str]:
        """All of them, by client."""
        return list(self.facts)

    def ask(self, requests: Mapping[str, bytes], fields: int, enough: int | None = None) -> dict[str, Said]:
        """Ask sites, and give what each said; who is silent is not in it."""
        left = _clock(self.deadline)
        said = self._exchange(requests, fields, left(), enough)
        if back := [name for name, told in said.items() if isinstance(told, AbsentError)]:
            wrong = self.begin(back, left())
            again = {name: requests[name] for name in back if name not in wrong}
            said = {name: told for name, told in said.items() if name not in back}
            said |= {**wrong, **self._exchange(again, fields, left(), None)}
        if self.away or len(said) < (len(requests) if enough is None else enough):
            self._look_around({*self.transport.names()} - self.out)
        return said

    def begin(self, names: Collection[str], deadline: float | None) -> dict[str, FedstrataError]:
        """Tell sites of the run; give what went wrong."""
        said = ask_sites(self.transport, {name: self.welcome(name) for name in names}, 1, deadline)
        wrong = {name: told for name, told in said.items() if isinstance(told, FedstrataError)}
        wrong |= {
            name: SiteError("it did not answer when it was told of the run") for name in names if name not in said
        }
        for name, told in said.items():
            try:
                if isinstance(told, tuple):
                    self._read_begin_reply(name, read_values(told[0]))
            except FedstrataError as error:
                wrong[name] = error
        return wrong

    def attending(self, least: int, heed: Callable[[], None] = lambda: None) -> set[str]:
        """Return the sites that are there now; wait for so many of them, and `heed` operators meanwhile."""
        if len(there := self._there(least)) < min(least, len(self.facts)):
            self.note("waiting", sites=sorted(self.facts.keys() - self.out - there), wanted=least)
            there = self._wait(least, heed)
        self._look_around(there)
        return there

    def leave_out(self, least: int) -> None:
        """Note who cannot go on in this run; without so many sites, it ends here: nobody who is out comes back."""
        shut_out = self.shut_out()
        for name in sorted(shut_out.keys() - self.out):
            self.note("site_refused", site=name, client=self.names.index(name), why=shut_out[name])
            self.out.add(name)
        left = [name for name in self.facts if name not in self.out]
        if len(left) < min(least, len(self.facts)):
            why = "; ".join(f"site {name}: {reason}" for name, reason in sorted(shut_out.items()))
            raise FedstrataError(
                f"{why}; this run needs {least} sites, and {len(left)} are left: begin a new run, without --resume"
            )

    def _there(self, least: int) -> set[str]:
        self.leave_out(least)
        return {*self.transport.names()} & {*self.facts} - self.out

    def _wait(self, least: int, heed: Callable[[], None]) -> set[str]:
        until = monotonic() + self.patience
        try:
            while len(there := self._there(least)) < min(least, len(self.facts)):
                self.miss(missing := self.facts.keys() - self.out - there)
                if monotonic() > until:
                    raise FedstrataError(
                        f"after {self.patience:g} seconds {len(there)} of the {least} sites that are needed are "
                        f"there; missing: {', '.join(sorted(missing))}; the run can be resumed"
                    )
                before = monotonic()
                heed()
                until += monotonic() - before  # a pause is not time in which sites were waited for
                sleep(OFTEN)
        finally:
            self.miss(())
        return there

    def _look_around(self, there: Collection[str]) -> None:
        """Log who has gone and who is back: one event for each, however often it is asked for."""
        away = {name for name in self.facts if name not in there}
        for kind, names in {"site_away": away - self.away, "site_back": self.away - away}.items():
            for name in sorted(names):
                self.note(kind, site=name, client=self.names.index(name))
        self.away = away

    def write(self, folder: Path) -> None:
        """Keep who takes part, for those who go on with the run."""
        table: dict[str, Any] = {"run": self.run, "sites": {name: facts.dump() for name, facts in self.facts.items()}}
        if self.keys:
            table["keys"] = {name: key for name, key in self.keys.items() if name in self.facts}
        write_atomically(folder / FILE, json.dumps(table).encode())

    def _exchange(
        self, requests: Mapping[str, bytes], fields: int, deadline: float | None, enough: int | None
    ) -> dict[str, Said]:
        ours = {name: within(self.run, request) for name, request in requests.items()}
        return ask_sites(self.transport, ours, fields, deadline, enough)

    def _read_begin_reply(self, name: str, told: Mapping[str, Any]) -> None:
        """Handle a site's reply to `begin`."""
        if told.get("data") != self.facts[name].fingerprint:
            self._hear_again(name)
        if isinstance(untested := told.get("untested"), int) and untested > 0:
            why = f"site {name} does not train on their labels, and has no placeholders for them"
            self.note("fallback", what="test samples", left_out=untested, why=why)

    def _hear_again(self, name: str) -> None:
        """Ask a site that has other data than before what they are."""
        if self.fixed is not None:
            raise SiteError(f"its data are not those that it began with, and {self.fixed}; start a new run")
        before, now = self.facts[name], ask_introductions(self.transport, [name], self.question, self.deadline)[name]
        if strange := [label for label in now.classes or () if label not in self.classes]:
            raise SiteError(f"its data have labels that the run does not know: {strange[:5]}")
        common_classes(self.facts | {name: now})
        self.facts[name], self.changed = now, True
        about = {"samples": now.samples, "before": before.samples}
        self.note("site_changed", site=name, client=self.names.index(name), **about)


@dataclass(frozen=True)
class SiteNames(Sequence[str]):
    """The names of a run's sites by client, also of those who join later."""

    registry: SiteRegistry

    def __len__(self) -> int:
        return len(self.registry.facts)

    def __getitem__(self, client: Any) -> Any:
        return self.registry.names[client]


def ask_introductions(
    transport: Transport, names: Sequence[str], question: Mapping[str, Any], deadline: float | None
) -> dict[str, Introduction]:
    """Ask sites what they have, as far as the method needs to know; every one must say it."""
    facts, wrong = ask_facts(transport, names, question, deadline)
    for name, error in wrong.items():
        raise RequestError(f"site {name}: {error}")
    return facts


def ask_facts(
    transport: Transport, names: Sequence[str], question: Mapping[str, Any], deadline: float | None
) -> tuple[dict[str, Introduction], dict[str, FedstrataError]]:
    """Ask sites what they have; give what they said, and why some did not."""
    request = build_request("introduce", to_json(question))
    said = ask_sites(transport, dict.fromkeys(names, request), 1, deadline)
    facts, wrong = dict[str, Introduction](), dict[str, FedstrataError]()
    for name in names:
        try:
            told = said.get(name, SiteError("it does not answer"))
            if isinstance(told, FedstrataError):
                raise told
            facts[name] = read_facts(name, told[0])
        except FedstrataError as error:
            wrong[name] = error
    return facts, wrong


def read_facts(name: str, reply: bytes) -> Introduction:
    """Read what a site says that it has; refuse what cannot be."""
    values = read_values(reply)
    if values.pop("site", None) != name:
        raise SiteError("it introduces itself by another name")
    if (spoken := values.pop("protocol", None)) != PROTOCOL:
        theirs = f"it has fedstrata {plain_text(str(values.get('version') or 'of before'))[:20]}"
        ours = f"and the server {__version__} with protocol {PROTOCOL}; install the same at both"
        raise VersionError(f"{theirs} with protocol {spoken!r:.20}, {ours}")
    try:
        return Introduction.read(values, name)
    except RequestError as error:
        raise of_itself(name, error) from None


def of_itself(name: str, error: FedstrataError) -> SiteError:
    """Say what is wrong with a site as it would: whoever reads it is told which site it is."""
    text, about = str(error), f"site {name} "
    return SiteError(f"it {text.removeprefix(about)}" if text.startswith(about) else text)


def note_differences(name: str, facts: Introduction, note: Log) -> None:
    """Say where a site has another version, which fits, or does not take the roll that it was brought."""
    if facts.version != __version__:
        why = f"it has fedstrata {facts.version}, the server {__version__}; both speak protocol {PROTOCOL}, and fit"
        note("site_version", site=name, why=why)
    if facts.roll_refused:
        note("roll_refused", site=name, why=facts.roll_refused)


def ask_sites(
    transport: Transport,
    requests: Mapping[str, bytes],
    fields: int,
    deadline: float | None = None,
    enough: int | None = None,
) -> dict[str, Said]:
    """Exchange, and read replies of so many fields."""
    said: dict[str, Said] = {}
    for name, answer in (transport.exchange(requests, deadline, enough) if requests else {}).items():
        try:
            said[name] = SiteError(answer.reason) if isinstance(answer, Failure) else read_reply(answer, fields)
        except FedstrataError as error:
            said[name] = error
    return said


def replies(
    names: Iterable[str], said: Mapping[str, Said], refuse: Callable[[str, FedstrataError], None]
) -> dict[str, tuple[bytes, ...]]:
    """Return what those who were asked replied; who is silent, or says why not, is told of."""
    given = {}
    for name in names:
        told = said.get(name, SiteError("it did not answer in time"))
        if isinstance(told, FedstrataError):
            refuse(name, told)
        else:
            given[name] = told
    return given


def by_client(names: Sequence[str], tell: Callable[[Mapping[str, bytes]], Mapping[str, tuple[bytes, ...]]]) -> Ask:
    """Ask clients by number where sites are asked by name; a reply has one field."""

    def ask(requests: Mapping[int, bytes]) -> dict[int, bytes]:
        said = tell({names[client]: request for client, request in requests.items()})
        return {client: said[names[client]][0] for client in requests if names[client] in said}

    return ask


def read_sites(folder: Path) -> tuple[str, dict[str, Introduction]] | None:
    """Return who took part in a run, as its folder has it; None where it never began."""
    told = _written(folder, lambda table: {n: Introduction.read(values, n) for n, values in table["sites"].items()})
    return None if told is None else (told[0], told[1])


def read_keys(folder: Path) -> dict[str, str]:
    """Return the identities that the sites of a run had when it began; none where nobody wrote them down."""
    told = _written(folder, lambda table: {str(n): str(key) for n, key in table.get("keys", {}).items()})
    return {} if told is None else told[1]


def _written(folder: Path, read: Callable[[Any], dict[str, T]]) -> tuple[str, dict[str, T]] | None:
    if not (folder / FILE).exists():
        return None
    try:
        table = json.loads((folder / FILE).read_text())
        return str(table["run"]), read(table)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise RequestError(f"{folder / FILE} is damaged, so nobody knows who takes part: {error!r}") from None


def _clock(seconds: float | None) -> Callable[[], float | None]:
    """Return how much is left of some time, from now on."""
    began = monotonic()
    return lambda: None if seconds is None else max(seconds - (monotonic() - began), 0.0)
