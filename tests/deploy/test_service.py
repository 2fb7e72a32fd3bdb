"""Run like a service: packages, logs that do not grow for ever, and one port."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import shutil
import ssl
import stat
import subprocess
import tarfile
import tomllib
from pathlib import Path

import pytest
import yaml
from deployed import a_server
from looping import run_loop

from fedstrata.core.storage import json_log
from fedstrata.core.storage.archives import unpack
from fedstrata.deploy.authority import Authority
from fedstrata.deploy.server import one_port

# ---- packages ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def packed(made, tmp_path_factory):
    """Write the archives of a federation, with the command, and unpack them as `tar` does."""
    from typer.testing import CliRunner  # noqa: PLC0415

    from fedstrata.cli import app  # noqa: PLC0415

    folder = tmp_path_factory.mktemp("packed")
    words = ["deploy", "package", str(folder / "out"), "--keys", str(made), "--server", "fl.example.org:8443"]
    words += ["--data", "/data/patients.csv", "--set", "data.label=kind of it", "--metrics-port", "9100"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    for archive in (folder / "out").iterdir():
        assert stat.S_IMODE(archive.stat().st_mode) == 0o600
        with tarfile.open(archive) as file:
            unpack(file, folder)
    return folder


def test_every_site_gets_one_archive_with_its_own_keys_and_nobody_elses(packed, made):
    names = {path.name for path in (packed / "out").iterdir()}
    assert names == {f"fedstrata-{name}.tar.gz" for name in ("a", "b", "c", "server")}
    for site in "abc":
        root = packed / f"fedstrata-{site}"
        assert {path.name for path in root.iterdir()} == {
            *("start.sh", "data.toml", "site.toml", "keys", f"fedstrata-{site}.service", "README.md", ".dockerignore"),
            *("Dockerfile", "compose.yaml", "kubernetes.yaml"),
        }
        held = {path.name: path.read_bytes() for path in (root / "keys").iterdir()}
        assert held == {path.name: path.read_bytes() for path in (made / "sites" / site).iterdir()}
        assert stat.S_IMODE((root / "keys/node.key").stat().st_mode) == 0o600
        told = tomllib.loads((root / "data.toml").read_text())["data"]
        assert told == {"name": "own", "path": "/data/patients.csv", "label": "kind of it"}
    assert "a" in json.loads((packed / "fedstrata-server/keys/roll.json").read_text())["nodes"]


def test_who_was_revoked_gets_no_archive(made, tmp_path, cli):
    own = shutil.copytree(made, tmp_path / "keys")
    Authority.open(own).revoke("b")
    words = ("deploy", "package", str(tmp_path / "out"), "--keys", str(own), "--server", "fl.example.org:8443")
    assert cli(*words)[0] == 0
    assert sorted(path.name for path in (tmp_path / "out").glob("*")) == [
        f"fedstrata-{name}.tar.gz" for name in ("a", "c", "server")
    ]
    code, _, err = cli(*words, "--sites", "b")
    assert (code, '--sites names "b"' in err) == (2, True), err


def test_the_start_script_says_what_to_start(packed, tmp_path):
    """Run it, with a program in place of fedstrata that tells what it was told."""
    tells = tmp_path / "tells"
    tells.write_text('#!/bin/sh\nprintf "%s\\n" "$FEDSTRATA_STATE" "$@"\n')
    tells.chmod(0o755)
    around = {"PATH": os.environ["PATH"], "FEDSTRATA": str(tells)}

    def told(name, *more):
        script = packed / f"fedstrata-{name}/start.sh"
        done = subprocess.run([script, *more], env=around, capture_output=True, text=True, check=True, cwd=tmp_path)
        return done.stdout.splitlines()

    root = packed / "fedstrata-a"
    assert told("a", "--rest", "5") == [
        *(f"{root}/state", "deploy", "client", "--site", "a", "--server", "fl.example.org:8443"),
        *("--keys", f"{root}/keys", "--data", f"{root}/data.toml", "--policy", f"{root}/site.toml"),
        *("--metrics-port", "9100", "--metrics-host", "127.0.0.1", "--rest", "5"),
    ]
    around["FEDSTRATA_METRICS_HOST"] = "0.0.0.0"  # as the image has it
    assert told("a")[-2:] == ["--metrics-host", "0.0.0.0"]
    del around["FEDSTRATA_METRICS_HOST"]
    server = told("server")
    assert server[1:3] == ["deploy", "server"]
    assert server[5:] == [
        *("--host", "0.0.0.0", "--port", "8443", "--public", "fl.example.org"),
        *("--metrics-port", "9100", "--metrics-host", "127.0.0.1"),
    ]


def test_containers_are_not_root_cannot_write_their_root_and_open_no_port_but_for_figures(packed):
    figures = "127.0.0.1:9100:9100"
    for name, ports in (("a", [figures]), ("server", ["8443:8443", figures])):
        root = packed / f"fedstrata-{name}"
        one = yaml.safe_load((root / "compose.yaml").read_text())["services"]["fedstrata"]
        assert (one["user"], one["read_only"], one["cap_drop"]) == ("10001:10001", True, ["ALL"])
        assert one["security_opt"] == ["no-new-privileges:true"]
        assert one.get("ports") == ports
        assert "./keys:/opt/fedstrata/keys:ro" in one["volumes"]
        assert "USER 10001:10001" in (root / "Dockerfile").read_text()
        claim, pod = yaml.safe_load_all((root / "kubernetes.yaml").read_text())
        spec = pod["spec"]["template"]["spec"]
        assert (claim["kind"], pod["kind"], pod["spec"]["replicas"]) == ("PersistentVolumeClaim", "Deployment", 1)
        assert (spec["securityContext"]["runAsNonRoot"], spec["securityContext"]["runAsUser"]) == (True, 10001)
        for container in (*spec["containers"], *spec["initContainers"]):
            locked = container["securityContext"]
            assert (locked["readOnlyRootFilesystem"], locked["allowPrivilegeEscalation"]) == (True, False)
            mounts, volumes = container["volumeMounts"], {volume["name"] for volume in spec["volumes"]}
            assert {mount["name"] for mount in mounts} <= volumes
        assert "@" not in (root / "compose.yaml").read_text()


def test_the_unit_of_systemd_is_one(packed):
    unit = packed / "fedstrata-a/fedstrata-a.service"
    lines = unit.read_text().splitlines()
    for wanted in ("User=fedstrata", "ProtectSystem=strict", "NoNewPrivileges=yes", "Restart=on-failure"):
        assert wanted in lines
    assert "ExecStart=/opt/fedstrata-a/start.sh" in lines
    if shutil.which("systemd-analyze"):
        done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
        wrong = [line for line in done.stderr.splitlines() if "start.sh" not in line]  # it is not installed here
        assert not wrong


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--keys", "nowhere", "--server", "h:1"], "nowhere has no sites"),
        (["--server", "h"], '--server = "h" is not valid'),
        (["--server", "h:1", "--sites", "x"], '--sites names "x", which has no keys'),
        (["--server", "h:1", "--set", "train.rounds=3"], "train.rounds cannot be set"),
        (["--server", "h:1", "--policy", "nowhere.toml"], "nowhere.toml"),
    ],
)
def test_a_package_that_cannot_be_is_refused(cli, made, tmp_path, words, said):
    words = words if "--keys" in words else ["--keys", str(made), *words]
    code, _, err = cli("deploy", "package", str(tmp_path / "out"), *words)
    assert (code, said in err) == (2, True), err
    assert not (tmp_path / "out").exists()


# ---- logs ----------------------------------------------------------------------------------------------------------


def test_a_log_is_put_aside_when_it_is_full_and_the_oldest_goes(tmp_path, monkeypatch):
    monkeypatch.setattr(json_log, "LARGEST", 60)
    log, path = logging.Logger("x"), tmp_path / "log.jsonl"
    log.addHandler(json_log.JsonLines(path, site="a"))
    path.write_text("x" * 100)
    assert json_log.put_aside(path, 60, 2)
    for number in (1, 2):
        log.info("said", extra={"about": {"number": number}})
        assert json_log.put_aside(path, 1, 2)
    held = {p.name: p.read_text() for p in tmp_path.glob("log.jsonl.[0-9]")}
    assert set(held) == {"log.jsonl.1", "log.jsonl.2"}
    line = json.loads(held["log.jsonl.1"])
    assert (line["event"], line["number"], line["site"], line["level"]) == ("said", 2, "a", "info")
    assert not json_log.put_aside(path, 60), "there is none now"


def test_a_line_for_the_log_of_another_process_does_not_end_who_writes_it(tmp_path):
    json_log.append_event(tmp_path / "log.jsonl", "run_waits", logging.WARNING, path="p")
    line = json.loads((tmp_path / "log.jsonl").read_text())
    assert (line["event"], line["level"], line["path"], line["time"][-6:]) == ("run_waits", "warning", "p", "+00:00")
    json_log.append_event(tmp_path / "nowhere/log.jsonl", "run_waits")


def test_what_flower_prints_is_cut_while_it_is_open(tmp_path):
    path = tmp_path / "superlink.log"
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(handle, b"old" * 10)
        assert json_log.cut_off(path, 20)
        os.write(handle, b"new")
    finally:
        os.close(handle)
    assert (path.read_bytes(), (tmp_path / "superlink.log.1").read_bytes()) == (b"new", b"old" * 10)


def test_a_full_disk_is_one_line_until_there_is_room_again(tmp_path, monkeypatch, capsys):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    log, path, write = logging.Logger("x"), tmp_path / "log.jsonl", json_log.os.write
    log.addHandler(json_log.JsonLines(path))
    for round in range(2):
        monkeypatch.setattr(json_log.os, "write", full)
        log.info("one")
        log.info("two")
        assert capsys.readouterr().err == f"{path} cannot be written: No space left on device\n", round
        monkeypatch.setattr(json_log.os, "write", write)
        log.info("three")
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == ["three", "three"]


def test_what_cannot_be_copied_on_a_full_disk_is_cut_all_the_same(tmp_path, monkeypatch):
    path = tmp_path / "superlink.log"
    path.write_bytes(b"old" * 10)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(json_log.os, "fdopen", full)
    assert json_log.cut_off(path, 20)
    assert (path.read_bytes(), (tmp_path / "superlink.log.1").exists()) == (b"", False)


def test_errors_of_a_site_stand_in_its_log_with_their_traces(tmp_path):
    log = logging.Logger("x")
    log.addHandler(json_log.JsonLines(tmp_path / "log.jsonl"))
    try:
        raise ValueError("what happened")
    except ValueError:
        log.exception("a request failed")
    line = json.loads((tmp_path / "log.jsonl").read_text())
    assert line["event"] == "a request failed"
    assert "ValueError: what happened" in line["error"]


# ---- one port ------------------------------------------------------------------------------------------------------


def hello(*offered: str) -> bytes:
    """Return what a client of TLS says first."""
    context, out = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.MemoryBIO()
    if offered:
        context.set_alpn_protocols(list(offered))
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="fl.example.org").do_handshake()
    return out.read()


def test_a_stream_is_known_by_its_first_bytes():
    assert one_port.protocols(hello("h2")) == [b"h2"]
    for secure in (True, False):
        assert one_port.wants_stream(hello("h2"), secure)
        assert one_port.wants_stream(hello("grpc-exp", "h2"), secure)
        assert not one_port.wants_stream(b"GET / HTTP/1.1\r\n", secure)
        assert not one_port.wants_stream(b"", secure)
    for other in (hello("http/1.1"), hello("h2", "http/1.1"), hello(), hello("h2")[:80], b"\x16" + bytes(60)):
        assert not one_port.wants_stream(other, True), "curl and browsers offer both"
    assert one_port.wants_stream(hello(), False), "without keys, nothing but a stream speaks TLS"


def test_what_is_no_stream_gets_the_connection_itself_and_a_stream_is_passed_on(tmp_path):
    class Tells(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = transport

        def data_received(self, data):
            self.transport.write(f"{self.transport.get_extra_info('peername')[1]} {data.decode()}".encode())

    async def echo(reader, writer):
        writer.write(b"stream " + await reader.readexactly(8))
        writer.close()

    async def scenario():
        run = await asyncio.start_unix_server(echo, tmp_path / "s")
        listener = one_port.listen("127.0.0.1", 0, 10)
        port = one_port.OnePort(listener, Tells, None, str(tmp_path / "s"))
        told = {}
        for name, first in (("web", b"GET /"), ("stream", hello("h2"))):
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            for piece in (first[:2], first[2:]):
                writer.write(piece)
                await writer.drain()
            told[name] = await reader.read(100), writer.get_extra_info("sockname")[1], first
            writer.close()
        port.close()
        await port.wait_closed()
        run.close()
        return told

    told = run_loop(scenario())
    said, own, _ = told["web"]
    assert said.startswith(f"{own} GE".encode()), "the gate sees who calls"
    said, _, first = told["stream"]
    assert said == b"stream " + first[:8]


@pytest.mark.parametrize("said", [None, b"\x16\x03\x01\x02\x00\x01"], ids=["nothing", "half of a hello"])
def test_who_stays_silent_is_looked_at_ever_more_seldom(monkeypatch, said):
    """A thousand such callers are what the port takes at once; each may cost a few looks, and not one every moment."""
    looks, waited = [], []

    class Caller:
        def recv(self, size, flags):
            looks.append(size)
            if said is None:
                raise BlockingIOError
            return said

    async def sleep(seconds):
        waited.append(seconds)
        if sum(waited) > one_port.WITHIN:
            raise TimeoutError

    monkeypatch.setattr(one_port.asyncio, "sleep", sleep)
    with pytest.raises(TimeoutError):
        run_loop(one_port.OnePort._first(None, Caller()))
    assert len(looks) < 50
    assert waited[0] <= 0.01, "who is honest is not made to wait"


def test_where_sites_find_streams():
    assert a_server(stream_port=None, stream_socket="/tmp/x/s").streams == ("h:8000", "unix:/tmp/x/s")
    assert a_server().streams == ("h:8001", "0.0.0.0:8001")


def test_paths_of_the_packages_are_part_of_what_is_installed():
    from fedstrata.deploy.package import TEMPLATES  # noqa: PLC0415

    assert (Path(TEMPLATES) / "start.sh").is_file()
