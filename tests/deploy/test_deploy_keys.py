"""`fedstrata deploy keys`: every party gets what it needs, readable by it alone."""

from __future__ import annotations

import os
import shutil
import ssl
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from fedstrata.core.errors import RequestError
from fedstrata.deploy import keys
from fedstrata.deploy.server import federation_server
from fedstrata.remote.credentials import Credentials


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_every_party_gets_its_own_folder(made):
    site = {"ca.crt", "node.key", "node.pub", "identity.json", "roll.json"}
    assert {p.name for p in made.iterdir()} == {"ca", "server", "sites"}
    assert {p.name for p in (made / "ca").iterdir()} == {"ca.key", "ca.crt", "roll.json"}
    assert {p.name for p in (made / "sites").iterdir()} == {"a", "b", "c"}
    for name in "abc":
        assert {p.name for p in (made / "sites" / name).iterdir()} == site
    assert {p.name for p in (made / "server").iterdir()} == {
        *("ca.crt", "server.crt", "server.key", "identity.json", "roll.json")
    }
    assert sorted(Credentials.load(made / "server").roll.nodes) == ["a", "b", "c"]


def test_private_keys_are_readable_by_their_owner_alone(made):
    secret = {"ca.key", "server.key", "node.key", "identity.json"}
    files = [p for p in made.rglob("*") if p.is_file()]
    assert {p.name for p in files if mode(p) == 0o600} == secret
    assert {mode(p) for p in files if p.name not in secret} == {0o644 & ~_umask()}
    assert {mode(p) for p in [made, *made.rglob("*")] if p.is_dir()} == {0o700}


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_node_keys_have_the_format_that_flower_reads(made):
    known = set()
    for name in "abc":
        private = load_ssh_private_key((made / "sites" / name / "node.key").read_bytes(), None)
        public = load_ssh_public_key((made / "sites" / name / "node.pub").read_bytes())
        assert isinstance(private, ec.EllipticCurvePrivateKey)
        assert private.curve.name == "secp384r1"
        assert private.public_key() == public
        assert Credentials.load(made / "server").roll.nodes[name] == (made / "sites" / name / "node.pub").read_text()
        known.add((made / "sites" / name / "node.key").read_bytes())
    assert len(known) == 3


def test_the_certificate_is_for_all_names_and_signed_by_the_authority(made):
    authority = x509.load_pem_x509_certificate((made / "ca/ca.crt").read_bytes())
    certificate = x509.load_pem_x509_certificate((made / "server/server.crt").read_bytes())
    certificate.verify_directly_issued_by(authority)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(n.value) for n in names] == ["flower.example.org", "10.1.2.3", "localhost", "127.0.0.1", "::1"]
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    for place in (made / "server", *(made / "sites").iterdir()):
        assert (place / "ca.crt").read_bytes() == (made / "ca/ca.crt").read_bytes()


def test_tls_takes_the_certificate_as_strictly_as_python_can(made):
    """A handshake in memory, with the strict checks that newer versions of Python have on."""
    trust = ssl.create_default_context(cafile=str(made / "sites/a/ca.crt"))
    trust.verify_flags |= ssl.VERIFY_X509_STRICT
    proof = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    proof.load_cert_chain(made / "server/server.crt", made / "server/server.key")
    for name, good in (("127.0.0.1", True), ("flower.example.org", True), ("other.example.org", False)):
        ends = [ssl.MemoryBIO() for _ in range(4)]
        here = trust.wrap_bio(ends[0], ends[1], server_hostname=name)
        there = proof.wrap_bio(ends[2], ends[3], server_side=True)
        try:
            for _ in range(4):
                for end, out, into in ((here, ends[1], ends[2]), (there, ends[3], ends[0])):
                    with suppress(ssl.SSLWantReadError):
                        end.do_handshake()
                    into.write(out.read())
            outcome = True
        except ssl.SSLCertVerificationError:
            outcome = False
        assert outcome is good, name


