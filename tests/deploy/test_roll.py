"""Keys live: the authority adds, renews and revokes, and whoever runs takes in its signed roll, and no other."""

from __future__ import annotations

import errno
import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from fedstrata.core.errors import RequestError
from fedstrata.deploy import keys, logs
from fedstrata.deploy.authority import Authority
from fedstrata.deploy.server import roll_watch
from fedstrata.deploy.server.roll_watch import RollWatch
from fedstrata.deploy.shut_out import RevokedError
from fedstrata.remote.certificates import make_authority
from fedstrata.remote.credentials import Credentials
from fedstrata.remote.roll import FILE, Roll, RollError


@pytest.fixture
def own(made, tmp_path):
    """A federation of one's own, to change."""
    return shutil.copytree(made, tmp_path / "keys")


def test_a_site_is_added_renewed_and_revoked_with_the_key_that_was_kept(cli, own):
    assert cli("deploy", "keys", "add", str(own), "d", "e")[0] == 0
    roll = Credentials.load(own / "server").roll
    assert (sorted(roll.sites), roll.serial) == (["a", "b", "c", "d", "e"], 2)
    assert keys.of_site(own / "sites/d", "d").name == "d"
    assert roll.nodes["d"] == (own / "sites/d/node.pub").read_text()
    before = roll.nodes["a"], roll.sites["a"]
    code, out, _ = cli("deploy", "keys", "renew", str(own), "a")
    roll = Credentials.load(own / "sites/b").roll
    assert code == 0
    assert roll.nodes["a"] != before[0] and roll.sites["a"] != before[1], "both keys are new"  # noqa: PT018
    assert (own / "old/a-2/node.key").exists(), "labels of earlier runs are read with the old ones"
    assert "old/a-2" in out
    assert cli("deploy", "keys", "revoke", str(own), "b")[0] == 0
    roll = Credentials.load(own / "server").roll
    assert ("b" in roll.sites, "b" in roll.nodes, roll.serial) == (False, False, 4)
    authority = (own / "ca/ca.crt").read_bytes()
    roll.check(authority)
    shutil.copy(own / "ca" / FILE, own / "sites/b" / FILE)  # as its owner may do
    with pytest.raises(RevokedError, match="sites/b: site b is not on roll 4: it was revoked, and takes part in "):
        keys.of_site(own / "sites/b", "b")
    shutil.copy(own / "ca" / FILE, own / "old/a-2" / FILE)
    with pytest.raises(RevokedError, match=r"site a has other keys by roll 4: they were renewed, .* folder sites/a"):
        keys.of_site(own / "old/a-2", "a")
    with pytest.raises(RequestError, match="holds the keys of site c, not of site a"):
        keys.of_site(own / "sites/c", "a")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["add", "DIR", "a"], '"a" is on the roll already'),
        (["add", "DIR", "d", "d"], "named twice"),
        (["add", "DIR", "../d"], 'NAME = "../d" is not valid'),
        (["renew", "DIR", "x"], 'there is no site "x" on the roll; known are: a, b, c'),
        (["revoke", "DIR", "x"], 'there is no site or operator "x" on the roll'),
        (["operator", "DIR", "a"], '"a" is on the roll already'),
        (["add", "DIR/server", "d"], "has no ca/ca.key"),
    ],
)
def test_a_change_that_cannot_be_ends_with_code_2_and_changes_nothing(cli, own, args, said):
    before = {p: p.read_bytes() for p in own.rglob("*") if p.is_file()}
    code, _, err = cli("deploy", "keys", *[word.replace("DIR", str(own)) for word in args])
    assert (code, said in err) == (2, True), err
    assert {p: p.read_bytes() for p in own.rglob("*") if p.is_file()} == before


