"""A site from an unpacked package, against a real server on one port: it trains, rests, and the model comes home."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sysconfig
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits
from staging import WHILE, Started, wait_for

from benchmarks._ports import free_port
from fedstrata.core.storage.archives import unpack

pytestmark = pytest.mark.sites

FEDSTRATA = str(Path(sysconfig.get_path("scripts")) / "fedstrata")
SITES = ("a", "b", "c")


class Packaged(Started):
    """A site that its own start script starts."""

    def __init__(self, folder: Path, site: str, *more: str, within: Sequence[str] = ()):
        self._log, self._begin = folder / f"{site}.txt", 0
        with self._log.open("wb") as file:
            self.process = subprocess.Popen(
                [*within, folder / f"fedstrata-{site}/start.sh", *more],
                env={**os.environ, "FEDSTRATA": FEDSTRATA, "OMP_NUM_THREADS": "1"},
                cwd=folder / f"fedstrata-{site}",
                stdout=file,
                stderr=file,
                stdin=subprocess.DEVNULL,
            )


def read_only(folder: Path) -> list[str]:
    """Return what lets a program see a folder that it cannot write, as a unit does; nothing where we may not."""
    folder.mkdir()
    script = f'mount --bind "{folder}" "{folder}" && mount -o remount,bind,ro "{folder}" && exec "$@"'
    within = ["unshare", "--mount", "sh", "-c", script, "sh"]
    try:
        done = subprocess.run([*within, "true"], capture_output=True, check=False)
    except FileNotFoundError:
        return []
    return within if done.returncode == 0 else []


def as_the_readme_says(folder: Path, state: Path, options: str) -> None:
    """Ask for a run with the lines for systemd, where `sudo` makes nobody another user."""
    readme = (folder / "fedstrata-server/README.md").read_text()
    (lines,) = [block for block in re.findall(r"```sh\n(.*?)```", readme, re.DOTALL) if "sudo -u fedstrata" in block]
    lines = lines.replace("/var/lib/fedstrata", str(state)).replace("/opt/fedstrata-venv/bin/fedstrata", FEDSTRATA)
    lines = lines.replace("--sites N", "--sites 3").rstrip() + f" {options}\n"
    (folder / "experiment.toml").write_text("[train]\nrounds = 2\n")
    sudo = 'sudo() { case $1 in -u) shift 2; "$@";; install) shift 7; cp "$@";; esac; }\n'
    done = subprocess.run(["sh", "-e"], input=sudo + lines, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def called(folder: Path, *words: str) -> str:
    done = subprocess.run([FEDSTRATA, *words], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def listening(pids: set[int]) -> set[int]:
    """Return the ports at which processes listen, from what the system says of their sockets."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            target = os.readlink(link)
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    rows = [line.split() for kind in ("tcp", "tcp6") for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and row[9] in inodes}


def test_packages_run_and_the_model_comes_home_with_the_names_of_its_classes(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSTRATA_STATE", str(tmp_path / "state"))
    port, commands = free_port(), []
    called(tmp_path, "deploy", "keys", "keys", "--sites", ",".join(SITES))
    called(tmp_path, "deploy", "package", "out", "--keys", "keys", "--server", f"127.0.0.1:{port}", "--data", "digits")
    for archive in (tmp_path / "out").iterdir():
        with tarfile.open(archive) as file:
            unpack(file, tmp_path)
    try:
        within = read_only(tmp_path / "operator")
        commands.append(server := Packaged(tmp_path, "server", "--host", "127.0.0.1", within=within))
        server.says("the server is up")
        for i, site in enumerate(SITES):
            commands.append(Packaged(tmp_path, site, "--partition", f"{i}/3", "--rest", "2"))
        for site, command in zip(SITES, commands[1:], strict=True):
            command.says(f"site {site}: connected")
        assert listening({pid for pid, _ in server.family()}) == {port}
        assert not listening({pid for command in commands[1:] for pid, _ in command.family()})
        if within:
            words = ("deploy", "run", "--server", f"127.0.0.1:{port}", "--sites", "3", "--out", "operator/first")
            done = subprocess.run([FEDSTRATA, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
            assert done.returncode == 2, done.stderr
            (said,) = [line for line in done.stderr.splitlines() if "error" in line.lower()]
            assert "the server cannot write there (Read-only file system)" in said
            assert not (tmp_path / "operator/first").exists()
        masked = "--stream --set privacy.labels=prf --set privacy.aggregate=masked"  # a stream, over the same port
        as_the_readme_says(tmp_path, tmp_path / "state", masked)
        assert (tmp_path / "state/runs/first/summary.json").exists()
        logged = [json.loads(line) for line in (tmp_path / "state/site-a/log.jsonl").read_text().splitlines()]
        (admitted,) = [line for line in logged if line["event"] == "run_admitted"]
        assert (admitted["method"], admitted["privacy"]["labels"]) == ("fedavg", "prf")
        said = tmp_path / "state/site-a/log.jsonl"
        wait_for(lambda: '"process_rests"' in said.read_text())
        wait_for(lambda: len(commands[1].family()) == 2)  # what keeps it, and its connection
        called(tmp_path, "deploy", "fetch", "--site", "a", "-o", "home")
        np.save(tmp_path / "x.npy", load_digits().images[:5, None].astype(np.float32))
        words = ("predict", "home", "x.npy", "--json")
        named = json.loads(called(tmp_path, *words, "--keys", "fedstrata-a/keys"))
        assert sorted(map(str, named["classes"])) == sorted(map(str, range(10)))
        assert json.loads(called(tmp_path, *words))["classes"] != named["classes"], "placeholders, without its keys"
    finally:
        for command in reversed(commands):
            command.process.terminate()
        for command in commands:
            command.process.wait(WHILE)
