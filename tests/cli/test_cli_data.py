"""`fedstrata data`: list, fetch (from a server on this machine, and from files) and import."""

from __future__ import annotations

import gzip
import hashlib
import json
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from publishing import covtype, left_behind
from rich.console import Console

from fedstrata.cli.downloads import shown
from fedstrata.core import registry
from fedstrata.data.sets.covtype import Covtype
from fedstrata.data.sets.mnist import Mnist
from fedstrata.data.sources import Source

# A download that breaks off leaves the HTTP library's own socket to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


@pytest.fixture(autouse=True)
def _no_package(monkeypatch):
    """The publisher alone: what happens with packages is told in another file."""
    monkeypatch.setattr(Covtype, "package", None)
    monkeypatch.setattr(Mnist, "package", None)


# ---- list ----------------------------------------------------------------------------------------------------------


def test_what_was_imported_is_told_in_words(cli, folder):
    np.savez("mine.npz", x=np.ones((10, 2)), y=np.arange(10) % 2)
    code, out, _ = cli("data", "import", "mine", "mine.npz")
    assert code == 0
    said = dict(line.split(maxsplit=1) for line in out.replace("test samples", "tests").splitlines()[:-1])
    assert (said["state"], said["samples"], said["tests"], said["options"]) == ("complete", "8", "2", "path=mine")
    assert "True" not in out
    assert out.splitlines()[-1] == 'use it with data.name = "own", data.path = "mine"'


def test_list_names_every_set_and_says_what_is_there(cli, tmp_path, folder):
    (tmp_path / "covtype.data.gz").write_bytes(covtype())
    np.savez("mine.npz", x=np.ones((10, 2)), y=np.arange(10) % 2)
    assert cli("data", "fetch", "covtype", "--from", str(tmp_path), "--set", "classes=two")[0] == 0
    assert cli("data", "import", "mine", "mine.npz")[0] == 0
    code, out, _ = cli("data", "list", "--json")
    rows = json.loads(out)
    assert code == 0
    assert {r["name"] for r in rows} == set(registry.names("datasets")) - {"hf"}  # which holds what a user names
    by_name = {r["name"]: r for r in rows}
    assert all(r["licence"] for r in rows)
    assert by_name["digits"]["fetched"]
    assert by_name["digits"]["samples"] + by_name["digits"]["test_samples"] == 1797
    assert not by_name["mnist"]["fetched"]
    assert by_name["mnist"]["samples"] is None
    found = by_name["covtype"]
    assert (found["key"], found["options"]) == ("covtype-two", {"classes": "two"})
    assert (found["complete"], found["verified"]) == (False, False)
    assert found["samples"] + found["test_samples"] == 12
    assert found["bytes"] == sum(p.stat().st_size for p in (folder / "covtype-two").iterdir())
    assert by_name["own"]["options"] == {"path": "mine"}
    code, out, _ = cli("data", "list")
    assert code == 0
    assert "not fetched" in out
    assert "a part" in out
    assert str(folder) in out.replace("\n", "")


def test_list_goes_on_past_damaged_sets(cli, tmp_path, folder):
    (tmp_path / "covtype.data.gz").write_bytes(covtype())
    np.savez("mine.npz", x=np.ones((10, 2)), y=np.arange(10) % 2)
    for classes in ("all", "two"):
        assert cli("data", "fetch", "covtype", "--from", str(tmp_path), "--set", f"classes={classes}")[0] == 0
    for name in ("a", "b", "c", "d"):
        assert cli("data", "import", name, "mine.npz")[0] == 0
    (folder / "covtype-two/about.json").write_text('{"name": "cov')
    (folder / "own-a/x.npy").write_bytes((folder / "own-a/x.npy").read_bytes()[:-8])
    (folder / "own-b/test_y.npy").write_bytes(b"")
    (folder / "own-c/about.json").write_text("[]")
    (folder / "strange").mkdir()
    (folder / "strange/about.json").write_text("{}")
    code, out, _ = cli("data", "list", "--json")
    rows = {row["key"]: row for row in json.loads(out)}
    assert code == 0
    assert {key for key, row in rows.items() if row["damaged"]} == {
        *("covtype-two", "own-a", "own-b", "own-c", "strange")
    }
    assert rows["covtype-two"]["name"] == "covtype"
    assert rows["own-a"]["name"] == "own"
    assert rows["own-d"]["samples"] == 8
    assert rows["covtype"]["fetched"]
    code, out, _ = cli("data", "list")
    assert code == 0
    assert out.count(" damaged ") == 5
    assert "not fetched" in out


def test_an_empty_list_needs_no_folder(cli, folder):
    assert cli("data", "list")[0] == 0
    assert not folder.exists()


# ---- fetch ---------------------------------------------------------------------------------------------------------


