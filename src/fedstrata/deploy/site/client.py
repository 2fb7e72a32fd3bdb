"""A site: the process that holds its data, and the one that connects it to the server.

Both belong together: where one ends by itself, the other is ended too; but the first is there only while it is needed
(`on_demand.py`). A server that does not take the site at once is asked again for a while: after a crash it
believes for up to a minute that the site is still there.

What a site is told is checked with all of fedstrata in memory; then `fedstrata deploy client` gives way to
`fedstrata deploy attend`, which has read the outcome from a file and needs little. Hence what is imported in functions.
"""

from __future__ import annotations

import json
import logging
import re
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedstrata import __version__
from fedstrata.core import registry
from fedstrata.core.errors import FedstrataError, RequestError
from fedstrata.deploy import flower, state
from fedstrata.deploy.asking import ask
from fedstrata.deploy.certificate_watch import CertificateWatch, why_ended
from fedstrata.deploy.logs import cut_printed, keep_log, note, tail
from fedstrata.deploy.metrics import serve_metrics
from fedstrata.deploy.processes import Household
from fedstrata.deploy.served import HEALTH
from fedstrata.deploy.site.data_files import look_at, named_files
from fedstrata.deploy.site.figures import SiteFigures
from fedstrata.deploy.site.on_demand import REST, SiteOnDemand
from fedstrata.deploy.site.site_reporter import SiteReporter
from fedstrata.remote.site.private_socket import Door

if TYPE_CHECKING:
    from fedstrata.config.experiment import Experiment
    from fedstrata.remote.site.policy.rules import SitePolicy

Say = Callable[[str], None]

REFUSED = "Failed to initialize the connection to the SuperLink"  # what Flower logs then
CONNECTED = "SuperNode ID"
OTHER_AUTHORITY = (18, 19, 20, 21)  # what OpenSSL calls a certificate that nobody who is trusted has signed

NO_DATA = "its data cannot be served"
SITE, NODE = "the site's process", "the connection to the server"
PROCESS = [sys.executable, "-P", "-m", "fedstrata.remote.site.process"]  # the path of its configuration follows

INSECURE = """\
!!! INSECURE: nothing is encrypted, and the server is not asked who it is. This is for trying out on one machine."""


@dataclass(frozen=True)
class FederationClient:
    """A site, as its command describes it."""

    site: str
    server: str  # HOST:PORT
    keys: Path | None  # its key folder; None: insecure
    data: Mapping[str, Any]  # the experiment's [data]
    seed: int
    enclave: Mapping[str, Any] = field(default_factory=dict)  # the one that it trusts: [privacy.enclave]
    partition: tuple[int, int] | None = None
    patience: float = 90.0  # seconds in which the server must take it
    policy: SitePolicy | None = None  # what it agrees to; None: whatever is asked for

    def config(self, socket: Path) -> dict[str, Any]:
        """Return what the site's process is told."""
        return {
            "site": self.site,
            "socket": str(socket),
            "server": self.server,
            "keys": None if self.keys is None else str(self.keys),
            "state": str(state.of_site(self.site)),
            "policy": self.agreed().model_dump(mode="json"),
            "folder": str(Path.cwd()),
            "data": {"data": dict(self.data), "seed": self.seed},
            "enclave": dict(self.enclave),
            "partition": None if self.partition is None else list(self.partition),
        }

    def around(self) -> dict[str, str]:
        """Return what stands in the environment of the site's process, beside what is there anyway."""
        from fedstrata.remote.site.policy.resources import environment  # noqa: PLC0415 - torch

        return dict(environment(self.agreed().resources))

    def agreed(self) -> SitePolicy:
        """Return what the site agrees to."""
        from fedstrata.remote.site.policy.rules import SitePolicy  # noqa: PLC0415 - torch

        return self.policy or SitePolicy()


@dataclass(frozen=True)
class CheckedClient:
    """A site whose description was checked: what is left of it is plain."""

    site: str
    server: str
    keys: Path | None
    patience: float
    told: Mapping[str, Any]  # what its process is told
    env: Mapping[str, str]  # and finds around it
    process: Sequence[str]  # its command
    files: Sequence[str] = ()  # and what it reads its data from
    rest: float = REST  # seconds without a run after which it ends
    metrics_port: int | None = None  # for figures
    metrics_host: str = flower.LOOPBACK

    @classmethod
    def of(cls, client: FederationClient, rest: float = REST, *metrics: Any) -> CheckedClient:
        """Check a site, and keep the outcome."""
        check_server(client)
        told = client.config(Path())
        files = named_files(client.data)
        about = (client.site, client.server, client.keys, client.patience, told, client.around(), PROCESS, files)
        return cls(*about, rest, *metrics)

    @classmethod
    def read(cls, text: str) -> CheckedClient:
        """Read what `write` wrote."""
        told = json.loads(text)
        return cls(**(told | {"keys": None if told["keys"] is None else Path(told["keys"])}))

    def write(self) -> str:
        """Write it down."""
        return json.dumps(asdict(self) | {"keys": None if self.keys is None else str(self.keys)})

    def config(self, socket: Path) -> dict[str, Any]:
        """Return what the site's process is told."""
        return {**self.told, "socket": str(socket)}


