"""`fedstrata deploy`: keys, command lines, the gate, and real processes on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
import tomllib
import zipfile
from contextlib import suppress
from importlib.util import find_spec
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from fedstrata.config.experiment import Experiment
from fedstrata.core.errors import FedstrataError, RequestError
from fedstrata.deploy import client, flower, keys, processes, server, state, status, submit
from fedstrata.deploy.app import eager, foreign
from fedstrata.deploy.auth_proxy import GATE, Gate
from fedstrata.remote.credentials import Credentials
from fedstrata.remote.flower import node_names as acquaintances
from fedstrata.runs.folder import Run

NEEDS_FLOWER = pytest.mark.skipif(find_spec("flwr") is None, reason="needs fedstrata[flower]")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSTRATA_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def flower_is_there(monkeypatch):
    monkeypatch.setattr(flower, "required", lambda: None)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys") / "federation"
    keys.make(folder, ["b", "a", "c"], ["flower.example.org", "10.1.2.3"])
    return folder


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


# ---- keys ------------------------------------------------------------------------------------------------------------


def test_every_party_gets_its_own_folder(made):
    site = {"ca.crt", "node.key", "node.pub", "identity.json", "roll.json"}
    assert {p.name for p in made.iterdir()} == {"ca", "server", "sites"}
    assert {p.name for p in (made / "ca").iterdir()} == {"ca.key", "ca.crt"}
    assert {p.name for p in (made / "sites").iterdir()} == {"a", "b", "c"}
    for name in "abc":
        assert {p.name for p in (made / "sites" / name).iterdir()} == site
    assert {p.name for p in (made / "server").iterdir()} == {
        *("ca.crt", "server.crt", "server.key", "identity.json", "roll.json", "nodes")
    }
    assert list(keys.nodes(made / "server")) == ["a", "b", "c"]


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
        assert (made / "server/nodes" / f"{name}.pub").read_bytes() == (made / "sites" / name / "node.pub").read_bytes()
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
    assert server.public_name("0.0.0.0", names) == "flower.example.org"
    assert server.public_name("127.0.0.1", names) == "127.0.0.1"
    keys.make(tmp_path / "other", ["a"])
    mixed = shutil.copytree(made / "server", tmp_path / "mixed")
    shutil.copy(tmp_path / "other/server/server.key", mixed / "server.key")
    with pytest.raises(RequestError, match="belongs to another key"):
        keys.of_server(mixed, "0.0.0.0")


# ---- command lines ---------------------------------------------------------------------------------------------------


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
    command = flower.supernode("h:8000", "a", Path("/run/a b/site"), 9100, made / "sites/a")
    given = options(command)
    assert command[3] == "fedstrata.deploy.app"
    assert given["--superlink"] == "h:8000"
    assert (given["--host"], given["--port"]) == ("127.0.0.1", "9100"), "its own port is for this machine alone"
    assert given["--root-certificates"] == str(made / "sites/a/ca.crt")
    assert given["--auth-supernode-private-key"] == str(made / "sites/a/node.key")
    assert tomllib.loads(given["--node-config"].replace("' ", "'\n")) == {"site": "a", "socket": "/run/a b/site"}
    assert "--insecure" not in given
    assert "--insecure" in flower.supernode("h:8000", "a", Path("/s"), 9100, None)


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
    assert client.part("0/3") == (0, 3)
    for text in ("3/3", "1", "1/", "-1/3", "a/b", "0/0"):
        with pytest.raises(RequestError, match="--partition"):
            client.part(text)


def test_a_site_says_what_it_has_in_three_ways(tmp_path):
    (tmp_path / "site.toml").write_text('[data]\nname = "digits"\n[train]\nseed = 5\n')
    told = client.described("site.toml", {"data.clients": 4})
    assert (told.data.name, told.data.clients, told.train.seed) == ("digits", 4, 5)
    assert client.described("digits", {}).data.name == "digits"
    own = client.described("patients.csv", {"data.label": "kind"}).dump()["data"]
    assert (own["name"], own["path"], own["label"]) == ("own", "patients.csv", "kind")
    assert client.described(None, {"data.name": "digits"}).data.name == "digits"
    with pytest.raises(RequestError, match="say what data this site has"):
        client.described(None, {})
    with pytest.raises(RequestError, match=r"train\.rounds cannot be set"):
        client.described("digits", {"train.rounds": 3})
    with pytest.raises(RequestError, match=r"data\.clases"):
        client.described("digits", {"data.clases": 3})


def test_what_the_site_process_is_told(made):
    here = client.Client("a", "h:8000", made / "sites/a", {"name": "digits"}, 3, (1, 3))
    assert here.config(Path("/s/site")) == {
        "site": "a",
        "socket": "/s/site",
        "server": "h:8000",
        "keys": str(made / "sites/a"),
        "memory": str(state.of_site("a") / "memory"),
        "data": {"data": {"name": "digits"}, "seed": 3},
        "partition": [1, 3],
    }


# ---- the app and the run ---------------------------------------------------------------------------------------------


def a_server(**changes) -> server.Server:
    fields = {"host": "0.0.0.0", "port": 8000, "stream_port": 8001, "public": "h", "keys": None}
    return server.Server(**(fields | changes))


def test_the_app_is_thin_and_the_same_for_every_run(tmp_path):
    app = submit.write_app(tmp_path / "one")
    assert [p.name for p in app.iterdir()] == ["pyproject.toml"]
    assert set(app.name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    told = tomllib.loads((app / "pyproject.toml").read_text())
    assert told["project"]["dependencies"] == []
    components = told["tool"]["flwr"]["app"]["components"]
    assert components["serverapp"] == "fedstrata.remote.flower.server_app:app"
    assert components["clientapp"] == "fedstrata.remote.flower.client_app:app"
    other = submit.write_app(tmp_path / "two")
    assert (other / "pyproject.toml").read_bytes() == (app / "pyproject.toml").read_bytes()


def test_a_run_is_described_by_keys_that_the_app_has(tmp_path):
    asked = submit.new(a_server(keys="/k"), Experiment.of({"train": {"rounds": 3}}), tmp_path / "out", 3)
    config = asked.config(tmp_path / "e.toml")
    assert set(config) == set(submit.DEFAULTS)
    assert {k: type(v) for k, v in config.items()} == {k: type(v) for k, v in submit.DEFAULTS.items()}
    assert (config["sites"], config["resume"], config["out"]) == (3, False, str(tmp_path / "out"))
    assert (config["experiment"], config["keys"]) == (str(tmp_path / "e.toml"), "/k")
    assert (config["stream"], config["listen"], config["fine"]) == ("h:8001", "0.0.0.0:8001", False)
    claimed = submit.new(a_server(), Experiment.of(None), None, 3)
    assert claimed.path == tmp_path / "runs/fedavg-1"


def bundle(pyproject: str, **files: str) -> bytes:
    written = BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        for name, text in {"pyproject.toml": pyproject, ".info/CONTENT": "", **files}.items():
            archive.writestr(name, text)
    return written.getvalue()


def test_a_site_runs_our_app_and_no_other(tmp_path):
    ours = (submit.write_app(tmp_path) / "pyproject.toml").read_text()
    assert foreign(bundle(ours)) is None
    assert foreign(bundle(ours, **{"fedstrata/__init__.py": ""})) == "it holds other files"
    assert foreign(bundle(ours.replace("client_app:app", "other:app"))) == "it points to other code"
    assert foreign(bundle(ours.replace("dependencies = []", 'dependencies = ["x"]'))) == "it wants packages installed"
    assert foreign(bundle(ours + "# " + "x" * 70_000)) == "its description is too long"
    for broken in (b"", b"PK", bundle("["), bundle(""), bundle("tool = 1"), bundle(ours)[:-30]):
        assert foreign(broken) == "it cannot be read"


def test_a_site_looks_often_for_messages_while_a_run_is_on(monkeypatch):
    now, slept, runs = [0.0], [], iter([None, 7, None, None])
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", slept.append)
    node = SimpleNamespace(_pull_and_store_message=lambda: next(runs), time=time)
    eager(node)
    for now[0] in (0.0, 10.0, 65.0, 75.0):
        node._pull_and_store_message()
        node.time.sleep(3)
    assert slept == [3, 0.3, 0.3, 3]


@pytest.mark.parametrize(
    ("method", "fine"),
    [("fedavg", False), ("terraform", False), ("scaffold", False), ("stratify-batch", True), ("sfl", True)],
)
def test_methods_that_exchange_single_batches_need_the_stream(tmp_path, method, fine):
    experiment = Experiment.of({"method": {"name": method}})

    def asked(stream):
        config = submit.new(a_server(), experiment, tmp_path / "out", 3, stream=stream).config(tmp_path)
        return config["stream"], config["listen"], config["fine"]

    assert asked(None) == ("h:8001", "0.0.0.0:8001", fine)
    assert asked(True) == ("h:8001", "0.0.0.0:8001", True)
    assert asked(False) == ("", "", False)


def test_submitting_hands_flower_the_app_and_removes_it(tmp_path, monkeypatch, flower_is_there):
    seen = {}

    def call(folder, words):
        app, config = Path(words[1]), Path(words[4])
        seen.update(tomllib.loads(config.read_text()), words=words, app=(app / "pyproject.toml").exists())
        seen["rounds"] = Experiment.of(Path(seen["experiment"])).train.rounds
        return {"success": True, "run-id": "77"}

    monkeypatch.setattr(flower, "flwr", call)
    there = a_server()
    state.private(there.folder)
    asked = submit.new(there, Experiment.of({"train": {"rounds": 3}}), tmp_path / "out", 2)
    with submit.submitted(asked) as number:
        assert number == "77"
        assert Path(seen["experiment"]).exists(), "the server side has yet to read it"
    assert seen["app"]
    assert seen["rounds"] == 3
    assert [seen["words"][i] for i in (0, 2, 3)] == ["run", "fedstrata", "--run-config"]
    assert not list(there.folder.glob("run-*"))


def test_a_folder_with_a_run_is_refused_before_anybody_is_asked(tmp_path):
    Run.create(tmp_path / "out", "")
    with pytest.raises(RequestError, match="continue a run with --resume"):
        submit.new(a_server(), Experiment.of(None), tmp_path / "out", 2)


def played(path: Path, rounds: int) -> Run:
    run = Run.create(path, Experiment.of({"train": {"rounds": rounds}}).to_toml())
    run.log("start", clients=2)
    run.log("sites", wall={"sites": ["a", "b"]})
    for done in range(1, rounds + 1):
        clients = [0, 1] if done < rounds else [1]
        run.log("round", round=done, steps=[{"kind": "train", "clients": clients}], accuracy=0.5)
    return run


def test_following_shows_what_the_folder_gets(tmp_path):
    asked = submit.Submission(a_server(), Experiment.of({"train": {"rounds": 2}}), tmp_path / "out", 2)
    seen = []
    run = played(tmp_path / "out", 2)
    run.write_result({}, {}, {"method": "fedavg"})
    done = submit.follow(asked, "1", seen.append, lambda _: None)
    assert done.summary == {"method": "fedavg"}
    assert [e["event"] for e in seen] == ["begin", "start", "sites", "round", "round"]
    assert (seen[0]["round"], seen[0]["rounds"], seen[0]["run_dir"]) == (0, 2, str(tmp_path / "out"))


def test_following_a_resumed_run_begins_where_it_goes_on(tmp_path):
    run = played(tmp_path / "out", 2)
    size = run.sync_events()
    run.log("round", round=3, steps=[])  # after the checkpoint: it will be cut off
    lines = submit.Lines(run, {"events": size, "round": 2})
    assert list(lines.new()) == []
    run.cut_events(size)
    assert list(lines.new()) == []
    run.log("resumed", wall={"round": 2})
    run.log("round", round=3, steps=[])
    with (run.path / "events.jsonl").open("a") as file:
        file.write('{"event": "rou')
    assert [e["event"] for e in lines.new()] == ["resumed", "round"]
    with (run.path / "events.jsonl").open("a") as file:
        file.write('nd", "round": 4}\n')
    assert [e["round"] for e in lines.new()] == [4]


@pytest.mark.parametrize(
    ("told", "kind", "said"),
    [
        ({"error": "RequestError", "message": "no", "exit_code": 2, "trace": None}, RequestError, "^no$"),
        (
            {"error": "KeyError", "message": "x", "exit_code": 1, "trace": "..."},
            FedstrataError,
            "failed with KeyError: x;",
        ),
        ({}, FedstrataError, "cannot be read"),
    ],
)
def test_a_run_that_failed_says_why(tmp_path, told, kind, said):
    asked = submit.Submission(a_server(), Experiment.of(None), tmp_path / "out", 2)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / submit.FAILED).write_text(json.dumps(told))
    with pytest.raises(FedstrataError, match=said) as raised:
        submit.follow(asked, "1", lambda _: None, lambda _: None)
    assert type(raised.value) is kind
    again = submit.new(a_server(), Experiment.of(None), tmp_path / "out", 2)
    assert again.path == tmp_path / "out", "what failed before it began can be tried again in the same folder"


def test_a_run_whose_process_is_gone_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(submit, "GONE", 0.3)
    monkeypatch.setattr(flower, "log_of", lambda *_: "its last words\n")
    asked = submit.Submission(a_server(), Experiment.of({"train": {"rounds": 2}}), tmp_path / "out", 2)
    run = played(tmp_path / "out", 2)
    with run.locked():
        assert run.running
    assert not run.running
    with pytest.raises(
        FedstrataError,
        match=r"(?s)its process is gone; continue with: fedstrata deploy run --resume .*out.*its last words",
    ):
        submit.follow(asked, "1", lambda _: None, lambda _: None)


def test_a_run_that_flower_could_not_start_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(submit, "ASK", 0.1)
    answers = iter(
        [{"runs": [{"status": "pending", "status-details": "N/A"}]}, {"runs": [{"status": "finished:failed"}]}]
    )
    monkeypatch.setattr(flower, "flwr", lambda *_: next(answers))
    monkeypatch.setattr(flower, "log_of", lambda *_: "")
    asked = submit.Submission(a_server(), Experiment.of(None), tmp_path / "out", 2)
    said = []
    with pytest.raises(FedstrataError, match="the run did not finish: finished:failed"):
        submit.follow(asked, "1", lambda _: None, said.append)
    assert "no news of the run yet (Flower: pending)" in said[0]


def test_a_run_that_ends_while_flower_is_asked_is_not_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(submit, "ASK", 0.1)

    def call(*_):
        played(tmp_path / "out", 2).write_result({}, {}, {"method": "fedavg"})
        return {"runs": [{"status": "finished:completed"}]}

    monkeypatch.setattr(flower, "flwr", call)
    asked = submit.Submission(a_server(), Experiment.of({"train": {"rounds": 2}}), tmp_path / "out", 2)
    seen = []
    assert submit.follow(asked, "1", seen.append, lambda _: None).summary == {"method": "fedavg"}
    assert [e["event"] for e in seen] == ["begin", "start", "sites", "round", "round"]


def test_going_on_takes_the_number_of_sites_from_the_run(tmp_path):
    played(tmp_path / "out", 2)
    assert submit.again(a_server(), tmp_path / "out", None).sites == 2
    assert submit.again(a_server(), tmp_path / "out", 3).sites == 3
    Run.create(tmp_path / "new", Experiment.of(None).to_toml())
    with pytest.raises(RequestError, match="--sites is required"):
        submit.again(a_server(), tmp_path / "new", None)


# ---- who is up -------------------------------------------------------------------------------------------------------


def node(number: str, how: str, **times: str) -> dict[str, object]:
    return {"node-id": number, "status": how, "online-at": "N/A", "offline-at": "N/A"} | times


def test_status_names_sites_and_says_what_they_gave(tmp_path, monkeypatch):
    there = a_server()
    state.private(there.folder)
    known = {name: {"node": number, "key": ""} for name, number in (("a", "1"), ("b", "2"), ("c", "3"))}
    (there.folder / "nodes.json").write_text(json.dumps(known))
    nodes = [
        node("1", "online", **{"online-at": "2026-01-01 10:00:00Z"}),
        node("2", "offline", **{"offline-at": "2026-01-01 11:00:00Z"}),
        node("3", "registered"),
        node("9", "unregistered"),
    ]
    monkeypatch.setattr(flower, "flwr", lambda *_: {"success": True, "nodes": nodes})
    run = played(tmp_path / "out", 3)
    run.log("site_refused", round=3, step=0, site="a", client=0, why="no")
    (run.path / "sites.json").write_text(json.dumps({"run": "x", "sites": {"a": {"samples": 7}}}))
    rows = status.sites(there, run.path)
    assert [(r["site"], r["up"], r["last_contact"]) for r in rows] == [
        ("a", True, "now"),
        ("b", False, "2026-01-01 11:00:00Z"),
        ("c", False, None),
    ]
    assert [r["contributed"] for r in rows] == [
        {"samples": 7, "rounds": 2, "steps": 2, "last_round": 2, "refused": 1},
        {"samples": None, "rounds": 3, "steps": 3, "last_round": 3, "refused": 0},
        None,
    ]


def test_status_without_keys_knows_sites_by_what_they_said_in_a_run(tmp_path, monkeypatch, cli, flower_is_there):
    there = a_server()
    state.private(there.folder)
    monkeypatch.setattr(server, "found", lambda _: there)
    for number, site in ((1, "a"), (2, "b"), (3, "a")):  # a came back, as another node
        acquaintances.remember(there.met, number, site)
    nodes = [
        node("1", "offline", **{"offline-at": "2026-01-01 09:00:00Z"}),
        node("2", "offline", **{"offline-at": "2026-01-01 11:00:00Z"}),
        node("3", "online"),
        node("4", "online"),
    ]
    monkeypatch.setattr(flower, "flwr", lambda *_: {"success": True, "nodes": nodes})
    there.begun(played(tmp_path / "out", 3).path)
    code, out, _ = cli("deploy", "status", "--json")
    assert code == 0
    told = json.loads(out)
    assert told["run_dir"] == str(tmp_path / "out")
    assert [(r["site"], r["node"], r["up"], r["last_contact"]) for r in told["sites"]] == [
        ("a", "3", True, "now"),
        ("b", "2", False, "2026-01-01 11:00:00Z"),
        (None, "4", True, "now"),
    ]
    assert [r["contributed"] and r["contributed"]["rounds"] for r in told["sites"]] == [2, 3, None]
    _, out, _ = cli("deploy", "status")
    assert "2 of 3 sites are up" in out
    assert str(tmp_path / "out") in out.replace("\n", "")


def test_status_without_names_shows_who_is_up(monkeypatch, cli, flower_is_there):
    monkeypatch.setattr(server, "found", lambda _: a_server())
    nodes = [node("1", "online"), node("2", "offline"), node("3", "unregistered")]
    monkeypatch.setattr(flower, "flwr", lambda *_: {"success": True, "nodes": nodes})
    code, out, _ = cli("deploy", "status")
    assert code == 0
    assert "node 1" in out
    assert "node 2" not in out, "whoever took part without a key and left is forgotten"
    assert "1 of 1 sites are up" in out
    code, out, _ = cli("deploy", "status", "--json")
    assert [row["node"] for row in json.loads(out)["sites"]] == ["1"]


# ---- registering -----------------------------------------------------------------------------------------------------


def test_exactly_the_sites_with_keys_may_connect(tmp_path, made, monkeypatch):
    there = a_server(keys=str(tmp_path / "server"))
    state.private(there.folder)
    shutil.copytree(made / "server", tmp_path / "server")
    calls, number = [], iter(range(1, 9))

    def call(_, words):
        calls.append((words[1], Path(words[2]).stem))
        return {"success": True, "node-id": next(number)}

    monkeypatch.setattr(flower, "flwr", call)
    server.register(there, keys.nodes(tmp_path / "server"), lambda _: None)
    assert calls == [("register", "a"), ("register", "b"), ("register", "c")]
    assert there.nodes() == {"a": "1", "b": "2", "c": "3"}
    calls.clear()
    server.register(there, keys.nodes(tmp_path / "server"), lambda _: None)
    assert calls == [], "Flower keeps them over restarts"
    (tmp_path / "server/nodes/b.pub").unlink()
    shutil.copy(made / "server/nodes/b.pub", tmp_path / "server/nodes/c.pub")
    said = []
    server.register(there, keys.nodes(tmp_path / "server"), said.append)
    assert calls == [("unregister", "2"), ("unregister", "3"), ("register", "c")]
    assert said == ["site b may no longer connect", "site c has a new key"]
    assert there.nodes() == {"a": "1", "c": "6"}


def test_a_key_that_was_shut_out_cannot_come_back(made, monkeypatch):
    there = a_server(keys=str(made / "server"))
    state.private(there.folder)

    def call(_, words):
        raise flower.FlowerError("supernode", why)

    monkeypatch.setattr(flower, "flwr", call)
    why = "[code: 23] Public key already in use."
    with pytest.raises(RequestError, match=r"a\.pub was shut out before.*superlink\.db"):
        server.register(there, keys.nodes(made / "server"), lambda _: None)
    why = "no connection"
    with pytest.raises(flower.FlowerError, match="no connection"):
        server.register(there, keys.nodes(made / "server"), lambda _: None)


def test_a_database_without_notes_is_not_trusted(tmp_path):
    for name in ("superlink.db", "superlink.db-wal", "insecure.db"):
        (tmp_path / name).touch()
    server._forget_strangers(tmp_path, None)
    assert (tmp_path / "superlink.db").exists()
    server._forget_strangers(tmp_path, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["insecure.db", "nodes.json"]
    (tmp_path / "superlink.db").touch()
    server._forget_strangers(tmp_path, tmp_path)
    assert (tmp_path / "superlink.db").exists(), "sites come back by themselves after a restart"


def test_next_steps_say_what_to_type(made):
    said = server.next_steps(a_server(port=8123, keys=str(made / "server")))
    assert "sites that may connect: a, b, c" in said
    assert "fedstrata deploy client --server h:8123 --site NAME --keys" in said
    assert "fedstrata deploy run EXPERIMENT.toml --sites 3 --server 127.0.0.1:8123" in said
    assert "--insecure" in server.next_steps(a_server())


# ---- the gate --------------------------------------------------------------------------------------------------------


def through(path: str, caller: str | None, called: str = "10.0.0.1", kind: str = "http") -> str:
    """Send a request to the gate; give who answered, and how."""
    sent = []

    async def app(scope, receive, send):
        sent.append({"type": "app"})

    async def send(message):
        sent.append(message)

    scope = {"type": kind, "path": path, "client": None if caller is None else (caller, 5), "server": (called, 8000)}
    asyncio.run(Gate(app)(scope, None, send))
    first = sent[0]
    return "app" if first["type"] == "app" else f"{first['type']} {first.get('status', '')}".strip()


@pytest.mark.parametrize(
    "path", ["/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/acquire-task", "/docs"]
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


# ---- processes -------------------------------------------------------------------------------------------------------

SLEEP = "import time; time.sleep(60)"
NESTED = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {SLEEP!r}]); time.sleep(60)"


def test_processes_end_with_all_that_they_started(tmp_path):
    household = processes.Household(tmp_path, "a test")
    child = household.start("one", [sys.executable, "-c", NESTED], tmp_path / "log", dict(os.environ))
    began = {pid: since for pid, (_, since) in processes.everybody().items()}
    head = [(child.pid, began[child.pid])]
    wait_for(lambda: len(processes.family(head)) == 2)
    members = processes.family(head)
    assert household.gone() is None
    assert processes.running(tmp_path)
    with pytest.raises(RequestError, match="a test is already running on this machine"):
        processes.Household(tmp_path, "a test")
    household.close()
    assert not processes.alive(members)
    assert not processes.running(tmp_path)


def test_what_a_killed_command_left_is_ended_by_the_next_one(tmp_path):
    script = f"""
import os, sys
from pathlib import Path
from fedstrata.deploy.processes import Household
Household(Path({str(tmp_path)!r}), "x").start("one", [sys.executable, "-c", {NESTED!r}], None, dict(os.environ))
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", script], check=False, env=dict(os.environ))
    (known,) = [tuple(k) for k in json.loads((tmp_path / "processes.json").read_text())]
    assert processes.alive([known])
    assert processes.alive([(known[0], "0")]) == set(), "a process with the same number that began later is another"
    household = processes.Household(tmp_path, "x")
    try:
        wait_for(lambda: not processes.alive([known]))
    finally:
        household.close()


def wait_for(true, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


# ---- requests that are refused ---------------------------------------------------------------------------------------


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


def test_a_port_that_is_taken_is_refused(cli, flower_is_there):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, _, err = cli("deploy", "server", "--insecure", "--port", str(port))
    assert code == 2
    assert f"--port {port} cannot be used on this machine" in err
