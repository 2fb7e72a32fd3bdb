"""What Flower starts at the server for a run: it waits for the sites, then runs the experiment over them.

The run config says `experiment` and `out` (paths on this machine), `sites` (how many to wait for), and may say `resume`
(go on in `out`), `deadline` (seconds for each exchange), `wait` (seconds for the sites to come), `stream` (the address,
HOST:PORT, at which sites find a stream; without it everything goes by messages), `listen` (what the stream binds, where
that is another address), `fine` (messages would not do where not all sites come onto the stream), `keys` (the server's
own, for masked sums and sealed chains), `nodes` (a file that says which site's key each node has), `met` (one for what
nodes say of themselves) and `folder` (where the run was asked for: relative paths and parts of one's own are found from
there). What went wrong is written into the run folder, for those who follow the run there.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedstrata.core.errors import FedstrataError, RequestError
from fedstrata.remote.flower.messages import Messages
from fedstrata.remote.flower.node_names import remember
from fedstrata.remote.transport import Transport

FAILED = "failed.json"
OFTEN = 0.2  # seconds between two looks for sites

app = ServerApp()


@dataclass(frozen=True)
class Asked:
    """The run config, checked."""

    experiment: Path
    out: Path
    sites: int
    resume: bool = False
    deadline: float = 0.0  # 0: none
    wait: float = 600.0
    stream: str = ""
    listen: str = ""
    fine: bool = False
    folder: str = ""
    keys: str = ""
    nodes: str = ""
    met: str = ""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Asked:
        """Read it."""
        given: dict[str, Any] = {}
        for key, (read, allowed) in _KEYS.items():
            value = read(config[key]) if key in config else None
            if value is None and (key in config or key in ("experiment", "out", "sites")):
                raise RequestError(f"run config {key} = {config.get(key)!r} is not valid; allowed: {allowed}")
            given |= {} if value is None else {key: value}
        return cls(**given)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run an experiment."""
    out = _path(context.run_config.get("out"))
    try:
        if out is not None:
            (out / FAILED).unlink(missing_ok=True)
        _run(grid, Asked.of(context.run_config), str(context.run_id))
    except Exception as error:
        if out is not None:
            write_failure(out, error)
        say(f"the run failed: {error}")
        raise  # Flower should know as well


def _run(grid: Grid, asked: Asked, run: str) -> None:
    if asked.folder:
        os.chdir(asked.folder)
        sys.path.insert(0, "")
    from fedstrata.remote.credentials import Credentials  # noqa: PLC0415
    from fedstrata.remote.session import run_at_sites  # noqa: PLC0415 - torch; first things first

    met = partial(remember, Path(asked.met)) if asked.met else lambda *_: None
    messages = Messages(grid, say=say, met=met, registered=registered(Path(asked.nodes)) if asked.nodes else None)
    transport: Transport = messages
    try:
        wait_for(messages, asked.sites, asked.wait)
        transport, why = way(messages, asked, run) if asked.stream else (messages, None)
        limit = asked.deadline or None
        credentials = Credentials.load(Path(asked.keys)) if asked.keys else None
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
        )
    finally:
        transport.close()
        messages.close()


def registered(path: Path) -> dict[int, str]:
    """Read which site's key each node has."""
    try:
        return {int(entry["node"]): site for site, entry in json.loads(path.read_text()).items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise FedstrataError(f"{path} does not say which sites may connect; start the server again") from None


def way(messages: Transport, asked: Asked, run: str) -> tuple[Transport, str | None]:
    """Return the stream if as many sites as are wanted come onto it; if not, and messages will do, those, and why."""
    from fedstrata.remote.flower.stream import open_stream  # noqa: PLC0415 - gRPC, where it is needed
    from fedstrata.remote.site_registry import recorded  # noqa: PLC0415 - torch

    before = recorded(asked.out) if asked.resume else None
    own = None if before is None else list(before[1])  # also those who are not back yet: they are invited when they are
    try:
        stream = open_stream(messages, asked.stream, run, listen=asked.listen or None, sites=own, say=say)
        if len(stream.names()) >= asked.sites or asked.fine:
            return stream, None
        why = "; ".join(f"{site}: {reason}" for site, reason in sorted(stream.why_not().items())) or "no answer"
        stream.close()
    except FedstrataError as error:
        if asked.fine:
            raise
        why = str(error)
    say(f"everything goes by messages, because not all sites came onto the stream: {why}")
    return messages, why


def wait_for(transport: Transport, sites: int, seconds: float) -> list[str]:
    """Wait until so many sites are there."""
    began, before = monotonic(), None
    while len(names := transport.names()) < sites:
        if names != before:
            say(f"{len(names)} of {sites} sites are there" + (f": {', '.join(names)}" if names else ""))
            before = names
        if monotonic() - began > seconds:
            there = ", ".join(names) or "none"
            raise RequestError(f"{sites} sites are wanted, and after {seconds:g} seconds these are there: {there}")
        sleep(OFTEN)
    return names


def write_failure(out: Path, error: Exception) -> None:
    """Leave word of what went wrong; it is there whole or not at all."""
    known = isinstance(error, FedstrataError)
    told = {
        "error": type(error).__name__,
        "message": str(error),
        "exit_code": error.exit_code if isinstance(error, FedstrataError) else 1,
        "trace": None if known else "".join(traceback.format_exception(error)),
    }
    out.mkdir(parents=True, exist_ok=True)
    new = out / f"{FAILED}.new"
    new.write_text(json.dumps(told, indent=2) + "\n")
    new.replace(out / FAILED)


def say(text: str) -> None:
    """Tell whoever follows Flower's log."""
    print(text, flush=True)


def _path(value: object) -> Path | None:
    return Path(value) if isinstance(value, str) and Path(value).is_absolute() else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _seconds(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 else None


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


_KEYS: dict[str, tuple[Callable[[object], Any], str]] = {
    "experiment": (_path, "an absolute path"),
    "out": (_path, "an absolute path"),
    "sites": (_count, "a whole number > 0"),
    "resume": (_flag, "true or false"),
    "deadline": (_seconds, "seconds, 0 for none"),
    "wait": (_seconds, "seconds"),
    "stream": (_text, "HOST:PORT"),
    "listen": (_text, "HOST:PORT"),
    "fine": (_flag, "true or false"),
    "folder": (_text, "a path"),
    "keys": (_text, "a path"),
    "nodes": (_text, "a path"),
    "met": (_text, "a path"),
}
