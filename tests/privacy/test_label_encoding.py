"""How labels are written, and what keys are derived with: known answers."""

from __future__ import annotations

import hmac
import struct

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from label_parties import REFUSED

from fedstrata.core.errors import RequestError
from fedstrata.core.rng import Streams
from fedstrata.privacy.agreement import Agreement, derive
from fedstrata.privacy.labels.encoding import encode
from fedstrata.privacy.simulated import secrets

KNOWN = [
    (False, "3f000000000000000100"),
    (True, "3f000000000000000101"),
    (0, "69000000000000000100"),
    (7, "69000000000000000107"),
    (-1, "690000000000000001ff"),
    (127, "6900000000000000017f"),
    (128, "6900000000000000020080"),
    (-128, "69000000000000000180"),
    (-129, "690000000000000002ff7f"),
    (2**64, "690000000000000009010000000000000000"),
    (7.0, "660000000000000008401c000000000000"),
    (0.0, "6600000000000000080000000000000000"),
    (-0.0, "6600000000000000080000000000000000"),
    (float("-inf"), "660000000000000008fff0000000000000"),
    ("7", "73000000000000000137"),
    ("", "730000000000000000"),
    ("é", "730000000000000002c3a9"),
    (b"7", "62000000000000000137"),
]


def by_the_book(label):
    """Encode a label by another formula than the library's: bits written out as text."""
    if isinstance(label, bool):
        tag, value = "?", ["00", "01"][label]
    elif isinstance(label, int):
        size = next(n for n in range(1, 99) if -(1 << 8 * n - 1) <= label < 1 << 8 * n - 1)
        tag, value = "i", f"{label % (1 << 8 * size):0{2 * size}x}"
    elif isinstance(label, float):
        [bits] = struct.unpack("<Q", struct.pack("<d", 0.0 if label == 0 else label))
        tag, value = "f", f"{bits:016x}"
    elif isinstance(label, str):
        tag, value = "s", label.encode().hex()
    else:
        tag, value = "b", label.hex()
    return f"{ord(tag):02x}{len(value) // 2:016x}{value}"


@pytest.mark.parametrize(("label", "hexed"), KNOWN, ids=lambda x: repr(x)[:12])
def test_known_encodings(label, hexed):
    assert encode(label).hex() == hexed == by_the_book(label)


LABELS = st.one_of(
    st.booleans(),
    st.integers(),
    st.integers(-3, 3),
    st.floats(allow_nan=False),
    st.text(max_size=3),
    st.binary(max_size=3),
)


@given(LABELS, LABELS)
def test_labels_are_written_alike_only_if_they_are_the_same(a, b):
    assert encode(a).hex() == by_the_book(a)
    assert (encode(a) == encode(b)) == (type(a) is type(b) and a == b)
    assert encode(a) == encode(b) or not encode(b).startswith(encode(a))


@pytest.mark.parametrize(
    ("scalar", "plain"),
    [
        (np.int8(7), 7),
        (np.uint64(2**63), 2**63),
        (np.bool_(True), True),
        (np.float32(0.5), 0.5),
        (np.float64(7), 7.0),
        (np.str_("7"), "7"),
        (np.bytes_(b"7"), b"7"),
    ],
)
def test_numpy_scalars_are_read_as_the_plain_type(scalar, plain):
    assert encode(scalar) == encode(plain)


@pytest.mark.parametrize("label", [float("nan"), np.float32("nan"), None, (1, 2), 1j, np.datetime64("2020"), "\ud800"])
def test_what_is_no_label_is_refused(label):
    with pytest.raises(RequestError, match="allowed"):
        encode(label)


def hkdf(secret, salt, info, size):
    """RFC 5869, written out."""
    key, out, block = hmac.digest(salt or bytes(32), secret, "sha256"), b"", b""
    while len(out) < size:
        block = hmac.digest(key, block + info + bytes([len(out) // 32 + 1]), "sha256")
        out += block
    return out[:size]


@pytest.mark.parametrize(
    ("secret", "salt", "info", "okm"),
    [
        (
            b"\x0b" * 22,
            bytes(range(13)),
            bytes(range(0xF0, 0xFA)),
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
        ),
        (
            b"\x0b" * 22,
            b"",
            b"",
            "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8",
        ),
    ],
)
def test_derived_keys_are_those_of_rfc_5869(secret, salt, info, okm):
    assert derive(secret, salt, info, 42).hex() == hkdf(secret, salt, info, 42).hex() == okm


def test_agreement_is_that_of_rfc_7748():
    a = Agreement(3, _x25519("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"))
    b = Agreement(1, _x25519("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"))
    assert a.public.hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    assert b.public.hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    shared = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
    pair = a.pair(1, b.public, b"tr")
    assert pair == b.pair(3, a.public, b"tr")
    assert pair.mask + pair.wrap == hkdf(shared, b"tr", b"pair|1|3", 64)


def _x25519(hexed):
    return X25519PrivateKey.from_private_bytes(bytes.fromhex(hexed))


@pytest.mark.parametrize("point", [bytes(32), b"\1" + bytes(31)])
def test_a_public_key_that_gives_everybody_the_same_secret_is_refused(point):
    with REFUSED(match="no proper public key"):
        Agreement.new(0, secrets(Streams(0), "x", 0)).pair(1, point, b"")
