"""The server of a federation: a SuperLink behind our gate, and the sites' keys that it knows."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedstrata import __version__
from fedstrata.core.errors import FedstrataError, RequestError
from fedstrata.core.storage.files import write_atomically
from fedstrata.deploy import flower, keys, state
from fedstrata.deploy.asking import ask, tell
from fedstrata.deploy.certificate_watch import why_ended
from fedstrata.deploy.logs import cut_printed, keep_log, note, tail
from fedstrata.deploy.processes import Household, running
from fedstrata.deploy.served import HEALTH
from fedstrata.deploy.server.auth_proxy import GATE, NODES, STREAM
from fedstrata.deploy.server.roll_watch import RollWatch
from fedstrata.deploy.server.run_book import RunWatch
from fedstrata.deploy.server.run_launcher import SOON, SUBMIT, UNUSABLE
from fedstrata.deploy.site_reports import SiteCondition, conditions
from fedstrata.remote.server.waiting_note import forget_waiting

READY = 90.0  # seconds in which a server must be up
SUBMITTING = 120.0  # seconds in which it must have taken a run
Say = Callable[[str], None]

INSECURE = """\
!!! INSECURE: nothing is encrypted, and whoever reaches this port can take part as a site, read every model
!!! and send updates. This is for trying out on one machine. Elsewhere make keys: fedstrata deploy keys DIR ..."""


@dataclass(frozen=True)
class FederationServer:
    """What other commands on this machine need to know about a server."""

    host: str  # where it listens
    port: int
    stream_port: int | None  # where a run listens that keeps connections to its sites; None: they come in at `port`
    public: str  # what sites call its machine
    keys: str | None  # its key folder; None: insecure
    approval: bool = False  # whether an operator has to approve runs
    stream_socket: str = ""  # to which they are passed on then

    @property
    def streams(self) -> tuple[str, str]:
        """Where sites find a stream, and where a run listens for it."""
        if self.stream_port is None:
            return state.join_address(self.public, self.port), f"unix:{self.stream_socket}"
        return state.join_address(self.public, self.stream_port), state.join_address(self.host, self.stream_port)

    @property
    def folder(self) -> Path:
        """Where it keeps its things."""
        return state.of_server(self.port)

    @property
    def address(self) -> str:
        """Where this machine itself reaches it."""
        here = {"0.0.0.0": flower.LOOPBACK, "::": "::1"}.get(self.host, self.host)
        return state.join_address(here, self.port)

    @property
    def authority(self) -> Path | None:
        """The certificate that signs its own; None: insecure."""
        return None if self.keys is None else Path(self.keys) / "ca.crt"

    def nodes(self) -> dict[str, str]:
        """Return the ids under which Flower knows the sites, by site; empty where nobody is registered."""
        return {site: entry["node"] for site, entry in _known(self.folder).items() if "key" in entry}

    def conditions(self) -> dict[str, SiteCondition]:
        """Return how sites are doing; who may not connect any more says nothing, and is not awaited."""
        told, may = conditions(self.folder), self.nodes()
        return told if self.keys is None else {site: how for site, how in told.items() if site in may}

    @property
    def registered(self) -> Path | None:
        """Where it notes them; None: insecure."""
        return None if self.keys is None else self.folder / NODES

    @property
    def met(self) -> Path:
        """Where runs note which node was which site."""
        return self.folder / "met.json"

    def begun(self, run: Path) -> None:
        """Note that a run begins, or goes on."""
        write_atomically(self.folder / "run", str(run).encode())

    def latest(self) -> Path | None:
        """Return the folder of the run that began last, if it is there."""
        note = self.folder / "run"
        run = Path(note.read_text()) if note.exists() else None
        return run if run is not None and (run / "events.jsonl").exists() else None


def serve(asked: FederationServer, say: Say) -> None:
    """Start a server and keep it until it ends or somebody ends it."""
    flower.require_flower()
    folder = state.private(asked.folder)
    name = f"a server on port {asked.port}"
    with state.for_sockets(f"server-{asked.port}") as sockets, closing(Household(folder, name)) as household:
        state.sweep_sockets(folder, sockets)
        keep_log(folder, server=asked.port)  # first: rolls and sites are spoken of before the server is up
        _free(asked.host, asked.port)
        server = replace(asked, stream_socket=str(sockets / "stream"))
        log = folder / "superlink.log"
        path = None if server.keys is None else Path(server.keys)
        (folder / "server.json").unlink(missing_ok=True)  # of an earlier life: who asks now waits until we are up
        forget_waiting(folder)
        flower.configure(folder, server.address, server.authority)
        forget_strangers(folder, path)
        command = flower.superlink(folder, server.host, server.port, path)
        around = flower.environment(folder) | ({STREAM: server.stream_socket} if server.stream_port is None else {})
        household.start("the server", command, log, around, folder)
        _wait(server, household, log)
        if server.keys is None:
            say(INSECURE)
        else:
            rolls, own = RollWatch(Path(server.keys), folder, say), Path(server.keys)
            register(server, keys.nodes(own, rolls.roll), say)
        write_atomically(folder / "server.json", json.dumps(asdict(server)).encode())
        say(next_steps(server))
        note("server_started", version=__version__, keys=server.keys is not None, sites=sorted(server.nodes()))
        watch = RunWatch(folder)
        while household.gone() is None:
            time.sleep(0.5)
            watch.turn()
            cut_printed(folder)
            if server.keys is not None:
                rolls.turn(lambda roll: register(server, keys.nodes(own, roll), say))
        note("server_ended_by_itself", logging.ERROR)
        raise FedstrataError(f"the server ended by itself; the end of {log}:\n{tail(log)}")


def public_name(host: str, names: Sequence[str]) -> str:
    """Return what sites probably call this machine: where it listens, or a name of its certificate, or its own."""
    if not keys.anywhere(host):
        return host
    outside = [name for name in names if name not in keys.ALWAYS]
    return outside[0] if outside else flower.LOOPBACK if names else socket.gethostname()


def find_server(text: str, say: Say | None = None) -> FederationServer:
    """Return the server of this machine that an address names; one that is about to start is waited for."""
    _, port = state.address(text)
    folder = state.of_server(port)
    until, told = time.monotonic() + READY, False
    while running(folder) and not (folder / "server.json").exists() and time.monotonic() < until:
        if say is not None and not told:
            say(f"the server on port {port} is starting; waiting until it is up")
            told = True
        time.sleep(0.1)
    if not running(folder):
        raise RequestError(
            f"--server = {text}: no server of yours runs on port {port} of this machine; start one first: "
            f"fedstrata deploy server{'' if port == state.PORT else f' --port {port}'}"
        )
    try:
        return FederationServer(**json.loads((folder / "server.json").read_text()))
    except (OSError, ValueError, TypeError):
        raise RequestError(f"--server = {text}: the server on port {port} is not ready yet") from None


def announce(text: str) -> None:
    """Tell a server that a run is about to be submitted, so that it can begin with what takes longest."""
    with suppress(FedstrataError, OSError, ValueError):  # whatever is wrong with it is said by whoever needs it
        server = find_server(text)
        ask(server.address, SOON, server.authority)


def hand_in(server: FederationServer, config: Mapping[str, Any]) -> str:
    """Tell a server how a run is configured; give Flower's number of the run."""
    try:
        status, said = tell(server.address, SUBMIT, server.authority, json.dumps(config).encode(), SUBMITTING)
    except (OSError, ValueError) as error:
        why = why_ended(error, server.address, server.authority) or f"it does not answer: {error}"
        raise FedstrataError(f"the server at {server.address}: {why}") from None
    if status == 404:
        raise FedstrataError("the server was started with another version of fedstrata; start it again")
    if status == UNUSABLE:
        raise RequestError(said)
    if status != 200:
        raise FedstrataError(f"the server does not take the run ({status}): {' '.join(said.split())[:500]}")
    return said


