"""What Flower starts at the server for a run: it waits for the sites, then runs the experiment over them.

`RunConfig` says what it is told. What went wrong is written into the run folder, for those who follow the run there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from time import monotonic, sleep

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedstrata.core.errors import FedstrataError, RequestError
from fedstrata.core.origin import find_own_parts_in
from fedstrata.core.storage.file_lock import take_lock
from fedstrata.core.storage.json_log import FILE, append_event
from fedstrata.remote.flower.app_config import RunConfig, out_of
from fedstrata.remote.flower.failure import forget_failure, write_failure
from fedstrata.remote.flower.messages import Messages
from fedstrata.remote.flower.node_names import remember
from fedstrata.remote.roll import Roll
from fedstrata.remote.server.coming_sites import ANYBODY, ComingSites
from fedstrata.remote.server.orders import FILE as ORDERS
from fedstrata.remote.server.orders import RunControl
from fedstrata.remote.server.waiting_note import WaitingNote
from fedstrata.remote.transport import Transport

OFTEN = 0.2  # seconds between two looks for sites
FIRST = 2.0  # seconds before anybody is said to be missing: sites that are ready take some to be met
Say = Callable[[str], None]

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run an experiment."""
    out = out_of(context.run_config)
    try:
        if out is not None:
            forget_failure(out)
        _run(grid, RunConfig.of(context.run_config), str(context.run_id))
    except Exception as error:
        if out is not None:
            write_failure(out, error)
        say(f"the run failed: {error}")
        raise  # Flower should know as well


def _run(grid: Grid, asked: RunConfig, run: str) -> None:
    if asked.turn:
        take_lock(Path(asked.turn))  # until this process ends
    if asked.folder:
        os.chdir(asked.folder)
        find_own_parts_in(asked.folder)
    from fedstrata.remote.credentials import Credentials  # noqa: PLC0415
    from fedstrata.remote.server.session import run_at_sites  # noqa: PLC0415 - torch; first things first

    met = partial(remember, Path(asked.met)) if asked.met else lambda *_: None
    known = partial(read_registered, Path(asked.nodes)) if asked.nodes else None
    messages = Messages(grid, say=say, met=met, registered=known)
    transport: Transport = messages
    news = partial(tell, Path(asked.news)) if asked.news else say
    server, keys = Path(asked.server or "."), Path(asked.keys) if asked.keys else None
    credentials = None if keys is None else Credentials.load(keys, server)
    control = RunControl(server / ORDERS, asked.ticket, lambda: None if keys is None else _roll(keys, server))
    try:
        with WaitingNote(server, asked.out) as waiting:
            coming = coming_sites(asked, waiting.miss)
            wait_for(messages, asked.sites, asked.wait, news, control, coming)
            transport, why, absent = way(messages, asked, run) if asked.stream else (messages, None, {})
            waiting.awaited = transport.awaited
            limit = asked.deadline or None
            run_at_sites(
                transport,
                asked.experiment,
                asked.out,
                asked.sites,
                resumed=asked.resume,
                deadline=limit,
                credentials=credentials,
                patience=asked.wait,
                no_stream=why,
                say=news,
                control=control if asked.ticket else None,
                named=partial(log_id, asked, run),
                miss=coming.miss,
                absent=absent,
            )
    finally:
        transport.close()
        messages.close()


def log_id(asked: RunConfig, number: str, id: str) -> None:
    """Note in the server's log by which id sites know the run: it is the one word that their logs share with it."""
    if asked.server:
        about = {"number": number, "run": asked.out.name, "path": str(asked.out), "id": id}
        append_event(Path(asked.server) / FILE, "run_named", **about)


def read_registered(path: Path) -> dict[int, str]:
    """Read which site's key each node has."""
    try:
        told = json.loads(path.read_text())
        return {int(entry["node"]): site for site, entry in told.items() if "key" in entry}  # none: being shut out
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise FedstrataError(f"{path} does not say which sites may connect; start the server again") from None


def coming_sites(asked: RunConfig, tell: Callable[[Collection[str]], None]) -> ComingSites:
    """Return who could come: the sites of a run that goes on, or whose keys count."""
    from fedstrata.remote.server.site_registry import read_sites  # noqa: PLC0415 - torch

    before = read_sites(asked.out) if asked.resume else None
    nodes = Path(asked.nodes) if asked.nodes else None
    known = None if nodes is None else (lambda: read_registered(nodes).values())
    return ComingSites(None if before is None else list(before[1]), known, tell)


def way(messages: Transport, asked: RunConfig, run: str) -> tuple[Transport, str | None, dict[str, str]]:
    """Return the stream if as many sites as are wanted come onto it, and why others did not.

    If too few do, and messages will do, those, and why.
    """
    from fedstrata.remote.flower.stream import open_stream  # noqa: PLC0415 - gRPC, where it is needed
    from fedstrata.remote.server.site_registry import read_sites  # noqa: PLC0415 - torch

    before = read_sites(asked.out) if asked.resume else None
    own = None if before is None else list(before[1])  # also those who are not back yet: they are invited when they are
    try:
        stream = open_stream(messages, asked.stream, run, listen=asked.listen or None, sites=own, say=say)
        if len(stream.names()) >= asked.sites or asked.fine:
            return stream, None, stream.why_not()
        why = "; ".join(f"{site}: {reason}" for site, reason in sorted(stream.why_not().items())) or "no answer"
        stream.close()
    except FedstrataError as error:
        if asked.fine:
            raise
        why = str(error)
    say(f"everything goes by messages, because not all sites came onto the stream: {why}")
    return messages, why, {}


def wait_for(
    transport: Transport,
    sites: int,
    seconds: float,
    news: Say | None = None,
    control: RunControl | None = None,
    coming: ComingSites = ANYBODY,
) -> list[str]:
    """Wait until so many sites are there, and say whom for; an operator may stop the run meanwhile."""
    began, before, lacked = monotonic(), None, None
    while len(names := coming.counted(transport.names())) < sites:
        missing, lacks = coming.without(names), coming.too_few(sites)
        coming.tell(missing)
        if lacks is not None and lacks != lacked:  # said, not refused: the next roll may bring who is lacking
            (news or say)(lacks)
        lacked = lacks
        if (names, missing) != before and monotonic() - began >= min(FIRST, seconds):
            there = _listed(": ", names) + _listed("; missing: ", missing)
            (news or say)(f"{len(names)} of {sites} sites are there{there}")
            before = names, missing
        if control is not None:
            control.heed_unbegun()
        if monotonic() - began > seconds:
            raise RequestError(
                f"{sites} sites are wanted, and after {seconds:g} seconds these are there: "
                f"{', '.join(names) or 'none'}{_listed('; missing: ', missing)}"
                f"{'' if lacks is None else '; the roll has no more'}"
            )
        sleep(OFTEN)
    coming.tell(())
    return names


def _listed(before: str, names: Collection[str]) -> str:
    return f"{before}{', '.join(names)}" if names else ""


def _roll(keys: Path, server: Path) -> Roll:
    from fedstrata.remote.credentials import Credentials  # noqa: PLC0415

    return Credentials.load(keys, server).roll


def tell(news: Path, text: str) -> None:
    """Tell also whoever follows the run, before it has a folder."""
    say(text)
    with news.open("a") as file:
        file.write(text + "\n")


def say(text: str) -> None:
    """Tell whoever follows Flower's log."""
    print(text, flush=True)
