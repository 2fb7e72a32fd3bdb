"""`fedstrata deploy`: the same experiments at real sites."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedstrata.cli.options import AsJson, ExperimentFile, Quiet, Sets, overrides
from fedstrata.cli.run import conclude, stop_cleanly
from fedstrata.core.errors import RequestError
from fedstrata.core.machine.platforms import require_posix
from fedstrata.core.machine.quick_imports import quick_imports

if TYPE_CHECKING:
    from fedstrata.deploy.site.client import CheckedClient

app = typer.Typer(
    help="Train across real sites: one server, one client per site. docs/deploy.md walks through it.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

There = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="The server of this machine, where it is not on the usual port.")
]
Insecure = Annotated[bool, typer.Option("--insecure", help="No keys and no encryption: for trying out only.")]
Port = Annotated[int, typer.Option(metavar="PORT", min=1, max=65535, help="Port that sites connect to.")]
Wanted = Annotated[int | None, typer.Option("--sites", metavar="N", min=1, help="How many sites to wait for.")]
MetricsPort = Annotated[
    int | None,
    typer.Option(metavar="PORT", min=1, max=65535, help="Serve figures for Prometheus (OpenMetrics) on this port."),
]
MetricsHost = Annotated[str, typer.Option(metavar="ADDRESS", help="Address of that port; they are served to anybody.")]
HERE = "127.0.0.1:8000"


@app.callback()
def refuse_windows() -> None:
    """Refuse Windows, which has not what deployments start and end processes with."""
    require_posix("fedstrata deploy")


@app.command()
def server(
    keys: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder `server` that `deploy keys` made.")
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on; 0.0.0.0 for all of this machine.")
    ] = "127.0.0.1",
    port: Port = 8000,
    stream_port: Annotated[
        int | None,
        typer.Option(metavar="PORT", min=1, max=65535, help="Let streams have a port of their own; without it, PORT."),
    ] = None,
    public: Annotated[
        str | None,
        typer.Option(metavar="NAME_OR_IP", help="What sites call this machine; by default as its certificate says."),
    ] = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
    approve_runs: Annotated[
        bool, typer.Option("--approve-runs", help="Let no run begin before an operator has approved it.")
    ] = False,
    insecure: Insecure = False,
) -> None:
    """Start the server of a federation, until Ctrl-C."""
    from fedstrata.deploy import flower, metrics, state
    from fedstrata.deploy.keys import of_server
    from fedstrata.deploy.server.federation_server import FederationServer, public_name, serve
    from fedstrata.deploy.server.figures import ServerFigures

    flower.require_flower()
    _either(keys, insecure, "DIR/server")
    folder, names = (None, []) if keys is None else of_server(keys, host)
    asked = FederationServer(
        host=host,
        port=port,
        stream_port=stream_port,
        public=public or public_name(host, names),
        keys=None if folder is None else str(folder),
        approval=approve_runs,
    )
    if metrics_port is not None:
        figures = ServerFigures(state.private(asked.folder), asked.nodes, folder)
        metrics.serve_metrics(figures, metrics_port, metrics_host)
    with _until_stopped("the server has ended; runs go on with: fedstrata deploy run --resume DIR"):
        serve(asked, _say)


@app.command()
def client(
    server: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where the server is.")],
    site: Annotated[str, typer.Option(metavar="NAME", help="Name of this site, as in its keys.")],
    keys: Annotated[
        Path | None, typer.Option(metavar="DIR", help="This site's folder that `deploy keys` made.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT",
            help="Experiment file whose [data] this site has, or a data set's name, or a file of samples.",
        ),
    ] = None,
    sets: Sets = None,
    partition: Annotated[
        str | None,
        typer.Option(metavar="I/N", help="Serve part I of N, counted from 0, of a named set: for trying out."),
    ] = None,
    patience: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.0, help="How long to try where the server does not take the site.")
    ] = 90.0,
    rest: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0.0, help="After how long without a run the process that holds the data ends."
        ),
    ] = 60.0,
    policy: Annotated[
        Path | None,
        typer.Option(metavar="SITE.toml", help="What this site agrees to, whatever a server asks for; docs/policy.md."),
    ] = None,
    allow_part: Annotated[
        list[str] | None,
        typer.Option(metavar="MODULE:NAME", help="A part of one's own that servers may name; any number of times."),
    ] = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
    insecure: Insecure = False,
) -> None:
    """Start a site that trains on its own data, until Ctrl-C."""
    from fedstrata.deploy import flower, state
    from fedstrata.deploy.keys import of_site
    from fedstrata.deploy.site.client import CheckedClient, FederationClient, describe_data, read_part
    from fedstrata.remote.site.policy.rules import read_policy

    flower.require_flower()
    name, at = state.site_name(site), state.join_address(*state.address(server))
    _either(keys, insecure, f"DIR/sites/{name}")
    rules = read_policy(policy, allow_part or [])
    experiment = describe_data(data, overrides(sets))
    table, seed = experiment.dump()["data"], experiment.train.seed
    enclave = experiment.privacy.enclave.model_dump()
    own = None if keys is None else of_site(keys, name)
    share = None if partition is None else read_part(partition)
    asked = FederationClient(name, at, own, table, seed, enclave, share, patience, rules)
    become_attendant(CheckedClient.of(asked, rest, metrics_port, metrics_host))


def become_attendant(checked: CheckedClient) -> None:
    """Go on as a process that has imported nothing heavy; it has our id, our terminal and our signals."""
    from fedstrata.core.storage.files import write_atomically
    from fedstrata.deploy import state

    file = state.private(state.of_site(checked.site)) / "attend.json"
    write_atomically(file, checked.write().encode())
    sys.stdout.flush()
    sys.stderr.flush()
    words = [sys.executable, "-P", "-m", "fedstrata", "deploy", "attend", str(file)]
    os.execv(words[0], words)


@app.command(hidden=True)
def attend(file: Annotated[Path, typer.Argument(metavar="FILE", help="What `deploy client` has checked.")]) -> None:
    """Keep a site; `deploy client` becomes this."""
    from fedstrata.deploy.site import client

    checked = client.CheckedClient.read(file.read_text())
    with _until_stopped(f"site {checked.site} has ended"):
        client.attend(checked, _say)


@app.command()
def run(
    experiment: ExperimentFile = None,
    sites: Wanted = None,
    sets: Sets = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Run folder; the next free one under runs/ without it.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Continue the run in this folder.")] = None,
    wait: Annotated[float, typer.Option(metavar="SECONDS", min=0.0, help="How long to wait for the sites.")] = 600.0,
    deadline: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0.0, help="How long sites have for each exchange; 0: system.deadline, or an hour."
        ),
    ] = 0.0,
    stream: Annotated[
        bool | None,
        typer.Option(
            "--stream/--no-stream",
            help="Keep a connection to every site open, or else fail; or never. By default: if all sites reach it.",
        ),
    ] = None,
    server: There = HERE,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train a model over the sites of a server on this machine."""
    from fedstrata.deploy.server.federation_server import announce

    announce(server)  # while torch is imported here, it is there as well
    with quick_imports():
        from fedstrata.config.experiment import Experiment
        from fedstrata.deploy import flower
        from fedstrata.deploy.operators import submit
        from fedstrata.deploy.operators.run_queue import turn
        from fedstrata.deploy.processes import undisturbed
        from fedstrata.deploy.server.federation_server import find_server
        from fedstrata.runs.folder import Run
        from fedstrata.runs.progress import reporter

    if resume is not None and (experiment or sets or out):
        raise RequestError("--resume takes the experiment from the run folder; leave out the file, --set and --out")
    checked = Experiment.of(experiment, **overrides(sets))
    if resume is not None:
        submit.refuse_unbegun(resume)
    if resume is not None and Run.open(resume).summary:
        print(f"{resume} was finished already", file=sys.stderr)
        conclude(Run.open(resume), as_json)
        return
    if sites is None and resume is None:
        raise RequestError("--sites is required: how many sites to wait for")
    flower.require_flower()
    there = find_server(server, _say)
    how = {"wait": wait, "deadline": deadline, "stream": stream}
    if resume is not None:
        asked = submit.again(there, resume, sites, _say, **how)
    else:
        asked = submit.new(there, checked, out, sites or 1, **how)
    stop_cleanly()
    progress, number, say = reporter(quiet), None, (lambda _: None) if quiet else _say
    try:
        with turn(asked, say) as ticket, submit.submitted(replace(asked, ticket=ticket.id)) as number:
            wanted = "1 site" if asked.sites == 1 else f"{asked.sites} sites"
            say(f"run {ticket.number} waits for {wanted}; folder: {asked.path}")
            done = submit.follow(asked, number, progress, say)
    except KeyboardInterrupt:
        progress.close()
        if number is not None:
            with undisturbed():
                submit.stop(asked, number)
        begun = (asked.path / "experiment.toml").exists()
        print(
            f"stopped{f'; continue with: {submit.advice(asked)}' if begun else ' before the run began'}",
            file=sys.stderr,
        )
        raise typer.Exit(130) from None
    finally:
        progress.close()
    conclude(done, as_json)


