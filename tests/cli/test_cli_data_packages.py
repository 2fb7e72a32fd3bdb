"""`fedstrata data fetch` where the publisher cannot be reached: packages of registries, all of them on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from publishing import covtype, covtype_table, debian, left_behind, tarball, wheel

from fedstrata.data import sources
from fedstrata.data.sets.covtype import Covtype
from fedstrata.data.sources import Package, Source

# A download that breaks off leaves the HTTP library's own socket to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

TABLE = covtype_table()
WHEEL = "tiny-1.0-cp37-cp37m-manylinux1_x86_64.whl"


def package(content: bytes) -> Package:
    return Package("PyPI", "tiny", "1.0", WHEEL, 0.1, hashlib.sha256(content).hexdigest())


@pytest.fixture
def publisher(server, monkeypatch):
    """The address of the publisher, who gives nothing yet."""
    monkeypatch.setattr(Covtype, "sources", (Source(f"{server.url}/covtype.data.gz"),))
    return server


@pytest.fixture
def client(tmp_path, monkeypatch):
    """A client of the registry that runs some lines of Python; it gives the wheel unless told otherwise."""
    content = wheel("tiny", "1.0", {"tiny/covtype.csv": TABLE})
    (tmp_path / "registry.whl").write_bytes(content)
    calls = tmp_path / "calls"
    give = f"import shutil, sys; shutil.copy({str(tmp_path / 'registry.whl')!r}, {WHEEL!r})"

    def tell(code: str) -> None:
        noting = f"open({str(calls)!r}, 'a').write('x'); {code}"
        monkeypatch.setattr(sources, "_client", lambda _: [sys.executable, "-c", noting])

    tell(give)
    monkeypatch.setattr(Covtype, "package", package(content))
    tell.calls = lambda: len(calls.read_text()) if calls.exists() else 0
    return tell


def test_the_publisher_comes_first(cli, publisher, client):
    publisher.files["/covtype.data.gz"] = covtype()
    code, out, _ = cli("data", "fetch", "covtype", "--json")
    assert (code, client.calls()) == (0, 0)
    assert json.loads(out)["source"] == [f"{publisher.url}/covtype.data.gz"]


def test_the_package_comes_next_and_the_failure_is_told(cli, publisher, client, folder):
    code, out, err = cli("data", "fetch", "covtype", "--json")
    row = json.loads(out)
    assert code == 0
    assert (row["source"], row["verified"], row["complete"]) == (["PyPI package tiny 1.0"], True, False)
    assert row["samples"] + row["test_samples"] == 40
    assert f"{publisher.url}/covtype.data.gz cannot be downloaded: 404" in err
    assert "trying PyPI package tiny 1.0" in err
    assert "downloading PyPI package tiny 1.0 (0.1 MB)" in err
    assert [name for name in left_behind(folder) if name.startswith("downloads")] == [f"downloads/covtype/{WHEEL}"]


def test_other_options_take_the_package_that_is_there(cli, publisher, client, folder):
    assert cli("data", "fetch", "covtype")[0] == 0
    assert cli("data", "fetch", "covtype", "--set", "classes=two")[0] == 0
    assert (len(publisher.asked), client.calls()) == (1, 1)
    (folder / "downloads/covtype" / WHEEL).write_bytes(b"not what it was")
    assert cli("data", "fetch", "covtype")[0] == 0
    assert client.calls() == 2, "one that was changed is downloaded anew"


def test_a_publisher_that_stays_silent_is_given_up(cli, publisher, client, monkeypatch):
    publisher.silent.add("/covtype.data.gz")
    monkeypatch.setattr(sources, "SILENCE", 0.1)
    code, _, err = cli("data", "fetch", "covtype")
    assert (code, client.calls()) == (0, 1)
    assert "cannot be downloaded: timed out" in err


@pytest.mark.parametrize("content", [b"<html>Please log in</html>", covtype()[:100]], ids=["a page", "another file"])
def test_a_publisher_that_gives_something_else_is_left_for_the_package(cli, publisher, client, folder, content):
    publisher.files["/covtype.data.gz"] = content
    code, _, err = cli("data", "fetch", "covtype")
    assert code == 0
    assert "covtype.data.gz is damaged or incomplete" in err
    assert not (folder / "downloads/covtype/covtype.data.gz").exists()


def test_a_wrong_checksum_leaves_nothing(cli, publisher, client, folder, monkeypatch):
    monkeypatch.setattr(Covtype, "package", package(b"another"))
    code, out, err = cli("data", "fetch", "covtype")
    assert (code, out) == (2, "")
    last = err.splitlines()[-1]
    assert "404" in last, "both failures are told"
    assert "PyPI package tiny 1.0 does not have the checksum it should; give its files with --from PATH" in last
    assert left_behind(folder) == []


def test_a_package_without_the_data_is_refused(cli, publisher, client, folder, tmp_path, monkeypatch):
    content = wheel("tiny", "1.0", {"tiny/iris.csv": b"1,2"})
    (tmp_path / "registry.whl").write_bytes(content)
    monkeypatch.setattr(Covtype, "package", package(content))
    code, _, err = cli("data", "fetch", "covtype")
    assert code == 2
    assert f"{WHEEL} does not hold covtype" in err
    assert not (folder / "covtype").exists()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("pass", f"pip did not give {WHEEL}"),
        ("import time; time.sleep(60)", "pip took longer than 0.5 s"),
        ("sys = __import__('sys'); print('W: hm\\nE: no such package', file=sys.stderr); sys.exit(100)", "E: no such"),
        ("__import__('sys').exit('went wrong')", "1.0: went wrong"),
    ],
)
def test_a_client_that_fails_is_told_and_leaves_nothing(cli, publisher, client, folder, monkeypatch, code, said):
    monkeypatch.setattr(sources, "LIMIT", 0.5 if "sleep" in code else 60)
    client(code)
    code, _, err = cli("data", "fetch", "covtype")
    assert code == 2
    assert said in err
    assert "W: hm" not in err
    assert left_behind(folder) == []
    assert list((folder / "downloads/covtype").iterdir()) == []


def test_a_folder_that_cannot_be_made_is_told(cli, publisher, client, folder):
    folder.mkdir()
    (folder / "downloads").write_text("in the way")
    code, _, err = cli("data", "fetch", "covtype")
    assert code == 2
    assert str(folder / "downloads") in err.splitlines()[-1]


def test_a_client_that_is_not_there_is_told(cli, publisher, client, monkeypatch):
    monkeypatch.setattr(sources, "_client", lambda _: None)
    code, _, err = cli("data", "fetch", "covtype")
    assert code == 2
    assert "PyPI package tiny 1.0: pip is not installed; give its files with --from PATH" in err


def test_files_that_came_whole_are_not_asked_for_again(cli, server, monkeypatch):
    monkeypatch.setattr(Covtype, "package", None)
    monkeypatch.setattr(Covtype, "sources", (Source(f"{server.url}/readme"), Source(f"{server.url}/covtype.data.gz")))
    server.files["/readme"] = b"a table of trees"
    assert cli("data", "fetch", "covtype")[0] == 2
    server.files["/covtype.data.gz"] = covtype()
    assert cli("data", "fetch", "covtype")[0] == 0
    assert server.asked == ["/readme", "/covtype.data.gz", "/covtype.data.gz"]


# ---- the real clients, with a registry on this machine -----------------------------------------------------------


def pypi(server, monkeypatch, tmp_path) -> tuple[Package, bytes]:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
    content = wheel("tiny", "1.0", {"tiny/covtype.csv": TABLE})
    server.files["/simple/tiny/"] = f'<!DOCTYPE html><html><body><a href="/{WHEEL}">{WHEEL}</a></body></html>'.encode()
    server.files[f"/{WHEEL}"] = content
    return package(content), content


def npm(server, monkeypatch, tmp_path) -> tuple[Package, bytes]:
    monkeypatch.setenv("npm_config_registry", server.url)
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "npm"))
    monkeypatch.setenv("npm_config_userconfig", str(tmp_path / "npmrc"))
    content = tarball({"package/package.json": b'{"name": "tiny", "version": "1.0.0"}', "package/covtype.csv": TABLE})
    dist = {"tarball": f"{server.url}/tiny-1.0.0.tgz", "shasum": hashlib.sha1(content).hexdigest()}
    version = {"name": "tiny", "version": "1.0.0", "dist": dist}
    server.files["/tiny"] = json.dumps({"name": "tiny", "versions": {"1.0.0": version}}).encode()
    server.files["/tiny-1.0.0.tgz"] = content
    return replace(package(content), registry="npm", version="1.0.0", file="tiny-1.0.0.tgz"), content


def apt(server, monkeypatch, tmp_path) -> tuple[Package, bytes]:
    control = b"Package: tiny\nVersion: 1.0-1\nArchitecture: all\nMaintainer: Nobody <nobody@example.org>\n"
    inside = {"debian-binary": b"2.0\n", "control.tar.gz": tarball({"./control": control})}
    content = debian({**inside, "data.tar.xz": tarball({"./usr/share/covtype.csv": TABLE}, "xz")})
    digest = hashlib.sha256(content).hexdigest()
    listed = f"Filename: ./tiny_1.0-1_all.deb\nSize: {len(content)}\nSHA256: {digest}\nDescription: small\n\n"
    server.files["/./Packages"] = control + listed.encode()
    server.files["/./tiny_1.0-1_all.deb"] = content
    server.files |= {path.replace("/./", "/"): body for path, body in server.files.items()}
    (tmp_path / "parts").mkdir()
    (tmp_path / "sources.list").write_text(f"deb [trusted=yes] {server.url}/ ./\n")
    (tmp_path / "apt.conf").write_text(
        f'Dir::Etc::SourceList "{tmp_path}/sources.list";\nDir::Etc::SourceParts "{tmp_path}/parts";\n'
        'APT::Sandbox::User "";\nAcquire::http::Proxy "DIRECT";\n'
    )
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))
    return replace(package(content), registry="Debian", version="1.0-1", file="tiny_1.0-1_all.deb"), content


@pytest.mark.parametrize("registry", [pypi, npm, apt])
def test_each_client_gets_its_package(cli, server, tmp_path, monkeypatch, registry):
    monkeypatch.setenv("FEDSTRATA_DATA", "data")  # a relative one: clients run in another folder
    wanted, content = registry(server, monkeypatch, tmp_path)
    if sources._client(wanted.client) is None:
        pytest.skip(f"there is no {wanted.client} here")
    monkeypatch.setattr(Covtype, "sources", ())
    monkeypatch.setattr(Covtype, "package", wanted)
    code, out, err = cli("data", "fetch", "covtype", "--json")
    assert code == 0, err
    row = json.loads(out)
    assert (row["source"], row["samples"] + row["test_samples"]) == ([str(wanted)], 40)
    # The archive itself, given with --from, is known too.
    Path(wanted.file).write_bytes(content)
    code, out, _ = cli("data", "fetch", "covtype", "--from", wanted.file, "--json")
    assert (code, json.loads(out)["verified"]) == (0, True)
    # A registry that no longer has it says so.
    shutil.rmtree(tmp_path / "data")
    server.files.clear()
    monkeypatch.setattr(Covtype, "package", replace(wanted, name="gone"))
    code, _, err = cli("data", "fetch", "covtype")
    assert code == 2
    assert err.splitlines()[-1].startswith(f"error: {replace(wanted, name='gone')}: ")
    assert "gone" in err.split(": ", 2)[2]
    assert "give its files with --from PATH" in err


@pytest.mark.parametrize(
    "content",
    [b"", b"!<arch>\n", b"!<arch>\n" + b"x" * 60, debian({"debian-binary": b"2.0\n"}), debian({"data.tar.xz": b"no"})],
)
def test_a_damaged_debian_package_is_refused(cli, folder, content):
    Path("covtype.deb").write_bytes(content)
    code, _, err = cli("data", "fetch", "covtype", "--from", "covtype.deb")
    assert code == 2
    assert "covtype.deb is damaged or incomplete" in err
    assert left_behind(folder) == []
