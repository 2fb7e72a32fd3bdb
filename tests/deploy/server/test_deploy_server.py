"""The server of `fedstrata deploy`: who is up, and who may connect."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deployed import a_run, a_server, node

from fedstrata.core.errors import RequestError
from fedstrata.deploy import flower, logs, state
from fedstrata.deploy.node_signature import KnownKeys, NodeKey
from fedstrata.deploy.operators import status
from fedstrata.deploy.server import federation_server
from fedstrata.remote.credentials import Credentials
from fedstrata.remote.flower import node_names as acquaintances
from fedstrata.remote.flower.server_app import read_registered


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
    run = a_run(tmp_path / "out", 3)
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
    monkeypatch.setattr(federation_server, "find_server", lambda _: there)
    for number, site in ((1, "a"), (2, "b"), (3, "a")):  # a came back, as another node
        acquaintances.remember(there.met, number, site)
    nodes = [
        node("1", "offline", **{"offline-at": "2026-01-01 09:00:00Z"}),
        node("2", "offline", **{"offline-at": "2026-01-01 11:00:00Z"}),
        node("3", "online"),
        node("4", "online"),
    ]
    monkeypatch.setattr(flower, "flwr", lambda *_: {"success": True, "nodes": nodes})
    there.begun(a_run(tmp_path / "out", 3).path)
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
    monkeypatch.setattr(federation_server, "find_server", lambda _: a_server())
    nodes = [node("1", "online"), node("2", "offline"), node("3", "unregistered")]
    monkeypatch.setattr(flower, "flwr", lambda *_: {"success": True, "nodes": nodes})
    code, out, _ = cli("deploy", "status")
    assert code == 0
    assert "node 1" in out
    assert "node 2" not in out, "whoever took part without a key and left is forgotten"
    assert "1 of 1 sites are up" in out
    code, out, _ = cli("deploy", "status", "--json")
    assert [row["node"] for row in json.loads(out)["sites"]] == ["1"]


def test_exactly_the_sites_with_keys_may_connect(tmp_path, made, monkeypatch):
    there = a_server(keys=str(tmp_path / "server"))
    state.private(there.folder)
    wanted = dict(Credentials.load(made / "server").roll.nodes)
    calls, number = [], iter(range(1, 9))

    def call(_, words):
        calls.append((words[1], Path(words[2]).stem))
        return {"success": True, "node-id": next(number)}

    monkeypatch.setattr(flower, "flwr", call)
    federation_server.register(there, wanted, lambda _: None)
    assert calls == [("register", "a"), ("register", "b"), ("register", "c")]
    assert there.nodes() == {"a": "1", "b": "2", "c": "3"}
    calls.clear()
    federation_server.register(there, wanted, lambda _: None)
    assert calls == [], "Flower keeps them over restarts"
    wanted = {"a": wanted["a"], "c": wanted["b"]}
    said = []
    logs.keep_log(there.folder)
    federation_server.register(there, wanted, said.append)
    assert calls == [("unregister", "2"), ("unregister", "3"), ("register", "c")]
    assert said == ["site b may no longer connect", "site c has a new key", "site c may connect"]
    assert there.nodes() == {"a": "1", "c": "6"}
    lines = [json.loads(line) for line in (there.folder / logs.FILE).read_text().splitlines()]
    assert [(line["event"], line["site"]) for line in lines] == [
        ("site_revoked", "b"),
        ("site_renewed", "c"),
        ("site_registered", "c"),
    ]


def test_a_site_is_nobody_before_flower_ends_its_connection(tmp_path, made, monkeypatch):
    """Else it hears that its connection ended, asks whether its key still counts, and is told that it does."""
    there = a_server(keys=str(tmp_path / "server"))
    state.private(there.folder)
    wanted = dict(Credentials.load(made / "server").roll.nodes)
    counts = KnownKeys(there.registered)

    def signed(site):
        return counts.signer(NodeKey(made / f"sites/{site}/node.key").sign_time())

    number = iter(range(1, 9))
    monkeypatch.setattr(flower, "flwr", lambda *_: {"success": True, "node-id": next(number)})
    federation_server.register(there, wanted, lambda _: None)
    assert [signed(site) for site in "abc"] == ["a", "b", "c"]

    def crash(_, words):
        assert words[1] == "unregister"
        assert [signed(site) for site in "abc"] == ["a", None, "c"]
        assert there.nodes() == registered_nodes(there) == {"a": "1", "c": "3"}
        raise flower.FlowerError("supernode", why)

    monkeypatch.setattr(flower, "flwr", crash)
    left, why = {"a": wanted["a"], "c": wanted["c"]}, "no connection"
    with pytest.raises(flower.FlowerError, match="no connection"):
        federation_server.register(there, left, lambda _: None)
    assert signed("b") is None
    why = "[code: 24] Node ID not found for account."  # it was told before the crash
    said = []
    federation_server.register(there, left, said.append)
    assert said == ["site b may no longer connect"]
    assert json.loads(there.registered.read_text()).keys() == {"a", "c"}


def registered_nodes(there):
    """What a run goes by."""
    return {site: str(node) for node, site in read_registered(there.registered).items()}


def test_a_key_that_was_shut_out_cannot_come_back(made, monkeypatch):
    there = a_server(keys=str(made / "server"))
    state.private(there.folder)

    def call(_, words):
        raise flower.FlowerError("supernode", why)

    monkeypatch.setattr(flower, "flwr", call)
    why = "[code: 23] Public key already in use."
    with pytest.raises(RequestError, match=r"key of site a was shut out before.*superlink\.db"):
        federation_server.register(there, Credentials.load(made / "server").roll.nodes, lambda _: None)
    why = "no connection"
    with pytest.raises(flower.FlowerError, match="no connection"):
        federation_server.register(there, Credentials.load(made / "server").roll.nodes, lambda _: None)


def test_a_database_without_notes_is_not_trusted(tmp_path):
    for name in ("superlink.db", "superlink.db-wal", "insecure.db"):
        (tmp_path / name).touch()
    federation_server.forget_strangers(tmp_path, None)
    assert (tmp_path / "superlink.db").exists()
    federation_server.forget_strangers(tmp_path, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["insecure.db", "nodes.json"]
    (tmp_path / "superlink.db").touch()
    federation_server.forget_strangers(tmp_path, tmp_path)
    assert (tmp_path / "superlink.db").exists(), "sites come back by themselves after a restart"


def test_next_steps_say_what_to_type(made):
    there = a_server(port=8123, keys=str(made / "server"))
    state.private(there.folder)
    (there.folder / "nodes.json").write_text(json.dumps({name: {"node": "1", "key": ""} for name in "abc"}))
    said = federation_server.next_steps(a_server(port=8123, keys=str(made / "server")))
    assert "sites that may connect: a, b, c" in said
    assert "fedstrata deploy client --server h:8123 --site NAME --keys" in said
    assert "fedstrata deploy run EXPERIMENT.toml --sites 3 --server 127.0.0.1:8123" in said
    assert "--insecure" in federation_server.next_steps(a_server())
