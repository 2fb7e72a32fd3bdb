"""Runs that were asked for, in the order in which they were: one goes on, the others wait for their turn.

    FOLDER/queue/NUMBER.json    what was asked for; NUMBER.lock is held by whoever asked, while he is there
                NUMBER.run     held by the run's own process

A run whose command was killed may still go on at the server, or wait for its sites; it keeps its turn as long as it
does, and operators can stop it.
"""

from __future__ import annotations

import getpass
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedstrata.config.naming import name_run
from fedstrata.core.errors import FedstrataError, RequestError
from fedstrata.core.storage.file_lock import in_turn, is_locked, take_lock
from fedstrata.core.storage.files import write_atomically
from fedstrata.core.storage.json_log import FILE as LOG
from fedstrata.core.storage.json_log import append_event
from fedstrata.deploy.logs import asker
from fedstrata.deploy.operators.submit import Submission, over, roll_of
from fedstrata.deploy.server.federation_server import FederationServer
from fedstrata.deploy.state import QUEUE, turn_of
from fedstrata.remote.server.orders import FILE, RunControl, StoppedError
from fedstrata.runs.folder import Run

OFTEN = 0.2  # seconds between two looks
Say = Callable[[str], None]


@dataclass(frozen=True)
class Ticket:
    """One run that was asked for."""

    number: int
    path: str  # of the run folder
    method: str
    who: str
    at: float
    submitted: bool = False  # whether it was its turn

    @property
    def id(self) -> str:
        """What operators call it."""
        return str(self.number)

    def about(self) -> dict[str, Any]:
        """Return what logs say of it."""
        return {"ticket": self.number, "run": Path(self.path).name, "path": self.path, "method": self.method}

    @property
    def words(self) -> str:
        """Say which run it is."""
        return f"run {self.number} ({self.method} in {self.path}, asked for by {self.who})"


def tickets(folder: Path) -> list[Ticket]:
    """Return the runs that go on or wait, the first first."""
    found = []
    for file in sorted((folder / QUEUE).glob("*.json")):
        try:
            ticket = Ticket(**json.loads(file.read_text()))
        except (OSError, ValueError, TypeError):
            continue
        if _alive(file, ticket):
            found.append(ticket)
    return sorted(found, key=lambda ticket: ticket.number)


def control_of(server: FederationServer, ticket: Ticket) -> RunControl:
    """Return what operators say to a run."""
    return RunControl(server.folder / FILE, ticket.id, lambda: roll_of(server))


@contextmanager
def turn(submission: Submission, say: Say) -> Iterator[Ticket]:
    """Wait until a run is the first, and an operator has approved it where the server wants that."""
    folder = submission.server.folder / QUEUE
    folder.mkdir(mode=0o700, exist_ok=True)
    with in_turn(folder / "lock"):
        with _logged(submission.server, path=str(submission.path)):
            _refuse_taken(submission)
        number = 1 + max(map(_number, folder.iterdir()), default=0)
        method, now = name_run(submission.experiment.dump()), time.time()
        ticket = Ticket(number, str(submission.path), method, getpass.getuser(), now)
        lock = take_lock(folder / f"{number}.lock")
        assert lock is not None
        _write(folder, ticket)
    try:
        with _logged(submission.server, **ticket.about()):
            _wait(submission.server, ticket, say)
        ticket = replace(ticket, submitted=True)
        _write(folder, ticket)
        yield ticket
    finally:
        os.close(lock)
        if not _alive(folder / f"{number}.json", ticket):
            (folder / f"{number}.json").unlink(missing_ok=True)


def _number(file: Path) -> int:
    """Return the number of the run that a file is of, also one that was left half written (`3.json.part`)."""
    number = file.name.partition(".")[0]
    return int(number) if re.fullmatch("[0-9]+", number) else 0


def _refuse_taken(submission: Submission) -> None:
    """Refuse a folder that another run of the queue has: each would take the other's outcome for its own."""
    path = submission.path.resolve()
    for other in tickets(submission.server.folder):
        if Path(other.path).resolve() == path:
            option, instead = ("--resume", "") if submission.resume else ("--out", ", or name another folder")
            raise RequestError(
                f"{option} = {submission.path} is taken by {other.words}: wait until that is over{instead}"
            )


def _wait(server: FederationServer, ticket: Ticket, say: Say) -> None:
    control, told = control_of(server, ticket), ""
    while True:
        if (word := control.latest("stop", "refuse")) is not None:
            raise StoppedError(f"operator {word.operator} did not let the run begin")
        before = [other for other in tickets(server.folder) if other.number < ticket.number]
        approved = not server.approval or control.latest("approve") is not None
        if not before and approved:
            return
        news = f"run {ticket.number} waits for an operator: fedstrata deploy console approve {ticket.number}"
        if before:
            news = f"run {ticket.number} waits for its turn behind {len(before)}: {before[0].words}"
        if news != told:
            say(news)
            told = news
            log(server, "run_waits", **ticket.about(), why=news, asked_by=asker())
        time.sleep(OFTEN)


@contextmanager
def _logged(server: FederationServer, **about: Any) -> Iterator[None]:
    """Note in the server's log why a run does not begin: nobody else will hear of it."""
    try:
        yield
    except FedstrataError as error:
        log(server, "run_refused", logging.WARNING, **about, why=str(error), asked_by=asker())
        raise
    except KeyboardInterrupt:
        log(server, "run_withdrawn", **about, asked_by=asker())
        raise


def log(server: FederationServer, event: str, level: int = logging.INFO, /, **about: Any) -> None:
    """Write a line into the log of the server."""
    append_event(server.folder / LOG, event, level, server=server.port, **about)


def find(folder: Path, number: str) -> Ticket:
    """Return a run of the queue by its number."""
    known = tickets(folder)
    fits = [ticket for ticket in known if ticket.id == number]
    if not fits:
        numbers = ", ".join(ticket.id for ticket in known) or "none"
        raise RequestError(f'there is no run "{number}" here that goes on or waits; known are: {numbers}')
    return fits[0]


def _alive(file: Path, ticket: Ticket) -> bool:
    return is_locked(file.with_suffix(".lock")) or (
        is_locked(turn_of(file.parent.parent, ticket.id)) and not over(Run(Path(ticket.path)))
    )


def _write(folder: Path, ticket: Ticket) -> None:
    write_atomically(folder / f"{ticket.number}.json", json.dumps(asdict(ticket)).encode())