def test_the_server_s_certificate_is_renewed_for_the_same_names_and_key(cli, own):
    before, names = (own / "server/server.crt").read_bytes(), keys.names_of(own / "server")
    assert cli("deploy", "keys", "renew", str(own), "server")[0] == 0
    assert (own / "server/server.crt").read_bytes() != before
    assert keys.of_server(own / "server", "0.0.0.0")[1] == names
    assert cli("deploy", "keys", "renew", str(own), "server", "--host", "new.example")[0] == 0
    assert keys.names_of(own / "server")[0] == "new.example"


def test_keys_of_before_rolls_were_signed_can_be_changed(own):
    old = replace(Credentials.load(own / "server").roll, serial=0, issued="", signature=b"", nodes={})
    (own / "ca" / FILE).unlink()
    (own / "server" / FILE).write_bytes(old.write())
    (own / "server/nodes").mkdir()
    for name in "abc":
        shutil.copy(own / f"sites/{name}/node.pub", own / f"server/nodes/{name}.pub")
    assert sorted(keys.nodes(own / "server", old)) == ["a", "b", "c"]
    roll = Authority.open(own).add(["d"])
    assert (roll.serial, sorted(roll.nodes)) == (1, ["a", "b", "c", "d"])


def test_a_roll_that_is_older_changed_or_signed_by_another_is_refused(own):
    authority = (own / "ca/ca.crt").read_bytes()
    first = Credentials.load(own / "server").roll
    second = Authority.open(own).add(["d"])
    assert first.followed_by(second.write(), authority) == second
    assert second.followed_by(second.write(), authority) is second
    with pytest.raises(RollError, match="roll 1 is not newer than roll 2"):
        second.followed_by(first.write(), authority)
    forged = replace(second, serial=9)
    with pytest.raises(RollError, match="roll 9 is not signed by this federation's authority"):
        second.followed_by(forged.write(), authority)
    other = replace(second, serial=8).signed(make_authority("other", timedelta(days=1)).key)
    with pytest.raises(RollError, match="roll 9 is not signed"):
        second.followed_by(other.write(), authority)
    for odd in (b"", b"{}", b"[]", b'{"server": 3}', b"\xff" * 10, b"[" * 5000, b'{"server": "", "serial": 1e999}'):
        with pytest.raises(RollError, match="cannot be read"):
            second.followed_by(odd, authority)


def test_a_server_that_runs_takes_in_a_later_roll_and_says_what_it_refuses(own, tmp_path):
    said, kept = [], tmp_path / "state"
    kept.mkdir()
    logs.keep_log(kept)
    first = (own / "server" / FILE).read_bytes()
    watch = RollWatch(own / "server", kept, said.append)
    assert (watch.changed(), said) == (False, [])
    Authority.open(own).revoke("c")
    assert watch.changed()
    assert (watch.roll.serial, sorted(watch.roll.sites)) == (2, ["a", "b"])
    assert said == [f"roll 2 of {watch.roll.issued} is taken in"]
    (own / "server" / FILE).write_bytes(first)
    assert not watch.changed()
    (own / "server" / FILE).write_bytes(b"half a fi")
    assert not watch.changed()
    assert not watch.changed()
    assert said[1:] == [
        "a roll is refused: roll 1 is not newer than roll 2, which holds here",
        "a roll is refused: the roll cannot be read",
    ]
    (own / "server" / FILE).write_bytes(b"{")  # somebody is bringing one
    assert not watch.changed()
    (own / "server" / FILE).write_bytes(watch.roll.write())
    assert not watch.changed()
    assert len(said) == 3, "what is half written is no roll that anybody brought"
    (own / "server" / FILE).write_bytes(first)  # somebody put it back while the server was down
    again = RollWatch(own / "server", kept, said.append)
    assert again.roll.serial == 2
    assert said[-1] == "roll 1 beside the keys is refused: roll 2 holds here"
    lines = [json.loads(line) for line in (kept / logs.FILE).read_text().splitlines()]
    assert [(line["event"], line["level"], line["roll"]) for line in lines] == [
        ("roll_taken_in", "info", 2),
        *[("roll_refused", "warning", 2)] * 3,
    ]
    assert [line["why"] for line in lines[2:]] == ["the roll cannot be read", "roll 1 is older"]


