"""A federation whose keys change while it runs, and sites that fail: real processes, with keys."""

from __future__ import annotations

import json
import resource
import shutil

import pytest
from staging import FEDSTRATA, Started, wait_for

from fedstrata.deploy.authority import Authority
from fedstrata.deploy.site_reports import conditions

pytestmark = pytest.mark.sites

SMALL = {"model.hidden": (8,), "train.epochs": 1, "train.batch_size": 64, "train.rounds": 100_000}


@pytest.fixture
def changing(federation):
    """Return the federation, and what signs its rolls; the server gets each as an operator would bring it."""
    federation.mend()
    authority = federation.folder / "keys"

    def bring(serial):
        shutil.copy(authority / "ca/roll.json", authority / "server/roll.json")
        federation.commands["server"].says(f"roll {serial} of ")

    return federation, authority, bring


def test_in_a_run_that_goes_on_a_site_is_added_one_revoked_and_one_gets_new_keys(changing, tmp_path):
    sites, authority, bring = changing
    with sites.running(tmp_path / "run", SMALL | {"train.evaluate.every": 1000}, stream=True) as run:
        run.reaches("round", round=1)
        bring(Authority.open(authority).add(["f"]).serial)
        data = ("--data", "digits", "--partition", "0/5")
        sites.commands["f"] = f = Started(sites.folder, "f", *sites.site("f"), *data, program=FEDSTRATA)
        joined = run.reaches("site_joined", site="f")
        assert joined["client"] == 3
        old = shutil.copytree(authority / "sites/f", tmp_path / "f")  # as it lies at a site far away
        bring(Authority.open(authority).revoke("f").serial)
        f.ends(77)
        assert f.said.strip().splitlines()[-1].startswith("error: site f: the server at")
        assert "does not take its key any more" in f.said
        assert "Traceback" not in f.said
        run.reaches("site_away", site="f")
        for keys, why in ((old, "does not take its key any more"), ("keys/sites/f", "site f is not on roll")):
            words = [*sites.site("f")[:-1], str(keys)]
            sites.commands["f"] = f = Started(sites.folder, "f", *words, *data, program=FEDSTRATA)  # as a service would
            f.ends(77)
            assert why in f.said
            assert "its data are ready" not in f.said, "it ends before it reads them"
        bring(Authority.open(authority).renew("a").serial)
        sites.commands["a"].ends(77)
        sites.start_site("a")
        run.reaches("site_back", site="a")
    del sites.commands["f"]
    at_server, at_f = (logged(sites.folder / "state" / name) for name in (f"server-{sites.port}", "site-f"))
    changes = [(line["event"], line["site"]) for line in at_server if line["event"].startswith("site_re")]
    assert changes[-4:] == [
        ("site_registered", "f"),
        ("site_revoked", "f"),
        ("site_renewed", "a"),
        ("site_registered", "a"),
    ]
    assert [line["event"] for line in at_f][-1] == "key_refused"
    named = next(line for line in at_server if line["event"] == "run_named" and line["path"] == str(tmp_path / "run"))
    assert named["id"] in [line["run"] for line in at_f if line["event"] == "run_admitted"], "both logs can be joined"
    assert sites.commands["b"].said.count("a roll of the server is refused: roll 1 is not newer than roll 2") <= 1


def test_a_site_whose_key_was_renewed_while_its_server_was_down_hears_so_when_that_is_back(changing):
    sites, authority, _ = changing
    sites.commands["server"].kill()
    Authority.open(authority).renew("a")
    shutil.copy(authority / "ca/roll.json", authority / "server/roll.json")
    sites.start_server()
    sites.commands["a"].ends(77)
    assert "does not take its key any more" in sites.commands["a"].said
    sites.start_site("a")
    assert all(sites.commands[site].process.poll() is None for site in "bc"), "others come back by themselves"


def logged(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_a_full_disk_at_a_site_is_said_at_both_ends(changing):
    sites, _, _ = changing
    site = sites.commands["a"]
    limit = 1 << 15  # less than a site must be able to write, more than it has said
    resource.prlimit(site.process.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        site.says("site a: DISK FULL: ")
        folder = sites.there.folder
        wait_for(lambda: conditions(folder)["a"].state == "disk full")
        rows = json.loads(sites.call("status", "--server", sites.address, "--json"))["sites"]
        (row,) = [row for row in rows if row["site"] == "a"]
        assert (row["state"], "cannot be written" in row["about"]) == ("disk full", True)
        assert row["since"]
    finally:
        resource.prlimit(site.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    site.says("there is room on its disk again")
