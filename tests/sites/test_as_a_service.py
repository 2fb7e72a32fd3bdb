"""A site from an unpacked package, against a real server on one port: it trains, rests, and the model comes home."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
import tarfile
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits
from staging import WHILE, Started, wait_for

from benchmarks._ports import free_port
from fedstrata.core.archives import unpack

pytestmark = pytest.mark.sites

FEDSTRATA = str(Path(sysconfig.get_path("scripts")) / "fedstrata")
SITES = ("a", "b", "c")


class Packaged(Started):
    """A site that its own start script starts."""

    def __init__(self, folder: Path, site: str, *more: str):
        self._log, self._begin = folder / f"{site}.txt", 0
        with self._log.open("wb") as file:
            self.process = subprocess.Popen(
                [folder / f"fedstrata-{site}/start.sh", *more],
                env={**os.environ, "FEDSTRATA": FEDSTRATA, "OMP_NUM_THREADS": "1"},
                cwd=folder / f"fedstrata-{site}",
                stdout=file,
                stderr=file,
                stdin=subprocess.DEVNULL,
            )


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
        commands.append(server := Packaged(tmp_path, "server", "--host", "127.0.0.1"))
        server.says("the server is up")
        for i, site in enumerate(SITES):
            commands.append(Packaged(tmp_path, site, "--partition", f"{i}/3", "--rest", "2"))
        for site, command in zip(SITES, commands[1:], strict=True):
            command.says(f"site {site}: connected")
        assert listening({pid for pid, _ in server.family()}) == {port}
        assert not listening({pid for command in commands[1:] for pid, _ in command.family()})
        masked = ("--set", "privacy.labels=prf", "--set", "privacy.aggregate=masked", "--set", "train.rounds=2")
        where = ("--server", f"127.0.0.1:{port}", "--sites", "3", "--stream")  # a stream, over the same port
        called(tmp_path, "deploy", "run", *where, "--out", "first", *masked)
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