def test_a_roll_that_cannot_be_carried_out_yet_is_tried_again_and_the_server_goes_on(own, tmp_path, monkeypatch):
    said, done, kept = [], [], tmp_path / "state"
    kept.mkdir()
    logs.keep_log(kept)
    watch = RollWatch(own / "server", kept, said.append)
    monkeypatch.setattr(roll_watch, "AGAIN", 0.0)
    watch.turn(lambda roll: done.append(roll.serial))
    assert (done, said) == ([], [])
    Authority.open(own).revoke("c")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(roll_watch, "write_atomically", full)
        for _ in range(3):
            watch.turn(lambda roll: done.append(roll.serial))
    assert (watch.roll.serial, done) == (1, [])
    for _ in range(3):
        watch.turn(full)
    assert watch.roll.serial == 2
    for _ in range(2):
        watch.turn(lambda roll: done.append(roll.serial))
    assert done == [2], "once"
    why = "the roll beside the keys is not carried out yet, which is tried again: [Errno 28] No space left on device"
    assert said == [why, f"roll 2 of {watch.roll.issued} is taken in"]
    assert Roll.read((kept / FILE).read_bytes()).serial == 2


def test_a_roll_that_is_half_written_ends_neither_a_run_nor_a_server(own, tmp_path):
    """A run looks at it before each of its rounds, and whoever brings one writes it meanwhile."""
    kept, said = tmp_path / "state", []
    kept.mkdir()
    logs.keep_log(kept)
    RollWatch(own / "server", kept, said.append)
    for half in (b"", Credentials.load(own / "server").roll.write()[:300]):
        (own / "server" / FILE).write_bytes(half)
        assert Credentials.load(own / "server", kept).roll.serial == 1
        with pytest.raises(RequestError, match="the roll cannot be read"):
            Credentials.load(own / "server")
    assert RollWatch(own / "server", kept, said.append).roll.serial == 1
    assert said == ["the roll beside the keys is refused: the roll cannot be read; roll 1 holds here"]
    (kept / FILE).write_bytes(replace(Roll.read((kept / FILE).read_bytes()), serial=9).write())  # not signed
    with pytest.raises(RequestError, match="the roll cannot be read"):
        Credentials.load(own / "server", kept)


def test_certificates_that_end_are_spoken_of_weeks_before(own, tmp_path, monkeypatch):
    ends = keys.ends(own / "server")
    assert keys.expiring(own / "server") == []
    early = ends["server.crt"] - timedelta(days=40)
    (line,) = keys.expiring(own / "server", early)
    assert f"server.crt ends on {ends['server.crt']:%Y-%m-%d} (40 days from now); renew it" in line
    assert "ended on" in keys.expiring(own / "server", ends["server.crt"] + timedelta(days=1))[0]
    assert ends["server.crt"] - datetime.now(UTC) < timedelta(days=2 * 365 + 1)
    monkeypatch.setattr(keys, "SOON", timedelta(days=3 * 365))
    said = []
    (tmp_path / "state").mkdir()
    RollWatch(own / "server", tmp_path / "state", said.append)
    assert [line.startswith("WARNING: ") and "renew it" in line for line in said] == [True]


def test_who_is_on_the_roll_can_be_shown(cli, own):
    assert cli("deploy", "keys", "operator", str(own), "ann")[0] == 0
    code, out, _ = cli("deploy", "keys", "show", str(own))
    assert code == 0
    assert out.startswith("roll 2 of ")
    assert "sites: a, b, c\noperators: ann\n" in out
    assert f"server.crt ends on {keys.ends(own / 'server')['server.crt']:%Y-%m-%d}" in out
    assert Roll.read((own / "ca" / FILE).read_bytes()).operators.keys() == {"ann"}
    assert ((own / "operators/ann/identity.json").stat().st_mode & 0o777) == 0o600