def describe_data(data: str | None, overrides: Mapping[str, Any]) -> Experiment:
    """Read what a site has: an experiment file, the name of a data set, or a file or folder of its own samples.

    And which enclave it trusts.
    """
    own = ("data.", "train.seed", "privacy.enclave.")
    if strange := [key for key in overrides if not key.startswith(own)]:
        raise RequestError(
            f"{strange[0]} cannot be set: a site only says what data it has (data.*, train.seed) and which enclave it "
            "trusts (privacy.enclave.*)"
        )
    from fedstrata.privacy.enclave.launch import trusted_policy  # noqa: PLC0415 - torch

    experiment = _described(data, overrides)
    pinned = experiment.privacy.enclave
    if pinned.measurement is not None or pinned.attestation == "dev-insecure":
        trusted_policy(pinned)  # which says what is wrong with it
    return experiment


def _described(data: str | None, overrides: Mapping[str, Any]) -> Experiment:
    from fedstrata.config.experiment import Experiment  # noqa: PLC0415 - torch

    if data is None:
        if not any(key.startswith("data.") for key in overrides):
            raise RequestError(
                "say what data this site has: --data EXPERIMENT.toml, --data NAME, --data FILE, or --set"
            )
        return Experiment.of(None, **overrides)
    if data.endswith(".toml"):
        return Experiment.of(data, **overrides)
    if data in registry.names("datasets"):
        return Experiment.of({"data": {"name": data}}, **overrides)
    return Experiment.of({"data": {"name": "own", "path": data}}, **overrides)


def read_part(text: str) -> tuple[int, int]:
    """Read I/N."""
    match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
    if match is None or not int(match[1]) < int(match[2]):
        raise RequestError(f'--partition = "{text}" is not valid; allowed: I/N, as 0/3, 1/3 and 2/3 for three sites')
    return int(match[1]), int(match[2])


def attend(client: CheckedClient, say: Say) -> None:
    """Start a site and keep it until one of its processes ends by itself, or somebody ends it."""
    flower.require_flower()
    folder = state.private(state.of_site(client.site))
    name = f"site {client.site}"
    with state.for_sockets(f"site-{client.site}") as sockets, closing(Household(folder, name)) as household:
        state.sweep_sockets(folder, sockets)
        if client.keys is None:
            say(INSECURE)
        _reach(client, say)
        door, process = sockets / "site", sockets / "process"
        site = on_demand(client, household, process)
        if client.metrics_port is not None:
            serve_metrics(
                SiteFigures(folder, lambda: site.awake, client.keys), client.metrics_port, client.metrics_host
            )
        keep_log(folder, site=client.site, server=client.server)
        note("site_started", version=__version__, keys=client.keys is not None, data=client.told["data"]["data"])
        certificates = None if client.keys is None else CertificateWatch(client.keys, say, client.server)
        if certificates is not None:  # before the data are read: that may take long
            certificates.turn()
        reporter = SiteReporter(client.site, client.server, client.keys, folder, process, say)
        _knock(client, reporter, say)
        _load(client, site, household, reporter, say)
        with Door(site.answer, door):
            _wait_for_key(client, reporter)
            _connect(client, household, door, reporter, say)
            note("site_connected")
            with closing(reporter):
                while (gone := household.gone()) is None:
                    site.turn()
                    reporter.turn()
                    if certificates is not None:
                        certificates.turn(reporter.certificate_end)
                    cut_printed(folder)
                    time.sleep(0.5)
                reporter.check_known(client.patience)  # a server that shut the site out is why, whatever Flower says
                note("site_ended_by_itself", logging.ERROR, what=gone)
                reporter.why = f"{gone} ended by itself"
                raise _ended(client, gone)


def check_server(client: FederationClient) -> None:
    """Refuse to connect to a server that the site's own policy does not name."""
    from fedstrata.remote.protocol import PolicyError  # noqa: PLC0415 - torch

    try:
        client.agreed().check_server(client.server)
    except PolicyError as error:
        raise RequestError(f"--server = {client.server}: {error}") from None


class EndedError(FedstrataError):
    """A process of a site ended; the code is its own where that says something."""

    def __init__(self, message: str, code: int = 1):
        super().__init__(message)
        self.exit_code = code


def on_demand(client: CheckedClient, household: Household, socket: Path) -> SiteOnDemand:
    """Return what starts the process that holds the data whenever it is needed, and asks it."""
    around = {**flower.environment(household.folder), **client.env}
    remarked: list[Any] = []  # the data of which the process has said what it thinks

    def start() -> subprocess.Popen[bytes]:
        config, files = socket.with_name("config.json"), look_at(client.files)
        config.write_text(json.dumps(client.config(socket) | {"remarks": [files] != remarked}))
        remarked[:] = [files]
        return household.start(SITE, [*client.process, str(config)], None, around)

    return SiteOnDemand(start, socket, lambda: household.drop(SITE), client.rest, lambda: look_at(client.files))


