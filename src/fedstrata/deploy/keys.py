"""Keys of a federation, each where it belongs.

    DIR/ca/               ca.key, ca.crt: signs certificates and rolls; stays with whoever made the keys
                          roll.json: the newest roll
    DIR/server/           server.key, server.crt, ca.crt: the server's certificate
                          identity.json, roll.json
    DIR/sites/SITE/       node.key, node.pub: proves to the server which site it is (OpenSSH format, EC secp384r1)
                          ca.crt: tells the site which server is the right one
                          identity.json, roll.json
    DIR/operators/NAME/   identity.json: signs what an operator does to runs

`identity.json` is a party's own Ed25519 key, `roll.json` the public keys of all parties (`remote/roll.py`), signed by
the authority. Each folder under `sites` goes to its site, and to no other. `authority.py` changes what is there.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from fedstrata.core.errors import RequestError
from fedstrata.deploy.shut_out import RevokedError
from fedstrata.deploy.state import site_name
from fedstrata.privacy.identity import Identity
from fedstrata.remote.certificates import Certified, certify, make_authority, named_host
from fedstrata.remote.credentials import Credentials
from fedstrata.remote.roll import FILE, Roll

AUTHORITY = timedelta(days=10 * 365)
VALID = timedelta(days=2 * 365)  # of the server's certificate: some systems take none that lasts longer
SOON = timedelta(weeks=8)  # before its end, a certificate is spoken of
ALWAYS = ("localhost", "127.0.0.1", "::1")  # the server talks to itself
SERVER = "server"
ANEW = "make new keys for all"
RENEW = "fedstrata deploy keys renew {} server"
RESTART = "and start the server again with the new server.key and server.crt"


# ---- making --------------------------------------------------------------------------------------------------------


def make(folder: Path, sites: Sequence[str], hosts: Sequence[str] = ()) -> None:
    """Make the keys of a federation; the folder appears whole or not at all, and is never written over."""
    names = sorted(site_name(name, "--sites") for name in sites)
    if not names:
        raise RequestError("--sites is empty; name the sites: --sites a,b,c")
    if twice := {name for name in names if names.count(name) > 1}:
        raise RequestError(f'--sites names "{min(twice)}" twice')
    said = [read_host(host) for host in dict.fromkeys([*hosts, *ALWAYS])]
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RequestError(f"{folder} is there already, and keys are never overwritten; name another folder")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=".keys-", dir=folder.parent))
        try:
            _write_all(part, names, said)
            os.rename(part, folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        raise RequestError(f"{folder} cannot be written: {error}") from None


def _write_all(folder: Path, names: Sequence[str], hosts: Sequence[x509.GeneralName]) -> None:
    authority = make_authority(f"fedstrata {os.urandom(4).hex()}", AUTHORITY)
    for place in ("ca", SERVER, "sites"):
        (folder / place).mkdir(mode=0o700)
    write(folder / "ca" / "ca.key", authority.key_pem, secret=True)
    write(folder / "ca" / "ca.crt", authority.pem)
    identity = write_identity(folder / SERVER, SERVER)
    write(folder / SERVER / "ca.crt", authority.pem)
    certify_server(folder / SERVER, authority, hosts)
    sites = {name: write_site(folder / "sites" / name, name, authority.pem) for name in names}
    identities, nodes = {n: key for n, (key, _) in sites.items()}, {n: key for n, (_, key) in sites.items()}
    roll = Roll(identity, identities, nodes).signed(authority.key)
    for place in ("ca", SERVER, *(f"sites/{name}" for name in names)):
        write(folder / place / FILE, roll.write())


def write_site(folder: Path, name: str, authority: bytes) -> tuple[bytes, str]:
    """Make a site's keys in a new folder; give the public ones: its identity, and what it connects with."""
    folder.mkdir(mode=0o700, parents=True)
    node = ec.generate_private_key(ec.SECP384R1())
    private = node.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())  # Flower reads no other
    public = node.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + f" {name}\n".encode()
    write(folder / "node.key", private, secret=True)
    write(folder / "node.pub", public)
    write(folder / "ca.crt", authority)
    return write_identity(folder, name), public.decode()


def write_identity(folder: Path, name: str) -> bytes:
    """Make a party's own key; give the public half."""
    identity = Identity.new(os.urandom)
    own = {"name": name, "private": identity.private.private_bytes_raw().hex()}
    write(folder / "identity.json", _json(own), secret=True)
    return identity.public


def certify_server(folder: Path, authority: Certified, hosts: Sequence[x509.GeneralName]) -> None:
    """Write a new key for TLS and its certificate."""
    server = certify(authority, "fedstrata server", hosts, VALID)
    write(folder / "server.key", server.key_pem, secret=True)
    write(folder / "server.crt", server.pem)


def read_host(host: str) -> x509.GeneralName:
    """Read a name or an address that sites will connect to."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        if not re.fullmatch(r"(?=.{1,253}$)([A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.?)+", host):
            raise RequestError(f'--host = "{host}" is not valid; allowed: a host name or an IP address') from None
        return named_host(host)
    if address.is_unspecified:
        raise RequestError(f"--host = {host} names no machine; give the name or address that sites connect to")
    return named_host(host)


def _json(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values, indent=2) + "\n").encode()


def write(path: Path, content: bytes, secret: bool = False) -> None:
    """Write a new file; one with a secret is never readable for others, not even for a moment."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644)
    with os.fdopen(handle, "wb") as file:
        file.write(content)


# ---- reading -------------------------------------------------------------------------------------------------------