def register(server: FederationServer, wanted: Mapping[str, str], say: Say) -> None:
    """Let exactly the sites connect whose public keys are given; Flower keeps that over restarts."""
    folder, known = server.folder, _known(server.folder)
    first = not known
    for site, entry in list(known.items()):
        if "key" not in entry or wanted.get(site) != entry["key"]:
            known[site] = {"node": entry["node"]}  # keyless, the gate refuses it before Flower ends its line
            _note(folder, known)
            _shut_out(folder, entry["node"])
            del known[site]
            _note(folder, known)
            say(f"site {site} has a new key" if site in wanted else f"site {site} may no longer connect")
            note("site_renewed" if site in wanted else "site_revoked", site=site)
    for site, key in wanted.items():
        if site in known:
            continue
        path = folder / f"{site}.pub"
        path.write_text(key)
        try:
            node = str(flower.flwr(folder, flower.registration(path))["node-id"])
        except flower.FlowerError as error:
            if "already in use" not in error.why:
                raise
            raise RequestError(
                f"the key of site {site} was shut out before, and Flower takes no key twice: give it a new one with "
                f"`fedstrata deploy keys renew DIR {site}`, or remove {flower.database(folder, path)} and start the "
                "server and all sites again"
            ) from None
        finally:
            path.unlink()
        known[site] = {"node": node, "key": key}
        _note(folder, known)
        if not first:
            say(f"site {site} may connect")
            note("site_registered", site=site)


