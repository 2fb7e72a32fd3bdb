"""Certificates end: said weeks before and every day, and named as the reason where one has ended."""

from __future__ import annotations

import json
import shutil
import ssl
import threading
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from deployed import a_server

from fedstrata.core.errors import FedstrataError, RequestError
from fedstrata.deploy import certificate_watch, flower, keys, logs, state
from fedstrata.deploy.asking import ask
from fedstrata.deploy.authority import Authority
from fedstrata.deploy.certificate_watch import DAY, LOOK, CertificateWatch
from fedstrata.deploy.operators import status
from fedstrata.deploy.server import federation_server
from fedstrata.deploy.site import client
from fedstrata.deploy.site.fetch import Shelf
from fedstrata.deploy.site.kept_connection import KeptConnection

AGO = timedelta(hours=-12)  # no shorter: a certificate must end after it begins, a day before it is made


@pytest.fixture
def own(made, tmp_path):
    """A federation of one's own, to change."""
    return shutil.copytree(made, tmp_path / "keys")


@pytest.fixture
def ended(own, monkeypatch):
    """The same, with a server's certificate that has ended."""
    with monkeypatch.context() as short:
        short.setattr(keys, "VALID", AGO)
        Authority.open(own).renew("server")
    return own


@contextmanager
def served(folder):
    """Answer 204 to everything, with the certificate of a server's folder."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as there:
        there.handle_error = lambda *_: None  # callers that do not trust it hang up
        there.socket = context.wrap_socket(there.socket, server_side=True)
        threading.Thread(target=there.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{there.server_port}"
        there.shutdown()


def end_of(folder):
    return keys.ends(folder)["server.crt"]


def test_a_client_says_that_the_certificate_of_the_server_has_ended_and_what_renews_it(ended):
    with served(ended / "server") as address:
        site = client.CheckedClient("a", address, ended / "sites/a", 0.0, {}, {}, [])
        with pytest.raises(RequestError) as refused:
            client._reach(site, print)
        with pytest.raises(FedstrataError, match="the server's certificate has ended on"):
            Shelf("a", address, ended / "sites/a").runs()
    assert str(refused.value) == (
        f"--server = {address}: the server's certificate has ended on {end_of(ended / 'server'):%Y-%m-%d}; the server "
        "renews it: fedstrata deploy keys renew DIR server, and start the server again with the new server.key and "
        "server.crt"
    )


def test_what_is_said_to_type_renews_it(ended, cli):
    with pytest.raises(RequestError, match=r"server\.crt ended on .*; renew it: ") as refused:
        keys.of_server(ended / "server", "0.0.0.0")
    words = str(refused.value).partition("renew it: fedstrata ")[2].split()
    assert words == ["deploy", "keys", "renew", str(ended), "server"]
    assert cli(*words)[0] == 0
    assert keys.of_server(ended / "server", "0.0.0.0")
    with served(ended / "server") as address:
        client._reach(client.CheckedClient("a", address, ended / "sites/a", 0.0, {}, {}, []), pytest.fail)


def test_an_authority_that_has_ended_is_told_from_a_server_s_certificate(tmp_path, monkeypatch):
    monkeypatch.setattr(keys, "AUTHORITY", AGO)
    keys.make(tmp_path / "keys", ["a"])
    own = tmp_path / "keys"
    with pytest.raises(RequestError, match=r"ca\.crt, the authority's certificate, ended on .*; make new keys for all"):
        keys.of_server(own / "server", "0.0.0.0")
    with served(own / "server") as address:
        site = client.CheckedClient("a", address, own / "sites/a", 0.0, {}, {}, [])
        with pytest.raises(RequestError, match=r"sites/a/ca\.crt, the certificate of the federation's authority, has"):
            client._reach(site, print)


def test_status_says_what_ended_and_not_that_the_network_is_down(ended, monkeypatch, cli, flower_is_there):
    def call(*_):
        raise flower.FlowerError("supernode", "check your network connection")

    monkeypatch.setattr(flower, "flwr", call)
    with served(ended / "server") as address:
        there = a_server(host="127.0.0.1", port=int(address.rpartition(":")[2]), keys=str(ended / "server"))
        state.private(there.folder)
        monkeypatch.setattr(federation_server, "find_server", lambda *_: there)
        code, out, err = cli("deploy", "status")
        with pytest.raises(FedstrataError, match="the server's certificate has ended on"):
            federation_server.hand_in(there, {})
    assert (code, out) == (1, "")
    warned, said = err.splitlines()
    assert warned.startswith(f"WARNING: {ended}/server/server.crt ended on ")
    assert "the server's certificate has ended on" in said
    assert f"fedstrata deploy keys renew {ended} server" in said, "where the keys were made, as it is typed"
    assert "network" not in err
    Authority.open(ended).renew("server")
    with served(ended / "server") as address:
        there = a_server(host="127.0.0.1", port=int(address.rpartition(":")[2]), keys=str(ended / "server"))
        with pytest.raises(flower.FlowerError, match="check your network connection"):
            status.sites(there)


def test_how_long_ago_a_certificate_ended_is_said_in_words(own, cli, monkeypatch):
    end = end_of(own / "server")

    def said(**since):
        return keys.expiring(own / "server", end + timedelta(**since))[0].partition("server.crt ")[2].partition(";")[0]

    assert said(days=3, hours=1) == f"ended on {end:%Y-%m-%d}, 3 days ago"
    assert said(days=1) == f"ended on {end:%Y-%m-%d}, 1 day ago"
    assert said(hours=2) == f"ended on {end:%Y-%m-%d}, less than a day ago"
    assert said(hours=-2) == f"ends on {end:%Y-%m-%d} (less than a day from now)"
    monkeypatch.setattr(keys, "VALID", AGO)
    Authority.open(own).renew("server")
    _, _, err = cli("deploy", "keys", "show", str(own))
    assert f"less than a day ago; renew it: fedstrata deploy keys renew {own} server, and start" in err
    assert "-1 days" not in err


def test_a_site_reads_from_its_connection_when_the_server_s_certificate_ends(own):
    with served(own / "server") as address:
        line = KeptConnection(address, own / "sites/a/ca.crt")
        assert line.certificate_end is None
        assert line.get("/", {})[0] == 204
        line.close()
    assert line.certificate_end == end_of(own / "server")


def test_a_site_speaks_of_the_server_s_certificate_every_day_and_once_more_when_it_ended(own, tmp_path):
    end = end_of(own / "server")
    clock, now, said = [0.0], [end - timedelta(days=30)], []
    logs.keep_log(tmp_path)
    watch = CertificateWatch(own / "sites/a", said.append, "h:8000", lambda: clock[0], lambda: now[0])

    def turn(known=end, **later):
        clock[0] += timedelta(**later).total_seconds()
        now[0] += timedelta(**later)
        watch.turn(known)
        return len(said)

    assert turn(None) == 0, "nobody has asked the server yet"
    assert turn() == 1
    assert turn(seconds=LOOK) == turn(hours=20) == 1
    assert turn(seconds=DAY) == 2
    assert said[0] == (
        f"WARNING: the certificate of the server at h:8000 ends on {end:%Y-%m-%d} (30 days from now); its server "
        f"renews it: {keys.renewal()}, {keys.RESTART}"
    )
    assert turn(days=28) == 3
    assert turn(hours=23) == 4, "it has ended"
    assert "less than a day ago" in said[-1]
    assert turn(end + timedelta(days=700), hours=1) == 4, "it was renewed"
    lines = [json.loads(line) for line in (tmp_path / logs.FILE).read_text().splitlines()]
    assert [(line["event"], line["level"], line["ends"]) for line in lines] == [
        ("certificate_ends", "warning", end.isoformat())
    ] * 4


def test_a_certificate_that_is_not_to_be_trusted_for_another_reason_is_not_said_to_have_ended(ended, tmp_path):
    keys.make(tmp_path / "other", ["a"])
    authority = tmp_path / "other/sites/a/ca.crt"
    with served(ended / "server") as address, pytest.raises(OSError, match="verify failed") as refused:
        ask(address, "/", authority)
    assert certificate_watch.why_ended(refused.value, address, authority) is None
    assert certificate_watch.why_ended(OSError("refused"), address, authority) is None