def test_a_download_without_a_checksum_is_marked_unverified(cli, server, monkeypatch, folder):
    server.files["/covtype.data.gz"] = covtype()
    monkeypatch.setattr(Covtype, "sources", (Source(f"{server.url}/covtype.data.gz"),))
    code, out, err = cli("data", "fetch", "covtype", "--json")
    assert code == 0
    row = json.loads(out)
    assert row["samples"] + row["test_samples"] == 40
    assert (row["verified"], row["complete"]) == (False, False)
    assert f"downloading {server.url}/covtype.data.gz (no checksum is known: contents are checked)" in err
    assert "100 % of 0.0 MB" in err
    assert "only a part of the published set" in err
    assert len(Covtype().load().y) == row["samples"]
    assert cli("data", "fetch", "covtype", "--set", "classes=two", "-q")[::2] == (0, "")
    assert len(server.asked) == 1, "other options take the same files"


def test_a_download_with_its_checksum_is_verified(cli, server, monkeypatch):
    server.files["/covtype.data.gz"] = covtype()
    digest = hashlib.sha256(server.files["/covtype.data.gz"]).hexdigest()
    monkeypatch.setattr(Covtype, "sources", (Source(f"{server.url}/covtype.data.gz", digest),))
    code, out, err = cli("data", "fetch", "covtype", "--json")
    assert (code, json.loads(out)["verified"]) == (0, True)
    assert "no checksum" not in err


def test_a_wrong_checksum_leaves_nothing(cli, server, monkeypatch, folder):
    server.files["/covtype.data.gz"] = covtype()
    monkeypatch.setattr(Covtype, "sources", (Source(f"{server.url}/covtype.data.gz", "0" * 64),))
    code, out, err = cli("data", "fetch", "covtype")
    assert (code, out) == (2, "")
    assert "does not have the checksum it should" in err
    assert left_behind(folder) == []


def test_a_download_that_breaks_off_or_is_not_there_leaves_nothing(cli, server, monkeypatch, folder):
    server.files["/covtype.data.gz"] = covtype()
    server.promised = 100  # bytes that never come
    monkeypatch.setattr(Covtype, "sources", (Source(f"{server.url}/covtype.data.gz"),))
    code, _, err = cli("data", "fetch", "covtype")
    assert code == 2
    assert "cannot be downloaded" in err
    assert "--from PATH" in err
    assert left_behind(folder) == []
    monkeypatch.setattr(Covtype, "sources", (Source(f"{server.url}/moved.gz"),))
    server.promised = 0
    assert "404" in cli("data", "fetch", "covtype")[2]
    assert left_behind(folder) == []


def test_a_damaged_download_is_not_kept_and_the_next_one_counts(cli, server, monkeypatch, folder):
    whole = covtype()
    server.files["/covtype.data.gz"] = whole[: len(whole) // 2]
    monkeypatch.setattr(Covtype, "sources", (Source(f"{server.url}/covtype.data.gz"),))
    code, _, err = cli("data", "fetch", "covtype")
    assert code == 2
    assert "covtype.data.gz is damaged or incomplete" in err
    assert left_behind(folder) == []
    server.files["/covtype.data.gz"] = whole
    assert cli("data", "fetch", "covtype")[0] == 0


@pytest.mark.parametrize("name", ["package.zip", "package.whl", "package.tgz", "package.tar.gz"])
def test_a_truncated_archive_is_refused(cli, tmp_path, folder, name):
    (tmp_path / name).write_bytes(gzip.compress(b"x" * 9999)[:20] if "gz" in name else b"PK\3\4 and no more")
    code, _, err = cli("data", "fetch", "covtype", "--from", str(tmp_path / name))
    assert code == 2
    assert "is damaged or incomplete" in err
    assert left_behind(folder) == []


def test_what_was_there_stays_when_a_fetch_fails(cli, tmp_path):
    (tmp_path / "covtype.data.gz").write_bytes(covtype())
    cli("data", "fetch", "covtype", "--from", str(tmp_path))
    before = len(Covtype().load().y)
    (tmp_path / "covtype.data.gz").write_bytes(covtype()[:50])
    assert cli("data", "fetch", "covtype", "--from", str(tmp_path))[0] == 2
    assert len(Covtype().load().y) == before


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["fetch", "covtipe"], 'NAME = "covtipe" is unknown (did you mean "covtype"?); allowed: '),
        (
            ["fetch", "covtype", "--set", "classes=three"],
            'data.classes = "three" is not valid; allowed: "all" or "two"',
        ),
        (["fetch", "covtype", "--set", "clases=two"], 'data.clases is not an option (did you mean "classes"?)'),
        (["fetch", "covtype", "--set", "classes"], "must look like"),
        (["fetch", "covtype", "--from", "nowhere"], "nowhere does not exist"),
        (["fetch", "digits", "--from", "."], "digits comes with fedstrata"),
        (["fetch", "own"], "fedstrata data import NAME PATH"),
        (["fetch", "femnist"], "femnist has no address to download from"),
        (["import", "mine", "nowhere.csv"], 'data.path = "nowhere.csv" does not exist'),
        (["import", "a/b", "nowhere.csv"], 'NAME = "a/b" is not valid'),
        (["import", "mine", "nowhere.csv", "--test", "1.5"], "data.test = 1.5 is not valid; allowed: a number < 1"),
    ],
)
def test_a_wrong_request_ends_with_code_2(cli, folder, args, said):
    code, out, err = cli("data", *args)
    assert (code, out) == (2, "")
    assert said in err
    assert left_behind(folder) == []


