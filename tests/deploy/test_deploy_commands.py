"""`fedstrata deploy`: what it says to Flower and to sites, and the requests that it refuses."""

from __future__ import annotations

import errno
import os
import socket
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path

import pytest

from fedstrata.core.errors import RequestError
from fedstrata.core.storage import files
from fedstrata.deploy import flower, state
from fedstrata.deploy.site import client
from fedstrata.remote.site.policy.rules import SitePolicy


def options(command: list[str]) -> dict[str, str | None]:
    """Read `--name value` pairs."""
    found, words = {}, [*command, "--"]
    for word, follows in pairwise(words):
        if word.startswith("--"):
            found[word] = None if follows.startswith("--") else follows
    return found


def test_the_server_has_tls_and_node_keys_on_by_default(made, tmp_path):
    given = options(flower.superlink(tmp_path, "0.0.0.0", 8123, made / "server"))
    assert given["--host"] == "0.0.0.0"
    assert given["--port"] == "8123"
    assert given["--ssl-ca-certfile"] == str(made / "server/ca.crt")
    assert given["--ssl-certfile"] == str(made / "server/server.crt")
    assert given["--ssl-keyfile"] == str(made / "server/server.key")
    assert {"--enable-supernode-auth", "--disable-runtime-dependency-installation"} <= set(given)
    assert given["--database"] == str(tmp_path / "superlink.db")
    assert "--insecure" not in given
    open_one = options(flower.superlink(tmp_path, "127.0.0.1", 8000, None))
    assert "--insecure" in open_one
    assert open_one["--database"] == str(tmp_path / "insecure.db"), "who connected without a key is not let in later"
    assert not {"--enable-supernode-auth", "--ssl-certfile"} & set(open_one)


def test_a_site_proves_who_it_is_and_says_where_its_process_is(made):
    command = flower.supernode("h:8000", "a", Path("/run/a b/site"), made / "sites/a")
    given = options(command)
    assert command[3] == "fedstrata.deploy.site.supernode"
    assert given["--superlink"] == "h:8000"
    assert given["--isolation"] == "process", "it answers by itself, and has no port for others to do so"
    assert given["--root-certificates"] == str(made / "sites/a/ca.crt")
    assert given["--auth-supernode-private-key"] == str(made / "sites/a/node.key")
    assert tomllib.loads(given["--node-config"].replace("' ", "'\n")) == {"site": "a", "socket": "/run/a b/site"}
    assert "--insecure" not in given
    assert "--insecure" in flower.supernode("h:8000", "a", Path("/s"), None)