def of_server(folder: Path, host: str) -> tuple[Path, list[str]]:
    """Check a server's folder, and that its certificate is good for the host; give it, and the certificate's names."""
    missing = [n for n in ("ca.crt", "server.crt", "server.key", "identity.json", FILE) if not (folder / n).exists()]
    if missing:
        raise RequestError(
            f"--keys {folder} has no {missing[0]}; it should be the folder `server` that `fedstrata deploy keys` made"
        )
    refuse_readable(folder / "server.key")
    refuse_readable(folder / "identity.json")
    path = folder / "server.crt"
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        key, known = load_pem_private_key((folder / "server.key").read_bytes(), None), names_of(folder)
    except (OSError, ValueError, TypeError, x509.ExtensionNotFound) as error:
        raise RequestError(f"{path} or its key cannot be read: {error}") from None
    if certificate.public_key() != key.public_key():
        raise RequestError(f"{path} belongs to another key than {folder / 'server.key'}")
    if certificate.not_valid_after_utc < datetime.now(UTC):
        raise RequestError(f"{path} ended on {certificate.not_valid_after_utc:%Y-%m-%d}; renew it: {renewal(folder)}")
    if (end := ends(folder)["ca.crt"]) < datetime.now(UTC):
        raise RequestError(f"{folder / 'ca.crt'}, the authority's certificate, ended on {end:%Y-%m-%d}; {ANEW}")
    if not anywhere(host) and host not in known:
        raise RequestError(
            f"--host = {host}: the certificate {path} is for {', '.join(known)}; make the keys with --host {host}"
        )
    return folder.absolute(), known


def names_of(folder: Path) -> list[str]:
    """Return the names that a server's certificate is for."""
    certificate = x509.load_pem_x509_certificate((folder / "server.crt").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


def of_site(folder: Path, site: str) -> Path:
    """Check a site's folder, and that it is this site's; give it with an absolute path."""
    for name in ("ca.crt", "node.key", "identity.json", FILE):
        if not (folder / name).is_file():
            raise RequestError(
                f"--keys {folder} has no {name}; it should be the folder sites/{site} that `fedstrata deploy keys` made"
            )
    refuse_readable(folder / "node.key")
    refuse_readable(folder / "identity.json")
    credentials = Credentials.load(folder)
    owner = next((name for name, key in credentials.sites.items() if key == credentials.identity.public), None)
    if owner is None:
        raise RevokedError(_off_the_roll(folder, site, credentials.roll))
    if owner != site:
        raise RequestError(f"--keys {folder} holds the keys of site {owner}, not of site {site}")
    return folder.absolute()


def _off_the_roll(folder: Path, site: str, roll: Roll) -> str:
    """Say why a folder's keys are those of no site any more."""
    if site in roll.sites:
        return (
            f"--keys {folder}: site {site} has other keys by roll {roll.serial}: they were renewed, and these are "
            f"worthless; bring the new folder sites/{site} here from whoever made the keys"
        )
    return (
        f"--keys {folder}: site {site} is not on roll {roll.serial}: it was revoked, and takes part in nothing any "
        "more; whoever made the keys knows why"
    )


def nodes(folder: Path, roll: Roll) -> dict[str, str]:
    """Return the public keys of the sites that may connect, by site; keys from before rolls were signed have files."""
    if roll.serial:
        return dict(roll.nodes)
    return {path.stem: path.read_text() for path in sorted((folder / "nodes").glob("*.pub"))}


def renewal(folder: Path | None = None) -> str:
    """Return what renews the server's certificate; where its folder lies where the keys were made, as it is typed."""
    here = folder is not None and (folder.parent / "ca" / "ca.key").is_file()
    return RENEW.format(shlex.quote(str(folder.parent)) if folder is not None and here else "DIR")


@dataclass(frozen=True)
class Ending:
    """A certificate that ends soon, or has ended."""

    what: str
    end: datetime
    advice: str

    def said(self, now: datetime) -> str:
        """Put it into a line."""
        days = abs(self.end - now).days
        far = f"{days} day{'s' * (days != 1)}" if days else "less than a day"
        when = f"ends on {self.end:%Y-%m-%d} ({far} from now)"
        return f"{self.what} {when if self.end > now else f'ended on {self.end:%Y-%m-%d}, {far} ago'}; {self.advice}"


def ends(folder: Path) -> dict[str, datetime]:
    """Return when the certificates of a folder end, by file."""
    found = {}
    for name in ("ca.crt", "server.crt"):
        if (folder / name).exists():
            found[name] = x509.load_pem_x509_certificate((folder / name).read_bytes()).not_valid_after_utc
    return found


def endings(folder: Path, now: datetime) -> list[Ending]:
    """Return which certificates of a folder end soon, and what to do; nothing where there is time."""
    advice = {"ca.crt": ANEW, "server.crt": f"renew it: {renewal(folder)}, {RESTART}"}
    return [Ending(str(folder / n), end, advice[n]) for n, end in ends(folder).items() if end - now < SOON]


def expiring(folder: Path, now: datetime | None = None) -> list[str]:
    """Say which certificates of a folder end soon, and what to do."""
    now = now or datetime.now(UTC)
    return [ending.said(now) for ending in endings(folder, now)]


def anywhere(host: str) -> bool:
    """Say whether an address stands for all addresses of a machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def refuse_readable(path: Path) -> Path:
    """Refuse a private key that others can read."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}") from None
    if mode & 0o077:
        raise RequestError(f"{path} is a private key, and others can read it; first run: chmod 600 {path}")
    return path