def test_a_data_folder_that_cannot_be_written(cli, tmp_path, monkeypatch, server):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("FEDSTRATA_DATA", str(tmp_path / "file" / "data"))
    monkeypatch.setattr(Mnist, "sources", (Source(f"{server.url}/mnist.gz"),))
    np.savez("mine.npz", x=np.ones((4, 2)), y=[0, 1, 0, 1])
    for args in (["fetch", "mnist"], ["fetch", "mnist", "--from", "."], ["import", "mine", "mine.npz"]):
        code, _, err = cli("data", *args)
        assert code == 2
        assert "cannot be written" in err
        assert "set FEDSTRATA_DATA to another" in err
    assert server.asked == [], "refused before the download"


def test_an_embedded_set_needs_no_fetching(cli):
    code, out, _ = cli("data", "fetch", "digits", "--json")
    assert (code, json.loads(out)["embedded"]) == (0, True)


# ---- import --------------------------------------------------------------------------------------------------------


def test_imported_data_runs(cli, folder):
    lines = ["a,b,site,kind", *(f"{i % 7},{i % 3},{'xyz'[i % 3]},{'no' if i % 2 else 'yes'}" for i in range(60))]
    Path("patients.csv").write_text("\n".join(lines) + "\n")
    args = ["--label", "kind", "--client", "site", "--test", "0.25"]
    code, out, _ = cli("data", "import", "patients", "patients.csv", *args, "--json")
    row = json.loads(out)
    assert code == 0
    assert (row["samples"], row["test_samples"]) == (44, 16)
    assert row["path"] == str(folder / "own-patients")
    Path("patients.csv").unlink()
    sets = ["data.name=own", "data.path=patients", "data.partition.kind=natural", "train.rounds=1"]
    code, out, err = cli(
        "run", "-q", "--json", *(a for s in [*sets, "train.clients_per_round=all"] for a in ("--set", s))
    )
    assert code == 0, err
    assert json.loads(out)["client_updates"] == 3


def test_an_import_says_how_it_is_used_and_what_it_replaces(cli, tmp_path):
    for number in (1, 2):
        np.savez(f"{number}.npz", x=np.ones((10, 2)), y=np.arange(10) % 2)
    code, out, err = cli("data", "import", "mine", "1.npz")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == 'use it with data.name = "own", data.path = "mine"'
    code, _, err = cli("data", "import", "mine", "2.npz")
    assert code == 0
    assert err.startswith(f"note: mine was imported before, from {tmp_path / '1.npz'}, and is replaced: ")
    code, _, err = cli("run", "--set", "data.name=mine")
    assert code == 2
    assert err == 'error: data.name = "mine" names imported data: write data.name = "own", data.path = "mine"\n'


def test_an_import_that_fails_stores_nothing(cli, folder):
    Path("t.csv").write_text("a,kind\n1,0\n2,1\n")
    code, _, err = cli("data", "import", "t", "t.csv")
    assert code == 2
    assert "its columns: a, kind" in err
    assert left_behind(folder) == []


# ---- progress --------------------------------------------------------------------------------------------------------


def test_on_a_terminal_a_download_has_a_bar():
    screen = StringIO()
    with shown(False, Console(file=screen, force_terminal=True, width=100)) as (say, bar):
        for size in (3_000_000, 0):
            say("downloading a file")
            bar.total = size
            bar.update(1_000_000)
            bar.reset()
            bar.update(size)
            assert bar.total == size
            bar.close()
    assert "MB" in screen.getvalue()
    assert "downloading a file" in screen.getvalue()


def test_a_download_of_unknown_size_says_nothing_wrong():
    screen = StringIO()
    with shown(False, Console(file=screen)) as (_, bar):
        bar.total = 0
        bar.update(10)
        bar.total = 8
        for _ in range(8):
            bar.update(1)
        bar.reset()
        bar.update(8)
        bar.close()
    assert [line.split()[0] for line in screen.getvalue().splitlines()] == ["25", "50", "75", "100"]
