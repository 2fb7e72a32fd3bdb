"""Who gets into a federation, and what its commands say: real processes with keys and TLS."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest
import tomli_w
from staging import SITES, wait_for

from fedstrata.deploy import flower, keys
from fedstrata.deploy.asking import ask
from fedstrata.deploy.run_app import pyproject
from fedstrata.deploy.server.auth_proxy import GATE

pytestmark = pytest.mark.sites


def test_the_server_speaks_tls_and_its_certificate_is_checked(federation, tmp_path):
    address, folder = federation.address, federation.folder
    assert ask(address, "/health", folder / "keys/sites/a/ca.crt") == 200
    assert ask(address, GATE, folder / "keys/sites/a/ca.crt") == 204
    keys.make(tmp_path / "others", ["e"])
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        ask(address, "/health", tmp_path / "others/sites/e/ca.crt")
    with pytest.raises(OSError, match=r"[Cc]losed|[Rr]eset|refused"):
        urllib.request.urlopen(f"http://{address}/health", timeout=60)


def test_sites_are_up_under_their_names_and_strangers_are_refused(federation, tmp_path):
    keys.make(tmp_path / "others", ["f"])
    theirs, digits = str(tmp_path / "others/sites/f"), ("--data", "digits")
    status, stranger, second, other, plain, broken = federation.calls(
        (0, ["status", "--server", federation.address, "--json"]),
        (2, [*federation.site("d"), *digits, "--patience", "0"]),
        (2, [*federation.site("a"), *digits]),
        (2, [*federation.site("f")[:-1], theirs, *digits]),
        (2, [*federation.site("g")[:-2], "--insecure", *digits]),
        (2, [*federation.site("e"), "--data", "nowhere.csv"]),
    )
    rows = json.loads(status)["sites"]
    assert [(row["site"], row["up"], row["last_contact"]) for row in rows] == [(s, True, "now") for s in SITES]
    assert f"the server at {federation.address} does not take site d: it does not know the key" in stranger
    assert "site a is already running on this machine" in second
    assert "the certificate of the server is not to be trusted" in other
    assert "are they of another federation?" in other
    assert "leave out --insecure" in plain
    assert "nowhere.csv" in broken
    assert "its data cannot be served" in broken


def test_a_program_that_the_server_sends_is_not_run_at_a_site(federation, tmp_path):
    """Whoever controls the server submits an app of his own."""
    app, home, trace = tmp_path / "theirs", federation.there.folder, tmp_path / "was-here"
    app.mkdir()
    told = pyproject()
    told["tool"]["flwr"]["app"] |= {"components": {"serverapp": "their_app:server", "clientapp": "their_app:client"}}
    (app / "pyproject.toml").write_text(tomli_w.dumps(told))
    (app / "their_app.py").write_text(THEIRS.replace("WHERE", str(trace)))
    number = str(flower.flwr(home, ["run", str(app), flower.CONNECTION])["run-id"])
    wait_for(lambda: all("not fedstrata's: it holds other files" in federation.log(site) for site in SITES))
    flower.flwr(home, flower.stopping(number))
    assert trace.with_suffix(".server").exists(), "the server itself ran it"
    assert not trace.with_suffix(".site").exists()


THEIRS = """
import time
from pathlib import Path
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server = ServerApp()
client = ClientApp()

@server.main()
def main(grid, context):
    Path("WHERE.server").touch()
    grid.push_messages([Message(RecordDict(), node, "train") for node in grid.get_node_ids()])
    time.sleep(100)

@client.train()
def train(message, context):
    Path("WHERE.site").touch()
    return Message(RecordDict(), reply_to=message)
"""
