"""Runs at real sites: the server is told of one, and the run folder that its server side writes is followed.

For Flower all runs are the same thin app (`deploy/run_app.py`). What differs goes into the run configuration: paths on
the server's machine, and how many sites to wait for.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedstrata.config.experiment import Experiment
from fedstrata.config.naming import folder_name, name_run
from fedstrata.config.open_stages import fill
from fedstrata.core.errors import FedstrataError, RequestError
from fedstrata.core.storage.event_lines import DAMAGED, read_event
from fedstrata.core.storage.files import make_folder
from fedstrata.data.formats.tabular import some
from fedstrata.deploy import flower, state
from fedstrata.deploy.logs import asker, tail
from fedstrata.deploy.processes import running
from fedstrata.deploy.server.federation_server import FederationServer, hand_in
from fedstrata.deploy.server.run_book import BookedRun, book
from fedstrata.remote.credentials import Credentials
from fedstrata.remote.flower.app_config import RunConfig
from fedstrata.remote.flower.failure import FAILED, forget_failure, read_failure
from fedstrata.remote.roll import Roll
from fedstrata.remote.server.conditions import possible_at_sites
from fedstrata.remote.server.few_sites import to_submit
from fedstrata.remote.server.waiting_note import forget_waiting
from fedstrata.runs.folder import Run
from fedstrata.runs.journal import Watch

LOOK = 0.2  # seconds between two looks at the run folder
ASK = 15.0  # seconds without news after which Flower is asked how the run is doing
GONE = 5.0  # seconds after which a run folder that nobody holds any more is given up

ELSEWHERE = "name a folder that the server, too, can write, such as --out"
SLOW = ("rounds", "terraform")  # drivers that exchange whole models, now and then


@dataclass(frozen=True)
class Submission:
    """A run that is to be made at the sites of a server."""

    server: FederationServer
    experiment: Experiment
    path: Path  # of the run folder
    sites: int
    wait: float = 600.0
    deadline: float = 0.0
    stream: bool | None = None  # None: if all sites reach it, or the method needs it
    resume: bool = False
    ticket: str = ""  # its place in the queue
    checkpoint: Mapping[str, Any] | None = None  # from which it goes on; None: from the beginning

    @property
    def news(self) -> Path:
        """Where its server side tells what happens before there is a run folder."""
        return self.server.folder / f"news-{sha256(str(self.path).encode()).hexdigest()[:12]}.txt"

    def booked(self, number: str) -> BookedRun:
        """Return what the server's book and log say of it."""
        told = self.experiment.dump()
        return BookedRun(
            number=number,
            path=str(self.path),
            method=name_run(told),
            privacy=told["privacy"],
            rounds=self.experiment.train.rounds,
            sites=self.sites,
            asked_by=asker(),
            resumed=self.resume,
        )

    def config(self, experiment: Path) -> dict[str, Any]:
        """Return the run configuration."""
        server = self.server
        streams, needed = self.stream is not False, fine(self.experiment) or self.stream is True
        return RunConfig(
            experiment=experiment,
            out=self.path,
            sites=self.sites,
            resume=self.resume,
            wait=float(self.wait),
            deadline=float(self.deadline),
            stream=server.streams[0] if streams else "",
            listen=server.streams[1] if streams else "",
            fine=streams and needed,
            keys=server.keys or "",
            nodes=str(server.registered or ""),
            met=str(server.met),
            news=str(self.news),
            server=str(server.folder),
            ticket=self.ticket,
            turn=str(state.turn_of(server.folder, self.ticket)) if self.ticket else "",
            folder=str(Path.cwd()),
        ).dump()


def fine(experiment: Experiment) -> bool:
    """Say whether a method exchanges so much so often that messages, of seconds each, would not do."""
    driver = fill(experiment, {}).method.driver  # one that is still to be chosen counts as FedAvg's
    return driver["kind"] not in SLOW or driver.get("norms", "own") != "own"


@contextmanager
def submitted(submission: Submission) -> Iterator[str]:
    """Hand a run to the server, and give Flower's number of it; what was written for that is removed in the end."""
    flower.require_flower()
    if not submission.resume:  # while it waited for its turn, somebody else may have begun there
        refuse_used(submission.path)
    make_place(submission.path)
    forget_failure(submission.path)
    folder = submission.server.folder
    with tempfile.TemporaryDirectory(prefix="run-", dir=folder) as name:
        experiment = Path(name) / "experiment.toml"
        experiment.write_text(to_submit(submission.experiment))
        submission.server.begun(submission.path)
        forget_waiting(folder)
        submission.news.unlink(missing_ok=True)
        try:
            number = _handed_in(submission, experiment)
            book(folder, submission.booked(number))
            yield number
        finally:
            submission.news.unlink(missing_ok=True)


