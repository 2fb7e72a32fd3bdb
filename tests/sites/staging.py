"""A federation of real processes on loopback, and runs at it that a test can watch and disturb."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from benchmarks._ports import free_port
from fedstrata.config.experiment import Experiment
from fedstrata.deploy import keys, processes
from fedstrata.deploy.authority import Authority
from fedstrata.deploy.operators import submit
from fedstrata.deploy.server.federation_server import FederationServer, find_server
from fedstrata.runs.folder import Run

SITES = ("a", "b", "c")
FEDSTRATA = ("-m", "fedstrata")
A, B, C = range(3)  # the sites, as clients
WHILE = 600.0  # seconds that anything may take, also on a machine that has much else to do
# Begins as a command in a terminal does: background jobs ignore Ctrl-C, and those of nohup that the terminal is closed.
HEARING = """
import os, signal, sys
for sign in (signal.SIGINT, signal.SIGHUP):
    signal.signal(sign, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
ENCLAVE = ("--set", "privacy.enclave.attestation=dev-insecure", "--set", "privacy.enclave.allow_insecure=true")
SMALL = {
    "data.clients": 3,
    "model.hidden": (8,),
    "train.epochs": 1,
    "train.batch_size": 64,
    "train.clients_per_round": "all",
    "engine.precision": "fp64",
    "trust.clip": "none",  # as in a simulation, so that both come to the same model
    "trust.samples": "none",
}
ODD = (str(Path(__file__).with_name("odd.py")),)


def wait_for(true: Callable[[], Any], about: Callable[[], str] = lambda: "waited in vain") -> None:
    deadline = time.monotonic() + WHILE
    while not true():
        assert time.monotonic() < deadline, about()
        time.sleep(0.05)


class Started:
    """A `fedstrata deploy` command that runs in the background; what it prints is kept."""

    def __init__(self, folder: Path, name: str, *args: str, program: tuple[str, ...] = FEDSTRATA):
        self._log = folder / f"{name}.txt"
        with self._log.open("ab") as file:
            self._begin = file.tell()
            self.process = subprocess.Popen(
                [sys.executable, "-c", HEARING, *program, "deploy", *args],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                cwd=folder,
                stdout=file,
                stderr=file,
                stdin=subprocess.DEVNULL,
            )

    @property
    def said(self) -> str:
        return self._log.read_bytes()[self._begin :].decode()

    def says(self, text: str) -> None:
        wait_for(lambda: text in self.said or self.process.poll() is not None, lambda: self.said)
        assert text in self.said, self.said

    def ends(self, code: int) -> None:
        assert self.process.wait(WHILE) == code, self.said

    def family(self) -> set[processes.Known]:
        there = processes.everybody()
        return processes.family([(self.process.pid, there[self.process.pid][1])] if self.process.pid in there else [])

    def signal(self, sign: signal.Signals) -> None:
        """Send a signal to the command and to all that it started; those above first, so that nobody reacts."""
        for pid, _ in sorted(self.family()):
            with suppress(ProcessLookupError):
                os.kill(pid, sign)

    def kill(self) -> None:
        """End everything at once, as a power cut does."""
        self.signal(signal.SIGSTOP)
        self.signal(signal.SIGKILL)
        self.process.wait(WHILE)

    def kill_site(self) -> None:
        """Kill the process that holds the data; the command notices, and ends."""
        (config,) = [pid for pid, _ in self.family() if b"config.json" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(config, signal.SIGKILL)
        self.ends(1)


class Federation:
    """A server with keys and three sites, each with a third of the digits; b and c can be told to misbehave."""

    def __init__(self, folder: Path):
        self.folder, self.port = folder, free_port()
        self.commands: dict[str, Started] = {}
        self.wishes = folder / "wishes"
        self.wishes.mkdir()
        keys.make(folder / "keys", SITES)
        roll = (folder / "keys/server/roll.json").read_bytes()
        Authority.open(folder / "keys").add(["d", "e"])
        (folder / "keys/server/roll.json").write_bytes(roll)  # which the server does not know

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def there(self) -> FederationServer:
        return find_server(self.address)

    def log(self, site: str) -> str:
        """Return what Flower's part of a site logged."""
        return (self.folder / f"state/site-{site}/supernode.log").read_text()

    def start(self) -> None:
        self.start_server()
        for site in SITES:
            self.start_site(site, wait=False)
        for site in SITES:
            self.connected(site)

    def mend(self) -> None:
        """Start again what a test ended."""
        if self.commands["server"].process.poll() is not None:
            self.start_server()
        for site in SITES:
            if self.commands[site].process.poll() is not None:
                self.start_site(site, wait=False)
        for site in SITES:
            self.connected(site)

    def start_server(self) -> None:
        options = ("--keys", "keys/server", "--port", str(self.port), "--stream-port", str(free_port()))
        self.commands["server"] = server = Started(self.folder, "server", "server", *options)
        server.says("the server is up")

    def start_site(self, site: str, *changes: str, wait: bool = True) -> None:
        data = ("--data", "digits", "--partition", f"{SITES.index(site)}/{len(SITES)}", *ENCLAVE, *changes)
        program = FEDSTRATA if site == "a" else ODD
        self.commands[site] = Started(self.folder, site, *self.site(site), *data, program=program)
        if wait:
            self.connected(site)

    def connected(self, site: str) -> None:
        self.commands[site].says(f"site {site}: connected")

    def site(self, name: str) -> list[str]:
        return ["client", "--server", self.address, "--site", name, "--keys", f"keys/sites/{name}"]

    def call(self, *args: str, code: int = 0) -> str:
        """Run a `deploy` command to its end, and give what it said."""
        return self.calls((code, args))[0]

    def calls(self, *commands: tuple[int, Sequence[str]]) -> list[str]:
        """Run several at once, because each takes a while to start; they must end with these codes."""
        started = [Started(self.folder, f"call-{i}-{args[0]}", *args) for i, (_, args) in enumerate(commands)]
        try:
            for command, (code, _) in zip(started, commands, strict=True):
                command.ends(code)
        finally:
            for command in started:
                command.process.kill()
                command.process.wait()
        return [command.said for command in started]

    # ---- runs

    @contextmanager
    def running(self, out: Path, overrides: Mapping[str, Any], **how: Any) -> Iterator[GoingOn]:
        """Start a run, and stop it where the test does not wait for its end."""
        asked = submit.new(self.there, Experiment.of(None, **overrides), out, len(SITES), **how)
        with submit.submitted(asked) as number:
            run = GoingOn(self, asked)
            try:
                yield run
            finally:
                for wish in self.wishes.iterdir():
                    wish.unlink()
                for command in self.commands.values():
                    command.signal(signal.SIGCONT)
                if not run.over():
                    submit.stop(asked, number)

    def run(self, out: Path, overrides: Mapping[str, Any], **how: Any) -> Run:
        with self.running(out, overrides, **how) as run:
            return run.ends()

    def wish(self, site: str, number: int, word: str) -> Path:
        """Let a site misbehave in a round."""
        path = self.wishes / f"{site}-{number}"
        for note in (".held", ".done"):
            path.with_suffix(note).unlink(missing_ok=True)
        path.write_text(word)
        return path

    # ---- the end

    def everything(self) -> str:
        """Return the ends of all logs, for those who look for what went wrong."""
        logs = [*self.folder.glob("*.txt"), *self.folder.glob("state/*/*.log")]
        return "\n".join(f"== {log.relative_to(self.folder)}\n{log.read_text()[-3000:]}" for log in sorted(logs))

    def close(self) -> None:
        """End everything, also what commands left that were killed."""
        noted = [json.loads(notes.read_text()) for notes in self.folder.glob("state/*/processes.json")]
        heads = [(int(pid), str(since)) for known in noted for pid, since in known]
        members = processes.family(heads).union(*(command.family() for command in self.commands.values()))
        for command in reversed(self.commands.values()):
            command.process.terminate()
        for command in self.commands.values():
            with suppress(subprocess.TimeoutExpired):
                command.process.wait(30)
        processes.end(members, 2.0)
        for command in self.commands.values():
            command.process.wait()


class GoingOn:
    """A run under way: its folder is looked at, as `deploy run` does."""

    def __init__(self, federation: Federation, asked: submit.Submission):
        self.federation, self.asked, self.result = federation, asked, Run(asked.path)
        self._lines, self.events = submit.EventLines(self.result, asked.checkpoint), list[dict[str, Any]]()

    def over(self) -> bool:
        return any((self.result.path / name).exists() for name in ("summary.json", submit.FAILED))

    def reaches(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Wait for an event with some fields."""

        def there() -> list[dict[str, Any]]:
            over = self.over()
            self.events += self._lines.new()
            fits = [e for e in self.events if {"event": kind, **fields}.items() <= e.items()]
            assert fits or not over, f"the run is over\n{self.said()}"
            return fits

        wait_for(there, self.said)
        return there()[0]

    def holds(self, site: str, number: int) -> None:
        """Wait until a site that was wished to hold a round does so."""
        self._notes(f"{site}-{number}.held")

    def did(self, site: str, number: int) -> None:
        """Wait until a site that was wished to note it has answered in a round."""
        self._notes(f"{site}-{number}.done")
        time.sleep(0.5)  # the reply is on its way

    def joins_again(self, site: str, *changes: str) -> None:
        """Start a site that was killed, and wait until it is on the stream."""
        (self.federation.wishes / f"{site}.joined").unlink()
        self.federation.start_site(site, *changes)
        self._notes(f"{site}.joined")

    def _notes(self, name: str) -> None:
        note = self.federation.wishes / name
        wait_for(lambda: note.exists() or self.over(), self.said)
        assert note.exists(), f"the run is over\n{self.said()}"

    def ends(self) -> Run:
        wait_for(self.over, self.said)
        assert not (self.result.path / submit.FAILED).exists(), self.said()
        return self.result

    def said(self) -> str:
        files = [self.result.path / name for name in (submit.FAILED, "events.jsonl")]
        return "\n".join(f"== {file.name}\n{file.read_text()[-4000:]}" for file in files if file.exists())


def model(run: Run) -> torch.Tensor:
    return torch.cat([t.double().reshape(-1) for _, t in sorted(run.model().items())])


def distance(one: Run, other: Run) -> float:
    return float((model(one) - model(other)).abs().max())


def of(run: Run, kind: str) -> list[dict[str, Any]]:
    return [event for event in run.events() if event["event"] == kind]


def taught(run: Run) -> dict[int, list[int]]:
    """Return the clients whose training made the model of each round."""
    return {e["round"]: [c for step in e["steps"] for c in step["clients"]] for e in of(run, "round")}