def test_flower_finds_its_own_home_and_keeps_quiet(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "corp.example")
    around = flower.environment(tmp_path)
    assert around["FLWR_HOME"] == str(tmp_path / "flwr")
    assert (around["FLWR_TELEMETRY_ENABLED"], around["FLWR_DISABLE_UPDATE_CHECK"]) == ("0", "1")
    assert around["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
    assert around["NO_PROXY"] == "corp.example,127.0.0.1,localhost"
    flower.configure(tmp_path, "127.0.0.1:8000", Path("/keys/ca.crt"))
    told = tomllib.loads((tmp_path / "flwr/config.toml").read_text())["superlink"]
    assert told == {
        "default": "fedstrata",
        "fedstrata": {"address": "127.0.0.1:8000", "root-certificates": "/keys/ca.crt"},
    }
    flower.configure(tmp_path, "127.0.0.1:8000", None)
    told = tomllib.loads((tmp_path / "flwr/config.toml").read_text())["superlink"]
    assert told["fedstrata"] == {"address": "127.0.0.1:8000", "insecure": True}


def test_what_flower_prints_is_read_wherever_it_stands():
    assert flower.read('Note: x\n{"success": true,\n "run-id": "7"}\n') == {"success": True, "run-id": "7"}
    assert flower.read("no JSON at all") == {}
    assert flower.read("{1: 2}") == {}


@pytest.mark.parametrize(
    ("text", "read"), [("h:8000", ("h", 8000)), ("10.0.0.1:1", ("10.0.0.1", 1)), ("[::1]:65535", ("::1", 65535))]
)
def test_addresses(text, read):
    assert state.address(text) == read
    assert state.join_address(*read) == text


@pytest.mark.parametrize("text", ["", "h", "h:", ":8000", "h:0", "h:65536", "http://h:80", "h x:80", "a@b:80", "h:-1"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(RequestError, match="HOST:PORT"):
        state.address(text)


def test_parts_of_a_set():
    assert client.read_part("0/3") == (0, 3)
    for text in ("3/3", "1", "1/", "-1/3", "a/b", "0/0"):
        with pytest.raises(RequestError, match="--partition"):
            client.read_part(text)


def test_a_site_says_what_it_has_in_three_ways(tmp_path):
    (tmp_path / "site.toml").write_text('[data]\nname = "digits"\n[train]\nseed = 5\n')
    told = client.describe_data("site.toml", {"data.clients": 4})
    assert (told.data.name, told.data.clients, told.train.seed) == ("digits", 4, 5)
    assert client.describe_data("digits", {}).data.name == "digits"
    own = client.describe_data("patients.csv", {"data.label": "kind"}).dump()["data"]
    assert (own["name"], own["path"], own["label"]) == ("own", "patients.csv", "kind")
    assert client.describe_data(None, {"data.name": "digits"}).data.name == "digits"
    with pytest.raises(RequestError, match="say what data this site has"):
        client.describe_data(None, {})
    with pytest.raises(RequestError, match=r"train\.rounds cannot be set"):
        client.describe_data("digits", {"train.rounds": 3})
    with pytest.raises(RequestError, match=r"data\.clases"):
        client.describe_data("digits", {"data.clases": 3})


def test_a_site_pins_the_enclave_that_it_trusts():
    pinned = client.describe_data("digits", {"privacy.enclave.measurement": "ab" * 48}).privacy.enclave
    assert (pinned.attestation, pinned.measurement) == ("sev-snp", "ab" * 48)
    assert client.describe_data("digits", {}).privacy.enclave.measurement is None
    with pytest.raises(RequestError, match=r"privacy\.enclave\.measurement = 'abc': 96 hexadecimal digits"):
        client.describe_data("digits", {"privacy.enclave.measurement": "abc"})
    with pytest.raises(RequestError, match="say what data this site has"):
        client.describe_data(None, {"privacy.enclave.measurement": "ab" * 48})
    with pytest.raises(RequestError, match=r"privacy\.aggregate cannot be set"):
        client.describe_data("digits", {"privacy.aggregate": "masked"})


def test_what_the_site_process_is_told(made):
    policy = SitePolicy(approval="ask")
    here = client.FederationClient(
        "a", "h:8000", made / "sites/a", {"name": "digits"}, 3, {"noise": 0.1}, (1, 3), policy=policy
    )
    assert here.config(Path("/s/site")) == {
        "site": "a",
        "socket": "/s/site",
        "server": "h:8000",
        "keys": str(made / "sites/a"),
        "state": str(state.of_site("a")),
        "policy": policy.model_dump(mode="json"),
        "folder": str(Path.cwd()),
        "data": {"data": {"name": "digits"}, "seed": 3},
        "enclave": {"noise": 0.1},
        "partition": [1, 3],
    }


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["server"], "say either --keys DIR/server"),
        (["server", "--insecure", "--keys", "k"], "say either --keys DIR/server"),
        (["server", "--keys", "nowhere"], "nowhere has no ca.crt"),
        (["client", "--server", "h:8000", "--site", "a"], "say either --keys DIR/sites/a"),
        (["client", "--server", "h", "--site", "a", "--insecure"], '--server = "h" is not valid'),
        (["client", "--server", "h:8000", "--site", "a/b", "--insecure"], '--site = "a/b" is not valid'),
        (["client", "--server", "h:8000", "--site", "a", "--insecure"], "say what data this site has"),
        (
            ["client", "--server", "h:1", "--site", "a", "--insecure", "--data", "digits", "--partition", "3/3"],
            "--partition",
        ),
        (["client", "--server", "h:1", "--site", "a", "--insecure", "--data", "x.toml"], "x.toml cannot be read"),
        (["run"], "--sites is required"),
        (["run", "--sites", "2"], "no server of yours runs on port 8000 of this machine; start one first"),
        (["run", "--sites", "2", "--server", "127.0.0.1:8123"], "fedstrata deploy server --port 8123"),
        (["run", "--sites", "2", "--set", "train.rounds=0"], "train.rounds = 0 is not valid"),
        (["run", "--sites", "2", "--set", "x=1", "--resume", "d"], "--resume takes the experiment from the run folder"),
        (["run", "--resume", "nowhere"], "nowhere is not a run folder"),
        (["status"], "no server of yours runs on port 8000"),
    ],
)
def test_a_wrong_request_ends_with_code_2(cli, flower_is_there, args, said):
    code, out, err = cli("deploy", *args)
    assert (code, out) == (2, "")
    assert said in err


@pytest.mark.parametrize("left", [[], ["failed.json"]])
def test_a_run_that_never_got_its_sites_is_begun_again_by_the_same_command(cli, tmp_path, flower_is_there, left):
    (tmp_path / "w4").mkdir()
    for name in left:
        (tmp_path / "w4" / name).write_text("{}")
    code, out, err = cli("deploy", "run", "--resume", "w4")
    assert (code, out) == (2, "")
    assert "--resume = w4: nothing of this run has begun" in err
    assert "without --resume and with --out w4" in err


@pytest.mark.parametrize(
    "args",
    [
        ["server", "--insecure"],
        ["client", "--server", "h:8000", "--site", "a", "--insecure", "--data", "digits"],
        ["run", "--sites", "2"],
        ["status"],
    ],
)
def test_without_flower_the_extra_is_named(cli, monkeypatch, args):
    monkeypatch.setattr(flower, "find_spec", lambda _: None)
    code, out, err = cli("deploy", *args)
    assert (code, out) == (2, "")
    assert 'pip install "fedstrata[flower]"' in err


def test_a_command_that_finds_a_full_disk_ends_with_one_line(cli, flower_is_there, monkeypatch):
    def full(path, *_):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(files, "write_atomically", full)
    words = ("--insecure", "--server", "127.0.0.1:1", "--site", "a", "--data", "digits")
    code, _, err = cli("deploy", "client", *words)
    assert code == 1
    (line,) = err.splitlines()
    assert line.startswith("error: ")
    assert "attend.json cannot be written: No space left on device; make room" in line


def test_a_port_that_is_taken_is_refused(cli, flower_is_there):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, _, err = cli("deploy", "server", "--insecure", "--port", str(port))
    assert code == 2
    assert f"--port {port} cannot be used on this machine" in err


def test_what_answers_and_is_no_server_of_ours_is_said_to_be_none():
    nobody = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    nobody.RequestHandlerClass = type("Handler", (BaseHTTPRequestHandler,), {"do_GET": lambda h: h.send_error(404)})
    threading.Thread(target=nobody.serve_forever, daemon=True).start()
    address = f"127.0.0.1:{nobody.server_address[1]}"
    site = client.CheckedClient("a", address, None, 0.0, {}, {}, [])
    try:
        with pytest.raises(RequestError, match=f"{address}: what answers there is no fedstrata server"):
            client._reach(site, print)
    finally:
        nobody.shutdown()
        nobody.server_close()
