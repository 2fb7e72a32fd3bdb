"""The model comes home: a site gets what it trained, over the server's one port, with its own key."""

from __future__ import annotations

import json
import os
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any

from fedstrata.core.errors import FedstrataError, RequestError
from fedstrata.deploy import state
from fedstrata.deploy.certificate_watch import why_ended
from fedstrata.deploy.node_signature import NodeKey
from fedstrata.deploy.served import FILES, HASH, MODELS, PIECE, path_of
from fedstrata.deploy.site.client import CheckedClient

WAIT = 60.0  # seconds that a server may be silent
LONGEST = 1 << 20  # bytes of a list of runs


@dataclass(frozen=True)
class Shelf:
    """The models that a server keeps for a site."""

    site: str
    server: str  # HOST:PORT
    keys: Path | None  # the site's folder; None: insecure

    def runs(self) -> list[dict[str, Any]]:
        """Return the finished runs in which the site took part, the oldest first."""
        with self._ask(MODELS) as answer:
            text = answer.read(LONGEST)
        try:
            told = json.loads(text)
            for run in told:
                right = re.fullmatch(r"[^/\\\0]{1,255}", run["run"]) and run["run"] not in (".", "..")
                right = right and all(str(run[key]).isprintable() for key in ("run", "method", "rounds"))
                if not right or not isinstance(run["privacy"], dict) or not set(run["files"]) <= set(FILES):
                    raise ValueError(run["run"])
        except (ValueError, TypeError, KeyError):
            raise FedstrataError(f"the server at {self.server} gives a list of models that is none") from None
        return list(told)

    def fetch(self, run: str, file: str, folder: Path) -> Path:
        """Get a file into a folder; it appears whole or not at all, and as the server has it."""
        folder.mkdir(parents=True, exist_ok=True)
        part, digest = folder / f".{file}.part", sha256()
        try:
            with self._ask(path_of(run, file)) as answer, part.open("wb") as out:
                while piece := answer.read(PIECE):
                    digest.update(piece)
                    out.write(piece)
                if digest.hexdigest() != answer.headers.get(HASH):
                    raise FedstrataError(f"{file} of run {run} did not arrive whole; try again")
                out.flush()
                os.fsync(out.fileno())
            os.replace(part, folder / file)
        finally:
            with suppress(OSError):
                part.unlink(missing_ok=True)
        return folder / file

    def _ask(self, path: str) -> HTTPResponse:
        handlers: list[Any] = [urllib.request.ProxyHandler({})]
        headers = {}
        if self.keys is not None:
            trust = ssl.create_default_context(cafile=str(self.keys / "ca.crt"))
            handlers.append(urllib.request.HTTPSHandler(context=trust))
            headers = NodeKey(self.keys / "node.key").sign_time()
        scheme = "http" if self.keys is None else "https"
        request = urllib.request.Request(f"{scheme}://{self.server}{path}", headers=headers)
        try:
            return urllib.request.build_opener(*handlers).open(request, timeout=WAIT)  # type: ignore[no-any-return]
        except urllib.error.HTTPError as error:
            with error:
                raise RequestError(
                    f"the server at {self.server} gives site {self.site} no models ({error.code}): it does not know "
                    "the site's key, or has no such run"
                ) from None
        except (OSError, HTTPException) as error:
            authority = None if self.keys is None else self.keys / "ca.crt"
            why = why_ended(error, self.server, authority) or str(getattr(error, "reason", error))
            raise FedstrataError(f"the server at {self.server} cannot be asked: {why}") from None


def shelf_of(site: str, server: str | None, keys: Path | None, insecure: bool) -> Shelf:
    """Return where a site finds its models; what is not said is as its client was started last."""
    file = state.of_site(site) / "attend.json"
    try:
        known = CheckedClient.read(file.read_text())
    except (OSError, ValueError, TypeError, KeyError):
        if server is None or (keys is None and not insecure):
            raise RequestError(
                f"no client of site {site} was started here ({file}): say --server HOST:PORT and --keys DIR"
            ) from None
        return Shelf(site, server, keys)
    return Shelf(site, server or known.server, None if insecure else keys or known.keys)


def choose_run(runs: Sequence[Mapping[str, Any]], name: str | None) -> Mapping[str, Any]:
    """Return the run of a name; without one the latest."""
    if not runs:
        raise RequestError("there is no finished run yet in which this site took part")
    fitting = [run for run in runs if name is None or name == run["run"]]
    if not fitting:
        names = ", ".join(str(run["run"]) for run in runs)
        raise RequestError(f"there is no finished run {name} of this site; there are: {names}")
    return fitting[-1]