def _handed_in(submission: Submission, experiment: Path) -> str:
    """Tell the server of a run; where it does not take it, leave no folder."""
    try:
        return hand_in(submission.server, submission.config(experiment))
    except FedstrataError:
        with suppress(OSError):  # there is something in it
            submission.path.rmdir()
        raise


def new(server: FederationServer, experiment: Experiment, out: Path | None, sites: int, **how: Any) -> Submission:
    """Describe a new run; what cannot be is refused here, not after the sites were asked."""
    possible_at_sites(experiment)
    if out is not None:
        refuse_used(out)
    path = (out or _claimed(folder_name(name_run(experiment.dump())))).absolute()
    return Submission(server, experiment, path, sites, **how)


def _claimed(stem: str) -> Path:
    try:
        return Run.claim(Path("runs"), stem)
    except RequestError as error:
        raise RequestError(f"{error}; {ELSEWHERE} {state.folder() / 'runs' / stem}") from None


def make_place(out: Path) -> None:
    """Make the folder of a run before the server is asked: it then looks whether it sees and may write the same."""
    try:
        make_folder(out)
    except OSError as error:
        raise RequestError(
            f"--out = {out} cannot be made: {error.strerror or error}; {ELSEWHERE} {state.folder() / 'runs' / out.name}"
        ) from None


def refuse_used(out: Path) -> None:
    """Refuse a folder for a new run that holds more than word of a try that failed."""
    if out.exists() and (not out.is_dir() or {path.name for path in out.iterdir()} - {FAILED}):
        raise RequestError(
            f"--out = {out} is there already: continue a run with --resume {out}, or name another folder"
        )


def refuse_unbegun(path: Path) -> None:
    """Refuse to go on with a run of which nothing is there: it ended before its sites were."""
    if path.is_dir() and not {file.name for file in path.iterdir()} - {FAILED}:
        raise RequestError(
            f"--resume = {path}: nothing of this run has begun; give the command that asked for it again, without "
            f"--resume and with --out {path}"
        )


def again(
    server: FederationServer, path: Path, sites: int | None, say: Callable[[str], None] = lambda _: None, **how: Any
) -> Submission:
    """Describe how a run goes on; without a number, with as many sites as it had and are still on the roll."""
    run = Run.open(path)
    experiment = Experiment.of(run.path / "experiment.toml")
    if run.running:
        raise RequestError(f"another process is running in {path}")
    names, roll = site_names(run), roll_of(server)
    gone = [name for name in names if roll is not None and name not in roll.sites]
    if gone:
        _refuse_masks(path, experiment, gone)
        say(f"off the roll, and so not waited for: {some(gone, 'site')}")
    count = min(sites or len(names), len(names) - len(gone)) if gone else sites or len(names)
    if not count:
        raise RequestError("--sites is required: how many sites to wait for")
    checkpoint = run.checkpoints.manifest(events=int)
    return Submission(server, experiment, path.absolute(), count, **how, resume=True, checkpoint=checkpoint)


def _refuse_masks(path: Path, experiment: Experiment, gone: Sequence[str]) -> None:
    """Refuse to go on where sites agreed on masks with those who are off the roll: they would refuse it themselves."""
    for key, value in (("aggregate", "masked"), ("clustering", "masked"), ("clustering", "enclave")):
        if getattr(experiment.privacy, key) == value:
            raise RequestError(
                f'--resume = {path}: with privacy.{key} = "{value}" a run cannot go on without a site that it began '
                f"with, and {some(gone, 'site')} left the roll; begin a new run with the other sites"
            )


def roll_of(server: FederationServer) -> Roll | None:
    """Return the roll that a server goes by; None: insecure."""
    return None if server.keys is None else Credentials.load(Path(server.keys), server.folder).roll


def site_names(run: Run) -> list[str]:
    """Return the sites of a run, in the order of its clients."""
    told = [event["wall"]["sites"] for event in run.events() if event["event"] == "sites"]
    return list(told[-1]) if told else []


# ---- following -----------------------------------------------------------------------------------------------------


