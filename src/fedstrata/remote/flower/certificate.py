"""A certificate for one run: made when it begins, trusted by nobody but its sites, gone with the process."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID = timedelta(days=90)
SKEW = timedelta(days=1)  # clocks of sites may be that wrong


def make_certificate(host: str) -> tuple[bytes, bytes, bytes]:
    """Return a key, a certificate for a host (name or address), and the authority that vouches for it, all as PEM.

    The authority's own key is forgotten at once: it can never vouch for anything else.
    """
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = _begun("fedstrata stream authority", "fedstrata stream authority", authority_key.public_key())
    authority = authority.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    authority = authority.add_extension(_usage(certificates=True), critical=True)
    server = _begun("fedstrata stream", "fedstrata stream authority", key.public_key())
    server = server.add_extension(x509.SubjectAlternativeName([_named(host)]), critical=False)
    server = server.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    server = server.add_extension(_usage(certificates=False), critical=True)
    server = server.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return (
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        server.sign(authority_key, SHA256()).public_bytes(Encoding.PEM),
        authority.sign(authority_key, SHA256()).public_bytes(Encoding.PEM),
    )


def _begun(subject: str, issuer: str, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in (subject, issuer)]
    builder = x509.CertificateBuilder().subject_name(names[0]).issuer_name(names[1]).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - SKEW).not_valid_after(now + VALID)


def _named(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not certificates,
        key_cert_sign=certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