@app.command()
def status(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[RUN_DIR]", help="Run folder; by default that of the latest run.")
    ] = None,
    server: There = HERE,
    as_json: AsJson = False,
) -> None:
    """Say which sites are up, and what each gave to a run."""
    from fedstrata.deploy import flower
    from fedstrata.deploy.keys import expiring
    from fedstrata.deploy.operators.overview import run_state, waits_for
    from fedstrata.deploy.operators.run_queue import tickets
    from fedstrata.deploy.operators.status import sites
    from fedstrata.deploy.server.federation_server import find_server

    flower.require_flower()
    there = find_server(server)
    folder = folder or there.latest()
    for line in [] if there.keys is None else expiring(Path(there.keys)):  # first: it may be why nobody answers
        print(f"WARNING: {line}", file=sys.stderr)
    rows = sites(there, folder)
    waiting = waits_for(there.folder, None)
    if as_json:
        told = {"sites": rows, "run_dir": None if folder is None else str(folder)}
        print(json.dumps({**told, "queue": [asdict(t) for t in tickets(there.folder)], "waiting": waiting}))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in (
        "site",
        "state",
        "since",
        "last contact",
        *(("samples", "rounds", "last round", "refused") if folder else ()),
    ):
        table.add_column(title, no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row, folder is not None))
    Console(width=None if sys.stdout.isatty() else 120, highlight=False).print(table)
    print(f"{sum(row['up'] is True for row in rows)} of {sum(row['up'] is not None for row in rows)} sites are up")
    if folder is not None:
        print(f"what they contributed is that to {folder}")
    for row in rows:
        if row["about"]:
            print(f"site {row['site']}: {row['state']}: {row['about']}")
    for ticket in tickets(there.folder):
        print(f"{ticket.words}: {run_state(there, ticket)}")


