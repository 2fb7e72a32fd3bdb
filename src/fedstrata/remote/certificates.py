"""Certificates: an authority that nobody trusts but a federation's own sites, and what it vouches for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

SKEW = timedelta(days=1)  # clocks of sites may be that wrong


@dataclass(frozen=True)
class Certified:
    """A key, and a certificate for it."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def key_pem(self) -> bytes:
        """The key as a file holds it."""
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    @property
    def pem(self) -> bytes:
        """The certificate as a file holds it."""
        return self.certificate.public_bytes(Encoding.PEM)


def make_authority(name: str, valid: timedelta) -> Certified:
    """Make a certificate authority; it can vouch for hosts, and for no other authority."""
    key = ec.generate_private_key(ec.SECP384R1())
    subject = _name(name)
    builder = (
        _builder(key, subject, subject, valid)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
    )
    return Certified(key, builder.sign(key, SHA384()))


def certify(authority: Certified, name: str, hosts: Sequence[x509.GeneralName], valid: timedelta) -> Certified:
    """Make a key for a server, and a certificate for all its names and addresses."""
    key, issuer = ec.generate_private_key(ec.SECP384R1()), authority.certificate
    above = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    builder = (
        _builder(key, _name(name), issuer.subject, valid)
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage("digital_signature"), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(above), critical=False)
    )
    return Certified(key, builder.sign(authority.key, SHA384()))


def named_host(host: str) -> x509.GeneralName:
    """Return a host's name, or its address, as certificates have it."""
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    key: ec.EllipticCurvePrivateKey, subject: x509.Name, issuer: x509.Name, valid: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + valid)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(*allowed: str) -> x509.KeyUsage:
    usages = ["digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"]
    usages += ["key_cert_sign", "crl_sign", "encipher_only", "decipher_only"]
    return x509.KeyUsage(**{usage: usage in allowed for usage in usages})
