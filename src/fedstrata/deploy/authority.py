"""What the holder of a federation's authority can do later: let sites in, give them new keys, shut them out.

Every change makes the next roll, signed, with a higher serial number. A running server takes it in as soon as it lies
in its key folder, and brings it to the sites.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from fedstrata.core.errors import RequestError
from fedstrata.core.storage.files import write_atomically
from fedstrata.deploy import keys
from fedstrata.deploy.state import site_name
from fedstrata.remote.certificates import Certified
from fedstrata.remote.roll import FILE, Roll

OPERATORS = "operators"
Key = TypeVar("Key", bytes, str)


@dataclass(frozen=True)
class Authority:
    """A folder that `deploy keys` made, with the authority's key in it."""

    folder: Path
    certified: Certified
    roll: Roll

    @classmethod
    def open(cls, folder: Path) -> Authority:
        """Read it."""
        if not (folder / "ca" / "ca.key").is_file():
            raise RequestError(
                f"{folder} has no ca/ca.key: keys are changed where they were made, with the authority's key"
            )
        keys.refuse_readable(folder / "ca" / "ca.key")
        try:
            key = load_pem_private_key((folder / "ca" / "ca.key").read_bytes(), None)
            certificate = x509.load_pem_x509_certificate((folder / "ca" / "ca.crt").read_bytes())
            before = next(p for p in (folder / "ca" / FILE, folder / keys.SERVER / FILE) if p.exists())
            roll = Roll.read(before.read_bytes())
        except (OSError, ValueError, TypeError, StopIteration) as error:
            raise RequestError(f"{folder} holds no authority that can be read: {error}") from None
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return cls(folder, Certified(key, certificate), replace(roll, nodes=keys.nodes(folder / keys.SERVER, roll)))

    def add(self, names: Sequence[str]) -> Roll:
        """Let new sites take part."""
        wanted = _fresh([site_name(name, "NAME") for name in names], self.roll.sites)
        made = {name: self._site(name) for name in wanted}
        identities, nodes = {n: one for n, (one, _) in made.items()}, {n: other for n, (_, other) in made.items()}
        return self._issue(
            replace(self.roll, sites={**self.roll.sites, **identities}, nodes={**self.roll.nodes, **nodes})
        )

    def renew(self, name: str, hosts: Sequence[str] = ()) -> Roll:
        """Give a site new keys, or the server a new certificate; what was there is moved aside."""
        if name == keys.SERVER:
            return self._renew_server(hosts)
        _known(name, self.roll.sites, "site")
        with self._aside(self.folder / "sites" / name):
            identity, node = self._site(name)
        sites, nodes = {**self.roll.sites, name: identity}, {**self.roll.nodes, name: node}
        return self._issue(replace(self.roll, sites=sites, nodes=nodes))

    def revoke(self, name: str) -> Roll:
        """Shut out a site, or an operator."""
        roll = self.roll
        if name not in roll.sites and name not in roll.operators:
            _known(name, {**roll.sites, **roll.operators}, "site or operator")
        return self._issue(
            replace(
                roll,
                sites=_without(roll.sites, name),
                nodes=_without(roll.nodes, name),
                operators=_without(roll.operators, name),
            )
        )

    def add_operator(self, name: str) -> Roll:
        """Make somebody an operator."""
        _fresh([site_name(name, "NAME")], {**self.roll.sites, **self.roll.operators})
        place = self.folder / OPERATORS / name
        place.mkdir(mode=0o700, parents=True)
        identity = keys.write_identity(place, name)
        return self._issue(replace(self.roll, operators={**self.roll.operators, name: identity}))

    def _site(self, name: str) -> tuple[bytes, str]:
        place = self.folder / "sites" / name
        if place.exists():
            raise RequestError(f"{place} is there already, and keys are never overwritten; move it away")
        return keys.write_site(place, name, self.certified.pem)

    def _renew_server(self, hosts: Sequence[str]) -> Roll:
        place = self.folder / keys.SERVER
        if not (place / "server.crt").exists():
            raise RequestError(f"{place} has no server.crt; bring the server's folder here to renew its certificate")
        before = keys.names_of(place)
        said = [keys.read_host(host) for host in dict.fromkeys([*(hosts or before), *keys.ALWAYS])]
        aside = place.with_name("server-renewing")
        aside.mkdir(mode=0o700)
        try:
            keys.certify_server(aside, self.certified, said)
            for name in ("server.key", "server.crt"):
                os.replace(aside / name, place / name)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        return self.roll

    @contextmanager
    def _aside(self, place: Path) -> Iterator[None]:
        """Keep old keys until there are new ones; labels of earlier runs can be read with the old ones only."""
        old = self.folder / "old" / f"{place.name}-{self.roll.serial}"
        if place.exists():
            old.parent.mkdir(mode=0o700, exist_ok=True)
            os.rename(place, old)
        try:
            yield
        except BaseException:
            with suppress(OSError):
                os.rename(old, place)
            raise

    def _issue(self, changed: Roll) -> Roll:
        """Sign the next roll, and put it everywhere in this folder."""
        roll = changed.signed(self.certified.key)
        for place in (self.folder / "ca", self.folder / keys.SERVER, *sorted((self.folder / "sites").glob("*"))):
            if place.is_dir():
                write_atomically(place / FILE, roll.write())
                (place / FILE).chmod(0o644)
        return roll


def _known(name: str, known: Mapping[str, object], what: str) -> None:
    if name not in known:
        raise RequestError(f'there is no {what} "{name}" on the roll; known are: {", ".join(sorted(known)) or "none"}')


def _fresh(names: Sequence[str], known: Mapping[str, object]) -> Sequence[str]:
    if not names:
        raise RequestError("name the sites: fedstrata deploy keys add DIR NAME...")
    for name in names:
        if name in known or names.count(name) > 1 or name == keys.SERVER:
            raise RequestError(f'"{name}" is on the roll already, or named twice; renew gives a site new keys')
    return names


def _without(table: Mapping[str, Key], name: str) -> dict[str, Key]:
    return {other: value for other, value in table.items() if other != name}
