"""The gate before Flower: what other machines, browsers on this one and strangers reach, and how much they can send."""

from __future__ import annotations

import asyncio
import json
import socket
from base64 import b64encode
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from deployed import through
from looping import run_loop

from fedstrata.core.web_limits import impatient
from fedstrata.deploy import node_signature
from fedstrata.deploy.node_signature import KnownKeys
from fedstrata.deploy.server import auth_proxy
from fedstrata.deploy.server.auth_proxy import GATE, Gate
from fedstrata.deploy.server.run_launcher import SOON, SUBMIT


@pytest.mark.parametrize(
    "path", ["/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/acquire-task", "/docs", SUBMIT, SOON]
)
def test_other_machines_reach_only_what_node_keys_guard(path):
    assert through("/v1/fleet/pull-messages", "10.0.0.2") == "app"
    assert through("/health", "10.0.0.2") == "app"
    assert through(path, "10.0.0.2") == "http.response.start 404"
    assert through(f"/v1/fleet/..{path}", "10.0.0.2") == "app", "such a path is no route of Flower's"
    assert through(path, None) == "http.response.start 404", "an unknown caller is another machine"
    assert through(path, "127.0.0.1") == "app"
    assert through(path, "::1") == "app"
    assert through(path, "::ffff:127.0.0.1") == "app"
    assert through(path, "10.0.0.1") == "app", "the server itself, under its own address"
    assert through(path, "::ffff:10.0.0.2") == "http.response.start 404"


def test_the_gate_shows_that_it_is_there_and_takes_no_web_sockets():
    assert through(GATE, "10.0.0.2") == "http.response.start 204"
    assert through(GATE, "127.0.0.1") == "http.response.start 204"
    assert through("/v1/fleet/x", "127.0.0.1", kind="websocket") == "websocket.close"
    assert through("", None, kind="lifespan") == "app"


CONTROL, FLEET = "/v1/control/start-run", "/v1/fleet/push-object"


@pytest.mark.parametrize("path", [CONTROL, FLEET, "/v1/runtime/acquire-task", SUBMIT, SOON])
def test_a_page_in_a_browser_on_the_servers_machine_is_refused(path):
    """It can call loopback, also under a name of its own that leads there (DNS rebinding)."""
    assert through(path, "127.0.0.1", origin="https://evil.example") == "http.response.start 403"
    assert through(path, "127.0.0.1", origin="null") == "http.response.start 403"
    assert through(path, "127.0.0.1", sec_fetch_site="same-origin") == "http.response.start 403"
    assert through(path, "127.0.0.1", host="evil.example:8000") == "http.response.start 403"
    assert through(path, "127.0.0.1", host="127.0.0.1.evil.example") == "http.response.start 403"
    assert through(path, "127.0.0.1", host="") == "http.response.start 403"
    for own in ("localhost:8000", "127.0.0.1", "[::1]:8000", "10.0.0.1:8000", socket.gethostname()):
        assert through(path, "127.0.0.1", host=own) == "app"


def test_sites_on_other_machines_call_the_server_as_they_like():
    assert through(FLEET, "10.0.0.2", host="fl.example.org:8000") == "app"
    assert through(FLEET, "10.0.0.2", host="fl.example.org:8000", origin="https://x") == "http.response.start 403"


def test_a_body_that_no_request_of_ours_has_is_not_read():
    assert through(FLEET, "10.0.0.2", content_length=str(8 << 20)) == "app"
    assert through(FLEET, "10.0.0.2", content_length="000") == "app"
    for much in (str(17 << 20), "9" * 500, "0" * 20 + "99999999999", "0" * 500 + str(17 << 20), "-1", "x"):
        assert through(FLEET, "10.0.0.2", content_length=much) == "http.response.start 413"
    assert through(FLEET, "10.0.0.2", transfer_encoding="chunked") == "http.response.start 411"


