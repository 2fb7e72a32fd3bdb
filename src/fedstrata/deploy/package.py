"""One archive a site, with all that it needs to run as a service; and one for the server.

    fedstrata-SITE/
      start.sh               starts the client, in the foreground; everything else calls it
      data.toml              which data the site has: the one file that somebody there has to look at
      site.toml              what the site agrees to
      keys/                  its keys, and nobody else's
      fedstrata-SITE.service systemd
      Dockerfile, compose.yaml, kubernetes.yaml
      README.md              what to do with them

Services run as a user of their own, with a root file system that they cannot write; they listen at no port, and connect
out to one.
"""

from __future__ import annotations

import io
import os
import shlex
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any

import tomli_w

from fedstrata import __version__
from fedstrata.core.errors import RequestError
from fedstrata.deploy import state
from fedstrata.deploy.keys import SERVER, of_site
from fedstrata.remote.roll import FILE, Roll

TEMPLATES = Path(__file__).with_name("templates")
UID = 10001  # of the user in containers
ANY = ("start.sh", "Dockerfile", "compose.yaml", "kubernetes.yaml", "README.md")


@dataclass(frozen=True)
class PartyPackage:
    """What one party gets."""

    name: str  # of the site; or `server`
    files: Mapping[str, tuple[bytes, int]] = field(repr=False)  # path inside -> content and mode

    @property
    def root(self) -> str:
        """Return the folder that the archive holds."""
        return f"fedstrata-{self.name}"

    def write(self, folder: Path) -> Path:
        """Write the archive, for its owner alone: it holds private keys."""
        path = folder / f"{self.root}.tar.gz"
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as out, tarfile.open(fileobj=out, mode="w:gz") as archive:
            for name, (content, mode) in sorted(self.files.items()):
                about = tarfile.TarInfo(f"{self.root}/{name}")
                about.size, about.mode = len(content), mode
                archive.addfile(about, io.BytesIO(content))
        return path


def for_site(
    site: str, keys: Path, server: str, data: Mapping[str, Any], policy: bytes | None = None, metrics: int | None = None
) -> PartyPackage:
    """Put together what a site needs; `data` is the table `[data]` of what it has."""
    own = of_site(keys, site)
    words = [
        "deploy",
        "client",
        "--site",
        site,
        "--server",
        server,
        "--keys",
        "$here/keys",
        "--data",
        "$here/data.toml",
    ]
    files = _filled(site, [*words, "--policy", "$here/site.toml"], metrics, ports="")
    files["data.toml"] = (_data_file(data), 0o644)
    files["site.toml"] = (policy or (TEMPLATES / "site.toml").read_bytes(), 0o644)
    return PartyPackage(site, files | _keys(own))


def for_server(keys: Path, host: str, port: int, public: str | None = None, metrics: int | None = None) -> PartyPackage:
    """Put together what the server needs."""
    words = ["deploy", "server", "--keys", "$here/keys", "--host", host, "--port", str(port)]
    words += [] if public is None else ["--public", public]
    return PartyPackage(SERVER, _filled(SERVER, words, metrics, ports=str(port)) | _keys(keys))


def write_all(folder: Path, packages: Sequence[PartyPackage]) -> list[Path]:
    """Write archives into a new folder."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RequestError(f"{folder} is there already, and packages are never overwritten; name another folder")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return [package.write(folder) for package in packages]
    except OSError as error:
        raise RequestError(f"{folder} cannot be written: {error}") from None


def _filled(name: str, words: Sequence[str], metrics: int | None, ports: str) -> dict[str, tuple[bytes, int]]:
    """Fill in the templates that both kinds of packages have."""
    words = [*words, *([] if metrics is None else ["--metrics-port", str(metrics)])]
    about = {
        "name": name,
        "what": "server" if name == SERVER else f"site {name}",
        "version": __version__,
        "command": " ".join(_quoted(word) for word in words),
        "uid": str(UID),
        "mapped": f'    ports: ["{ports}:{ports}"]\n' if ports else "    # no ports: a site only connects out\n",
        "data": "" if ports else "      - ${FEDSTRATA_DATA:-./data}:/data:ro\n",
        "data_mount": "" if ports else "            - { name: data, mountPath: /data, readOnly: true }\n",
        "data_volume": "" if ports else "        - { name: data, hostPath: { path: /srv/fedstrata-data } }\n",
        "container_port": f"          ports: [{{ containerPort: {ports} }}]\n" if ports else "",
        "config": "" if ports else "data.toml site.toml ",
        "own": _read("server.md" if ports else "site.md").replace("NAME", name),
    }
    files = {file: (_fill(file, about), 0o755 if file == "start.sh" else 0o644) for file in ANY}
    files[f"fedstrata-{name}.service"] = (_fill("service", about), 0o644)
    files[".dockerignore"] = (b"keys\nstate\ndata\n", 0o644)
    return files


class _Marked(Template):
    delimiter = "@"  # shells and compose files are full of dollars


def _fill(file: str, about: Mapping[str, str]) -> bytes:
    return _Marked(_read(file)).substitute(about).encode()


def _read(file: str) -> str:
    return (TEMPLATES / file).read_text()


def _quoted(word: str) -> str:
    return f'"{word}"' if word.startswith("$here") else shlex.quote(word)


def _data_file(data: Mapping[str, Any]) -> bytes:
    head = "# Which data this site has; paths are those of its own machine, in a container under /data.\n"
    return (head + tomli_w.dumps({"data": dict(data)})).encode()


def _keys(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Take a key folder as it is, with the modes of its files."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            found[f"keys/{path.relative_to(folder)}"] = (path.read_bytes(), path.stat().st_mode & 0o777)
    return found


def sites_of(keys: Path) -> list[str]:
    """Return the sites whose keys lie in a folder that `deploy keys` made, without those that were revoked."""
    names = sorted(path.name for path in (keys / "sites").glob("*") if path.is_dir())
    rolls = [path for path in (keys / "ca" / FILE, keys / SERVER / FILE) if path.is_file()]
    if rolls:
        named = Roll.read(rolls[0].read_bytes()).sites
        names = [name for name in names if name in named]
    if not names:
        raise RequestError(f"--keys {keys} has no sites; it should be the folder that `fedstrata deploy keys` made")
    return [state.site_name(name) for name in names]
