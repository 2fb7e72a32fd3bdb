"""Keys of a federation, each where it belongs.

    DIR/ca/           ca.key, ca.crt: signs certificates; stays with whoever made the keys
    DIR/server/       server.key, server.crt, ca.crt: the server's certificate
                      nodes/SITE.pub: the sites that may connect
                      identity.json, roll.json
    DIR/sites/SITE/   node.key, node.pub: proves to the server which site it is (OpenSSH format, EC secp384r1)
                      ca.crt: tells the site which server is the right one
                      identity.json, roll.json

`identity.json` is a party's own Ed25519 key for the privacy protocols, `key_directory.json` the public keys of all
parties. Each folder under `sites` goes to its site, and to no other.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
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
from fedstrata.deploy.state import site_name
from fedstrata.privacy.identity import Identity
from fedstrata.remote.certificates import certify, make_authority, named_host
from fedstrata.remote.credentials import Credentials

VALID = timedelta(days=5 * 365)
ALWAYS = ("localhost", "127.0.0.1", "::1")  # the server talks to itself
SERVER = "server"


# ---- making --------------------------------------------------------------------------------------------------------


def make(folder: Path, sites: Sequence[str], hosts: Sequence[str] = ()) -> None:
    """Make the keys of a federation; the folder appears whole or not at all, and is never written over."""
    names = sorted(site_name(name, "--sites") for name in sites)
    if not names:
        raise RequestError("--sites is empty; name the sites: --sites a,b,c")
    if twice := {name for name in names if names.count(name) > 1}:
        raise RequestError(f'--sites names "{min(twice)}" twice')
    said = [_host(host) for host in dict.fromkeys([*hosts, *ALWAYS])]
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
    identities = {name: Identity.new(os.urandom) for name in (SERVER, *names)}
    key_directory = {
        SERVER: identities[SERVER].public.hex(),
        "sites": {name: identities[name].public.hex() for name in names},
    }
    authority = make_authority(f"fedstrata {os.urandom(4).hex()}", VALID)
    places = {SERVER: folder / SERVER} | {name: folder / "sites" / name for name in names}
    for place in (folder / "ca", folder / "sites", *places.values(), folder / SERVER / "nodes"):
        place.mkdir(mode=0o700)
    _write(folder / "ca" / "ca.key", authority.key_pem, secret=True)
    for place in (folder / "ca", *places.values()):
        _write(place / "ca.crt", authority.pem)
    for name, place in places.items():
        own = {"name": name, "private": identities[name].private.private_bytes_raw().hex()}
        _write(place / "identity.json", _json(own), secret=True)
        _write(place / "roll.json", _json(key_directory))
    server = certify(authority, "fedstrata server", hosts, VALID)
    _write(folder / SERVER / "server.key", server.key_pem, secret=True)
    _write(folder / SERVER / "server.crt", server.pem)
    for name in names:
        node = ec.generate_private_key(ec.SECP384R1())
        private = node.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())  # Flower reads no other
        public = node.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + f" {name}\n".encode()
        _write(places[name] / "node.key", private, secret=True)
        _write(places[name] / "node.pub", public)
        _write(folder / SERVER / "nodes" / f"{name}.pub", public)


def _host(host: str) -> x509.GeneralName:
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


def _write(path: Path, content: bytes, secret: bool = False) -> None:
    """Write a new file; one with a secret is never readable for others, not even for a moment."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644)
    with os.fdopen(handle, "wb") as file:
        file.write(content)


# ---- reading -------------------------------------------------------------------------------------------------------


def of_server(folder: Path, host: str) -> tuple[Path, list[str]]:
    """Check a server's folder, and that its certificate is good for the host; give it, and the certificate's names."""
    missing = [n for n in ("ca.crt", "server.crt", "server.key", "identity.json", "nodes") if not (folder / n).exists()]
    if missing:
        raise RequestError(
            f"--keys {folder} has no {missing[0]}; it should be the folder `server` that `fedstrata deploy keys` made"
        )
    _secret(folder / "server.key")
    _secret(folder / "identity.json")
    path = folder / "server.crt"
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        key = load_pem_private_key((folder / "server.key").read_bytes(), None)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, TypeError, x509.ExtensionNotFound) as error:
        raise RequestError(f"{path} or its key cannot be read: {error}") from None
    if certificate.public_key() != key.public_key():
        raise RequestError(f"{path} belongs to another key than {folder / 'server.key'}")
    if certificate.not_valid_after_utc < datetime.now(UTC):
        raise RequestError(f"{path} ended on {certificate.not_valid_after_utc:%Y-%m-%d}; make new keys")
    known = [str(name.value) for name in names]
    if not anywhere(host) and host not in known:
        raise RequestError(
            f"--host = {host}: the certificate {path} is for {', '.join(known)}; make the keys with --host {host}"
        )
    return folder.absolute(), known


def of_site(folder: Path, site: str) -> Path:
    """Check a site's folder, and that it is this site's; give it with an absolute path."""
    for name in ("ca.crt", "node.key", "identity.json", "roll.json"):
        if not (folder / name).is_file():
            raise RequestError(
                f"--keys {folder} has no {name}; it should be the folder sites/{site} that `fedstrata deploy keys` made"
            )
    _secret(folder / "node.key")
    _secret(folder / "identity.json")
    credentials = Credentials.load(folder)
    owner = next((name for name, key in credentials.sites.items() if key == credentials.identity.public), None)
    if owner != site:
        raise RequestError(f"--keys {folder} holds the keys of site {owner or 'nobody'}, not of site {site}")
    return folder.absolute()


def nodes(folder: Path) -> dict[str, Path]:
    """Return the public keys of the sites that may connect, by site."""
    return {path.stem: path.absolute() for path in sorted((folder / "nodes").glob("*.pub"))}


def anywhere(host: str) -> bool:
    """Say whether an address stands for all addresses of a machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _secret(path: Path) -> Path:
    """Refuse a private key that others can read."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}") from None
    if mode & 0o077:
        raise RequestError(f"{path} is a private key, and others can read it; first run: chmod 600 {path}")
    return path