@pytest.fixture
def site(tmp_path):
    """Return the keys that a server knows, and what writes the headers of the site they belong to."""
    key = ec.generate_private_key(ec.SECP384R1())
    written = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode() + " a\n"
    (tmp_path / "nodes.json").write_text(json.dumps({"a": {"node": "1", "key": written}}))

    def sign(signer=key, at=None):
        time = (at or datetime.now(UTC)).isoformat()
        pem = signer.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        signature = signer.sign(time.encode(), ec.ECDSA(SHA256()))
        told = {"flwr_public_key": pem, "flwr_signature": signature}
        return {"flwr_timestamp": time} | {name: b64encode(value).decode() for name, value in told.items()}

    return KnownKeys(tmp_path / "nodes.json"), sign


def test_with_keys_only_what_a_site_signed_is_read(site, tmp_path):
    keys, sign = site
    stranger, ago = ec.generate_private_key(ec.SECP384R1()), datetime.now(UTC) - timedelta(hours=1)
    assert through(FLEET, "10.0.0.2", keys=keys, **sign()) == "app"
    assert through("/health", "10.0.0.2", keys=keys) == "app"
    for wrong in ({}, sign(stranger), sign(at=ago), sign() | {"flwr_signature": sign(stranger)["flwr_signature"]}):
        assert through(FLEET, "10.0.0.2", keys=keys, **wrong) == "http.response.start 404"
        assert through(FLEET, "127.0.0.1", keys=keys, **wrong) == "http.response.start 404"
    for odd in ("", "!", "a" * 5000, "\u00e9"):
        assert through(FLEET, "10.0.0.2", keys=keys, **(sign() | {"flwr_public_key": odd})).endswith("404")
        assert through(FLEET, "10.0.0.2", keys=keys, **(sign() | {"flwr_timestamp": odd})).endswith("404")
    (tmp_path / "nodes.json").unlink()
    assert through(FLEET, "10.0.0.2", keys=keys, **sign()) == "http.response.start 404", "nobody is known"


def test_flower_signs_as_the_gate_expects():
    constants, common = pytest.importorskip("flwr.supercore.constant"), pytest.importorskip("flwr.common.constant")
    assert node_signature.KEY == constants.FLEET_HTTP_PUBLIC_KEY_HEADER
    assert node_signature.SIGNATURE == constants.FLEET_HTTP_SIGNATURE_HEADER
    assert node_signature.TIME == common.TIMESTAMP_HEADER


def test_who_falls_silent_in_the_middle_of_a_body_is_given_up(monkeypatch):
    monkeypatch.setattr(auth_proxy, "SILENCE", 0.01)
    heard = []

    async def app(scope, receive, send):
        heard.extend([await receive(), await receive()])

    pieces = [{"type": "http.request", "body": b"x", "more_body": True}]

    async def receive():
        return pieces.pop() if pieces else await asyncio.Event().wait()

    scope = {"type": "http", "path": FLEET, "client": ("10.0.0.2", 5), "server": ("10.0.0.1", 8000)}
    run_loop(Gate(app)(scope, receive, None))
    assert [message["type"] for message in heard] == ["http.request", "http.disconnect"]


def test_connections_that_ask_for_nothing_are_closed():
    """Four hundred half-open ones were held without end."""
    uvicorn = pytest.importorskip("uvicorn")
    from uvicorn.protocols.http.auto import AutoHTTPProtocol  # noqa: PLC0415

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async def scenario():
        limits = {"http": impatient(AutoHTTPProtocol, 0.1), "log_level": "error", "lifespan": "off", "ws": "none"}
        server = uvicorn.Server(uvicorn.Config(app, **limits))
        with socket.create_server(("127.0.0.1", 0)) as door:
            serving = asyncio.create_task(server.serve([door]))
            port = door.getsockname()[1]
            idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
            for _, half in idle[::2]:
                half.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")  # and never the rest
            ends = [await asyncio.wait_for(_end(reader), 60) for reader, _ in idle]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            answer = await asyncio.wait_for(reader.read(), 60)
            for _, each in [*idle, (reader, writer)]:
                each.close()
            server.should_exit = True
            await serving
        return ends, answer

    ends, answer = run_loop(scenario())
    assert set(ends) == {b""}
    assert answer.endswith(b"ok")


async def _end(reader):
    try:
        return await reader.read()
    except ConnectionError:
        return b""