def _cells(row: dict[str, Any], given: bool) -> list[str]:
    state = {True: "up", False: "down", None: "-"}[row["up"]]
    shown = [
        row["site"] or f"node {row['node']}",
        row["state"] or state,
        row["since"] or "-",
        row["last_contact"] or ("-" if row["up"] is None else "never"),
    ]
    if given:
        what = row["contributed"] or {}
        shown += ["-" if what.get(key) is None else str(what[key]) for key in ("samples", "rounds", "last_round")]
        shown.append(str(what.get("refused", "-")))
    return shown


def _either(keys: Path | None, insecure: bool, where: str) -> None:
    if (keys is None) == (not insecure):
        raise RequestError(
            f"say either --keys {where} (made with `fedstrata deploy keys`), or --insecure for trying out"
        )


@contextmanager
def _until_stopped(said: str) -> Iterator[None]:
    """Treat a closed terminal and a polite kill like Ctrl-C, which is how these commands end; import nothing heavy."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # scripts start background jobs with SIGINT ignored
        signal.signal(signal.SIGINT, stop)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
        signal.signal(signal.SIGHUP, stop)
    try:
        yield
    except KeyboardInterrupt:
        print(said, file=sys.stderr)


def _say(line: str) -> None:
    with suppress(OSError):  # a disk that is full must not end a site that says so
        print(line, file=sys.stderr, flush=True)