def _shut_out(folder: Path, node: str) -> None:
    """Tell Flower that a site may no longer connect; where it knew already, an earlier life of ours ended here."""
    try:
        flower.flwr(folder, flower.removal(node))
    except flower.FlowerError as error:
        if "Node ID not found" not in error.why:
            raise


def next_steps(server: FederationServer) -> str:
    """Say what to do once a server is up."""
    secure = server.keys is not None
    sites = sorted(_known(server.folder))
    there = state.join_address(server.public, server.port)
    lines = [f"the server is up: {'https' if secure else 'http'}://{state.join_address(server.host, server.port)}"]
    if secure:
        lines.append(f"sites that may connect: {', '.join(sites)}")
    trust = "--keys FOLDER_OF_THE_SITE" if secure else "--insecure"
    port = "" if server.port == state.PORT else f" --server {server.address}"
    lines += [
        f"next, at every site:   fedstrata deploy client --server {there} --site NAME {trust} --data DATA",
        f"then, here:            fedstrata deploy run EXPERIMENT.toml --sites {len(sites) or 'N'}{port}",
        f"which sites are up:    fedstrata deploy status{port}",
        f"the log is {server.folder / 'superlink.log'}; Ctrl-C ends the server",
    ]
    return "\n".join(lines)


def _wait(server: FederationServer, household: Household, log: Path) -> None:
    """Wait until the server answers; one without the gate is not let live."""
    deadline = time.monotonic() + READY
    while time.monotonic() < deadline:
        if household.gone() is not None:
            raise FedstrataError(f"the server did not start; the end of {log}:\n{tail(log)}")
        try:
            up = ask(server.address, HEALTH, server.authority)
        except (OSError, ValueError):
            time.sleep(0.2)
            continue
        if up == 200 and ask(server.address, GATE, server.authority) == 204:
            return
        raise FedstrataError("this version of Flower cannot be guarded: it is not served behind fedstrata's gate")
    raise FedstrataError(f"the server is not up after {READY:.0f} s; the end of {log}:\n{tail(log)}")


def _free(host: str, port: int) -> None:
    """Refuse a port or address that cannot be had, before anything is started."""
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(kind, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise RequestError(
                f"--host {host} --port {port} cannot be used on this machine: {error.strerror or error}"
            ) from None


def forget_strangers(folder: Path, keys: Path | None) -> None:
    """Begin with an empty database where we do not know whom the old one would let in."""
    if keys is not None and not (folder / NODES).exists():
        for path in folder.glob(f"{flower.database(folder, keys).name}*"):
            path.unlink()
        _note(folder, {})


def _known(folder: Path) -> dict[str, dict[str, str]]:
    try:
        known: dict[str, dict[str, str]] = json.loads((folder / NODES).read_text())
    except (OSError, ValueError):
        return {}
    return known


def _note(folder: Path, known: dict[str, dict[str, str]]) -> None:
    write_atomically(folder / NODES, (json.dumps(known, indent=2) + "\n").encode())