def test_the_roll_has_every_party_and_everybody_has_the_same(made):
    credentials = {name: Credentials.load(made / "sites" / name) for name in "abc"} | {
        "server": Credentials.load(made / "server")
    }
    assert len({(made / p / "roll.json").read_bytes() for p in ("server", "sites/a", "sites/b", "sites/c")}) == 1
    key_directory = credentials["a"].key_directory(["a", "b", "c"])
    assert key_directory.server == credentials["server"].identity.public
    assert list(key_directory.clients) == [credentials[name].identity.public for name in "abc"]
    signed = credentials["b"].identity.sign(b"said")
    key_directory.key(1).verify(signed, b"said")


def test_existing_keys_are_never_touched(cli, tmp_path):
    assert cli("deploy", "keys", "f", "--sites", "a,b")[0] == 0
    before = {p: p.read_bytes() for p in (tmp_path / "f").rglob("*") if p.is_file()}
    code, _, err = cli("deploy", "keys", "f", "--sites", "a,b,c")
    assert code == 2
    assert "f is there already, and keys are never overwritten" in err
    assert {p: p.read_bytes() for p in (tmp_path / "f").rglob("*") if p.is_file()} == before
    assert [p.name for p in tmp_path.iterdir()] == ["f"], "nothing half-made is left"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--sites", ""], "--sites is empty"),
        (["--sites", "a,a"], '--sites names "a" twice'),
        (["--sites", "a,../b"], '--sites = "../b" is not valid; allowed: letters, digits'),
        (["--sites", "a", "--host", "not a host"], '--host = "not a host" is not valid; allowed: a host name'),
        (["--sites", "a", "--host", "0.0.0.0"], "--host = 0.0.0.0 names no machine"),
    ],
)
def test_keys_of_nobody_are_not_made(cli, tmp_path, args, said):
    code, _, err = cli("deploy", "keys", "f", *args)
    assert code == 2
    assert said in err
    assert list(tmp_path.iterdir()) == []


def test_keys_say_where_they_belong(cli):
    code, out, _ = cli("deploy", "keys", "f", "--sites", "b, a", "--host", "h.example")
    assert code == 0
    assert "f/server    belongs on the server's machine" in out
    assert out.index("sites/a") < out.index("sites/b")


def test_a_key_that_others_can_read_is_refused(made, tmp_path):
    mine = shutil.copytree(made / "sites/a", tmp_path / "a")
    assert keys.of_site(mine, "a") == mine
    (mine / "node.key").chmod(0o640)
    with pytest.raises(RequestError, match="chmod 600"):
        keys.of_site(mine, "a")


def test_keys_of_another_site_or_server_are_refused(made, tmp_path):
    with pytest.raises(RequestError, match="holds the keys of site a, not of site b"):
        keys.of_site(made / "sites/a", "b")
    with pytest.raises(RequestError, match=r"has no node\.key"):
        keys.of_site(made / "server", "a")
    with pytest.raises(RequestError, match=r"has no server\.crt"):
        keys.of_server(made / "sites/a", "0.0.0.0")
    with pytest.raises(RequestError, match=r"certificate .* is for flower\.example\.org, 10\.1\.2\.3"):
        keys.of_server(made / "server", "10.9.9.9")
    folder, names = keys.of_server(made / "server", "0.0.0.0")
    assert folder == made / "server"
    assert federation_server.public_name("0.0.0.0", names) == "flower.example.org"
    assert federation_server.public_name("127.0.0.1", names) == "127.0.0.1"
    keys.make(tmp_path / "other", ["a"])
    mixed = shutil.copytree(made / "server", tmp_path / "mixed")
    shutil.copy(tmp_path / "other/server/server.key", mixed / "server.key")
    with pytest.raises(RequestError, match="belongs to another key"):
        keys.of_server(mixed, "0.0.0.0")
