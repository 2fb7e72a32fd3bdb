"""One archive a site, with all that it needs to run as a service; and one for the server.

    fedstrata-SITE/
      start.sh               starts the client, in the foreground; everything else calls it
      data.toml              which data the site has: the one file that somebody there has to look at
      site.toml              what the site agrees to
      keys/                  its keys, and nobody else's
      fedstrata-SITE.service systemd
      Dockerfile, compose.yaml, kubernetes.yaml
      README.md              what to do with them

Services run as a user of their own, with a root file system that they cannot write; sites listen at no port but one for
figures, where that was asked for, and connect out to one.
"""

from __future__ import annotations

import io
import json
import os
import re
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
from fedstrata.deploy.flower import LOOPBACK
from fedstrata.deploy.keys import SERVER, of_server, of_site
from fedstrata.remote.roll import FILE, Roll

TEMPLATES = Path(__file__).with_name("templates")
UID = 10001  # of the user in containers
METRICS_HOST = "FEDSTRATA_METRICS_HOST"  # the image sets it: a container's own loopback nobody reaches
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


@dataclass(frozen=True)
class MetricsAddress:
    """Where a party serves its figures to Prometheus."""

    port: int
    host: str = LOOPBACK  # in a container: where the machine passes the port on

    def __post_init__(self) -> None:
        """Refuse what is no address: it stands in scripts."""
        if not re.fullmatch(r"[A-Za-z0-9._:-]+", self.host):
            raise RequestError(f'--metrics-host = "{self.host}" is not valid; allowed: an address of the machine')

    @property
    def words(self) -> list[str]:
        """Return the options; a container listens to its machine, and has its own word for that."""
        return ["--metrics-port", str(self.port), "--metrics-host", f"${{{METRICS_HOST}:-{self.host}}}"]


def for_site(
    site: str,
    keys: Path,
    server: str,
    data: Mapping[str, Any],
    policy: bytes | None = None,
    figures: MetricsAddress | None = None,
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
    files = _filled(site, [*words, "--policy", "$here/site.toml"], figures, port=None)
    files["data.toml"] = (_data_file(data), 0o644)
    files["site.toml"] = (policy or (TEMPLATES / "site.toml").read_bytes(), 0o644)
    return PartyPackage(site, files | _keys(own))


def for_server(
    keys: Path, host: str, port: int, public: str | None = None, figures: MetricsAddress | None = None
) -> PartyPackage:
    """Put together what the server needs."""
    if not keys.is_dir():  # it was brought to the server, and deleted here, as it should be
        raise RequestError(
            f"--keys: there is no {keys}, so there are no keys for the server's package; bring them back, or name the "
            "sites that packages are for: --sites A,B,C"
        )
    own, _ = of_server(keys, host)
    words = ["deploy", "server", "--keys", "$here/keys", "--host", host, "--port", str(port)]
    words += [] if public is None else ["--public", public]
    return PartyPackage(SERVER, _filled(SERVER, words, figures, port) | _keys(own))


def write_all(folder: Path, packages: Sequence[PartyPackage]) -> list[Path]:
    """Write archives into a new folder."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RequestError(f"{folder} is there already, and packages are never overwritten; name another folder")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return [package.write(folder) for package in packages]
    except OSError as error:
        raise RequestError(f"{folder} cannot be written: {error}") from None


def _filled(
    name: str, words: Sequence[str], figures: MetricsAddress | None, port: int | None
) -> dict[str, tuple[bytes, int]]:
    """Fill in the templates that both kinds of packages have; `port` is the server's, None at a site."""
    words = [*words, *([] if figures is None else figures.words)]
    own, _, use = _read("site.md" if port is None else "server.md").partition("\n\n")
    about = {
        "name": name,
        "what": "server" if name == SERVER else f"site {name}",
        "version": __version__,
        "command": " ".join(_quoted(word) for word in words),
        "uid": str(UID),
        "mapped": _mapped(port, figures),
        "data": "" if port else "      - ${FEDSTRATA_DATA:-./data}:/data:ro\n",
        "data_mount": "" if port else "            - { name: data, mountPath: /data, readOnly: true }\n",
        "data_volume": "" if port else "        - { name: data, hostPath: { path: /srv/fedstrata-data } }\n",
        "container_port": _container_ports(port, figures),
        "config": "" if port else "data.toml site.toml ",
        "figures": "" if figures is None else f" Figures for Prometheus: `http://{_at(figures)}/metrics`.",
        "there": "" if port in (None, state.PORT) else f" --server {state.join_address(LOOPBACK, port)}",
    }
    about["also"] = f", with `{about['there'].strip()}`" if about["there"] else ""
    about |= {"own": _fill_text(own, about), "use": _fill_text(use.rstrip("\n"), about)}
    files = {file: (_fill(file, about), 0o755 if file == "start.sh" else 0o644) for file in ANY}
    files[f"fedstrata-{name}.service"] = (_fill("service", about), 0o644)
    files[".dockerignore"] = (b"keys\nstate\ndata\n", 0o644)
    return files


def _mapped(port: int | None, figures: MetricsAddress | None) -> str:
    """Return the ports of a compose file: the server's for everybody, figures where they were asked for."""
    ports = [] if port is None else [f"{port}:{port}"]
    ports += [] if figures is None else [f"{_at(figures)}:{figures.port}"]
    none = "    # no ports: a site only connects out\n"
    return f"    ports: {json.dumps(ports)}\n" if ports else none


def _container_ports(port: int | None, figures: MetricsAddress | None) -> str:
    """Return the ports of a pod."""
    ports = [] if port is None else [f"{{ name: sites, containerPort: {port} }}"]
    ports += [] if figures is None else [f"{{ name: metrics, containerPort: {figures.port} }}"]
    return f"          ports: [{', '.join(ports)}]\n" if ports else ""


def _at(figures: MetricsAddress) -> str:
    return state.join_address(figures.host, figures.port)


class _Marked(Template):
    delimiter = "@"  # shells and compose files are full of dollars


def _fill(file: str, about: Mapping[str, str]) -> bytes:
    return _fill_text(_read(file), about).encode()


def _fill_text(text: str, about: Mapping[str, str]) -> str:
    return _Marked(text).substitute(about)


def _read(file: str) -> str:
    return (TEMPLATES / file).read_text()


def _quoted(word: str) -> str:
    return f'"{word}"' if word.startswith(("$here", f"${{{METRICS_HOST}")) else shlex.quote(word)


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