def follow(submission: Submission, number: str, watch: Watch, say: Callable[[str], None]) -> Run:
    """Show the events of a run as its folder gets them, until it is finished or has failed."""
    run, server = Run(submission.path), submission.server
    begun, news, asked, free = False, time.monotonic(), time.monotonic(), None
    lines, told = EventLines(run, submission.checkpoint), 0
    while True:
        ended = over(run)  # first: then all lines are there
        for event in lines.new():
            if not begun:
                watch(_begin(submission))
                begun = True
            watch(event)
            news = time.monotonic()
        for line in _news(submission)[told:]:
            say(line)
            told, news = told + 1, time.monotonic()
        if ended:
            if (error := read_failure(run.path)) is not None:
                raise error
            return run
        now = time.monotonic()
        there = running(server.folder) and (run.running or not begun)
        free = None if there else (free or now)
        if free is not None and now - free > GONE:
            raise _lost(submission, number, "its process is gone")
        if not begun and now - max(news, asked) > ASK:
            how = state_of(server, number)
            if over(run):  # it ended while Flower was asked
                continue
            if how.startswith("finished"):
                raise _lost(submission, number, how)
            say(f"no news of the run yet (Flower: {how}); {sites_now(server)}")
            asked = time.monotonic()
        time.sleep(LOOK)


def sites_now(server: FederationServer) -> str:
    """Say in a line how sites are doing, as far as they say it."""
    said = [f"{site} is {how.words()}" for site, how in sorted(server.conditions().items())]
    return "; ".join(said) or "no site has said how it is doing; `fedstrata deploy status` says which are up"


def stop(submission: Submission, number: str) -> None:
    """Stop a run, and wait until its folder is free."""
    with suppress(FedstrataError):
        flower.flwr(submission.server.folder, flower.stopping(number))
    deadline = time.monotonic() + 30
    while Run(submission.path).running and time.monotonic() < deadline:
        time.sleep(LOOK)


def state_of(server: FederationServer, number: str) -> str:
    """Ask Flower how a run is doing."""
    runs = flower.flwr(server.folder, flower.outcome(number)).get("runs") or [{}]
    said, why = str(runs[0].get("status", "unknown")), str(runs[0].get("status-details", "N/A"))
    return said if why in ("", "N/A") else f"{said} ({why})"


def advice(submission: Submission) -> str:
    """Say how a run goes on."""
    port = submission.server.port
    server = "" if port == state.PORT else f" --server {submission.server.address}"
    how = {None: "", True: " --stream", False: " --no-stream"}[submission.stream]
    return f"fedstrata deploy run --resume {submission.path} --sites {submission.sites}{how}{server}"


class EventLines:
    """The lines that a run's events file gets.

    A run that goes on first cuts off what it wrote after its checkpoint, and then notes that it was resumed.
    """

    def __init__(self, run: Run, checkpoint: Mapping[str, Any] | None):
        self._path = run.path / "events.jsonl"
        self._at, self._old = (0, False) if checkpoint is None else (int(checkpoint["events"]), True)

    def new(self) -> Iterator[dict[str, Any]]:
        """Return the events that are whole by now."""
        try:
            with self._path.open("rb") as file:
                self._at = 0 if os.fstat(file.fileno()).st_size < self._at else self._at
                file.seek(self._at)
                text = file.read()
        except OSError:
            return
        for line in text[: text.rfind(b"\n") + 1].splitlines(keepends=True):
            event = read_event(line) or {"event": DAMAGED}
            if self._old and event["event"] != "resumed":
                return
            self._old = False
            self._at += len(line)
            yield event


def _news(submission: Submission) -> list[str]:
    try:
        return [line.rstrip() for line in submission.news.read_text().splitlines(keepends=True) if line.endswith("\n")]
    except OSError:
        return []


def _begin(submission: Submission) -> dict[str, Any]:
    experiment, checkpoint = submission.experiment, submission.checkpoint
    done = 0 if checkpoint is None else int(checkpoint["round"])
    names = {"method": name_run(experiment.dump()), "rounds": experiment.train.rounds}
    return {"event": "begin", **names, "round": done, "run_dir": str(submission.path)}


def over(run: Run) -> bool:
    """Say whether a run has finished or failed."""
    return (run.path / "summary.json").exists() or (run.path / FAILED).exists()


def _lost(submission: Submission, number: str, how: str) -> FedstrataError:
    folder, said = submission.server.folder, ""
    on = f"; continue with: {advice(submission)}" if (submission.path / "experiment.toml").exists() else ""
    if not running(folder):
        return FedstrataError(f"the server is gone, and the run with it; start it again{on or ', and then the run'}")
    with suppress(FedstrataError):  # the server may go now
        said = "\n".join(flower.log_of(folder, number).splitlines()[-15:])
    log = (
        f"what it printed last:\n{said}"
        if said
        else f"the end of {folder / 'superlink.log'}:\n{tail(folder / 'superlink.log')}"
    )
    return FedstrataError(f"the run did not finish: {how}{on}\n{log}")