def _knock(client: CheckedClient, reporter: SiteReporter, say: Say) -> None:
    """Ask before anything is read whether the key counts: who is shut out ends here, and one not known yet says so."""
    if not reporter.begin():
        say(
            f"{_unknown(client)}; whoever made the keys brings roll.json to the server; trying for "
            f"{client.patience:.0f} s"
        )


def _wait_for_key(client: CheckedClient, reporter: SiteReporter) -> None:
    """Wait for a while until the server takes in a roll that names this site: asking costs next to nothing."""
    deadline = time.monotonic() + client.patience
    while not reporter.begin():
        if time.monotonic() > deadline:
            raise RequestError(_unknown(client))
        time.sleep(1.0)


def _unknown(client: CheckedClient) -> str:
    return (
        f"the server at {client.server} does not take site {client.site}: it does not know the key "
        f"{(client.keys or Path()) / 'node.pub'}, which is not on its roll"
    )


def _load(client: CheckedClient, site: SiteOnDemand, household: Household, reporter: SiteReporter, say: Say) -> None:
    """Let the data be read once, so that what is wrong with them is said now."""
    try:
        site.begin()
    except FedstrataError:
        code = household.code(SITE)
        reporter.why = NO_DATA
        reporter.close()
        raise EndedError(f"site {client.site}: {NO_DATA}; see above", code or 1) from None
    say(f"site {client.site}: its data are ready")


def _connect(client: CheckedClient, household: Household, socket: Path, reporter: SiteReporter, say: Say) -> None:
    """Start the connection to the server; where the server does not take the site, try again for a while."""
    log, deadline = household.folder / "supernode.log", time.monotonic() + client.patience
    told = False
    while True:
        begin = log.stat().st_size if log.exists() else 0
        command = flower.supernode(client.server, client.site, socket, client.keys)
        child = household.start(NODE, command, log, flower.environment(household.folder), household.folder)
        while child.poll() is None and household.gone() is None and CONNECTED not in _since(log, begin):
            time.sleep(0.2)
        said = _since(log, begin)
        if CONNECTED in said:
            reporter.keep_taken()  # also where no report was answered yet
            say(f"site {client.site}: connected to {client.server}; the log is {log}; Ctrl-C ends the site")
            return
        if child.poll() is None or REFUSED not in said:
            return  # whoever waits for us finds out
        reporter.begin()  # which ends a site that was shut out meanwhile
        if time.monotonic() > deadline:
            raise RequestError(
                f"{_unknown(client)}, or another process is connected with it"
                if not reporter.taken
                else f"the server at {client.server} does not take site {client.site}: it knows its key, but another "
                "process is connected with it, or was until a minute ago"
            )
        if not told:
            say(f"the server does not take site {client.site} yet; trying for {client.patience:.0f} s")
            told = True
        household.drop(NODE)
        time.sleep(min(5.0, max(deadline - time.monotonic(), 0.0)))


def _ended(client: CheckedClient, name: str) -> EndedError:
    log = state.of_site(client.site) / "supernode.log"
    end = f"; the end of {log}:\n{tail(log)}" if name == NODE else "; see above"
    return EndedError(f"site {client.site}: {name} ended by itself{end}")


def _reach(client: CheckedClient, say: Say) -> None:
    """Find out early what would otherwise be tried for ever: a server that is another one, or speaks otherwise."""
    authority = None if client.keys is None else client.keys / "ca.crt"
    try:
        if 400 <= ask(client.server, HEALTH, authority) < 500:  # a proxy before a server that is away says 502 or 503
            raise RequestError(
                f"--server = {client.server}: what answers there is no fedstrata server; is that the right port?"
            )
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        if (ended := why_ended(error, client.server, authority)) is not None:
            raise RequestError(f"--server = {client.server}: {ended}") from None
        if isinstance(reason, ssl.SSLCertVerificationError):
            why = (
                "it has another authority than these keys; are they of another federation?"
                if reason.verify_code in OTHER_AUTHORITY
                else "its names were given with `fedstrata deploy keys --host`"
            )
            raise RequestError(
                f"--server = {client.server}: the certificate of the server is not to be trusted "
                f"({reason.verify_message}); {why}"
            ) from None
        if isinstance(reason, ssl.SSLError):
            raise RequestError(
                f"--server = {client.server} does not speak TLS; was it started with --insecure?"
            ) from None
        if client.keys is None and isinstance(reason, ConnectionResetError):
            raise _not_plain(client) from None
        say(f"the server at {client.server} does not answer ({reason}); trying until it does")
    except HTTPException:
        raise _not_plain(client) from None


def _not_plain(client: CheckedClient) -> RequestError:
    return RequestError(
        f"--server = {client.server} does not answer as a server without TLS does; leave out --insecure"
    )


def _since(log: Path, begin: int) -> str:
    try:
        with log.open("rb") as file:
            file.seek(begin)
            return file.read().decode(errors="replace")
    except OSError:
        return ""
