"""Who gets into a federation, and what its commands say: real processes with keys and TLS."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest
import tomli_w
from staging import SITES, Started, wait_for

from fedstrata.deploy import flower, keys, server, submit
from fedstrata.deploy.gate import GATE


def test_the_server_speaks_tls_and_its_certificate_is_checked(federation, tmp_path):
    address, folder = federation.address, federation.folder
    assert server.ask(address, "/health", folder / "keys/sites/a/ca.crt") == 200
    assert server.ask(address, GATE, folder / "keys/sites/a/ca.crt") == 204
    keys.make(tmp_path / "others", ["e"])
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        server.ask(address, "/health", tmp_path / "others/sites/e/ca.crt")
    with pytest.raises(OSError, match=r"[Cc]losed|[Rr]eset|refused"):
        urllib.request.urlopen(f"http://{address}/health", timeout=5)


def test_sites_are_up_under_their_names_and_strangers_are_refused(federation, tmp_path):
    """All at once, because each of these commands takes a while to start."""
    keys.make(tmp_path / "others", ["e"])
    theirs, digits = str(tmp_path / "others/sites/e"), ("--data", "digits")
    commands = {
        name: (Started(federation.folder, name, *args), code, said)
        for name, args, code, said in [
            ("status", ["status", "--server", federation.address, "--json"], 0, ""),
            ("stranger", [*federation.site("d"), *digits, "--patience", "0"], 2, "does not take site d: it does not"),
            ("second", [*federation.site("a"), *digits], 2, "site a is already running on this machine"),
            ("other", [*federation.site("e")[:-1], theirs, *digits], 2, "certificate of the server is not to be trust"),
            ("plain", [*federation.site("f")[:-2], "--insecure", *digits], 2, "leave out --insecure"),
        ]
    }
    for command, code, said in commands.values():
        command.ends(code)
        assert said in command.said
    rows = json.loads(commands["status"][0].said)["sites"]
    assert [(row["site"], row["up"], row["last_contact"]) for row in rows] == [(s, True, "now") for s in SITES]


def test_data_that_cannot_be_served_end_the_site(federation):
    said = federation.call("broken", *federation.site("d"), "--data", "nowhere.csv", code=2)
    assert "nowhere.csv" in said
    assert "its data cannot be served" in said


def test_a_program_that_the_server_sends_is_not_run_at_a_site(federation, tmp_path):
    """Whoever controls the server submits an app of his own."""
    app, home, trace = tmp_path / "theirs", federation.there.folder, tmp_path / "was-here"
    app.mkdir()
    told = submit.pyproject()
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
