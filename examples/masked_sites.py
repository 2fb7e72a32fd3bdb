"""Masked labels at real sites: the server trains a model whose answers only the sites can name.

Run it with `python examples/masked_sites.py` (needs `pip install 'fedstrata[flower]'`; a minute or two). It starts a
server and three sites as processes of their own, as `docs/deploy.md` does in several terminals.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

FEDSTRATA = [sys.executable, "-m", "fedstrata"]
SITES = ("aachen", "bonn", "cologne")


def free_port() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


def call(*args: str) -> str:
    done = subprocess.run([*FEDSTRATA, *args], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


def start(running: ExitStack, name: str, until: str, *args: str) -> None:
    """Start a command in the background, wait for what it says when it is ready, and end it with this script."""
    log = Path(f"{name}.log")
    with log.open("w") as file:
        process = subprocess.Popen([*FEDSTRATA, "deploy", *args], stdout=file, stderr=file)
    running.callback(process.wait)
    running.callback(process.terminate)
    while until not in log.read_text():
        if process.poll() is not None:
            sys.exit(log.read_text())
        time.sleep(0.2)


if __name__ == "__main__":
    os.environ["FEDSTRATA_STATE"] = str(Path("state").absolute())
    images, digits = load_digits(return_X_y=True)
    np.savez("new.npz", x=images.reshape(-1, 1, 8, 8), y=digits)  # as they come: 0 to 16; the model's file knows
    call("deploy", "keys", "keys", "--sites", ",".join(SITES))
    port = free_port()
    with ExitStack() as running:
        options = ["--keys", "keys/server", "--port", port]
        start(running, "server", "the server is up", "server", *options)
        for i, site in enumerate(SITES):
            options = ["--keys", f"keys/sites/{site}", "--server", f"127.0.0.1:{port}", "--site", site]
            start(
                running,
                site,
                f"site {site}: connected",
                "client",
                *options,
                "--data",
                "digits",
                "--partition",
                f"{i}/3",
            )
        asked = ["privacy.labels=prf", "train.rounds=8", "train.clients_per_round=all", "train.lr=0.2"]
        sets = [word for one in asked for word in ("--set", one)]
        call("deploy", "run", "--sites", "3", "--out", "run", "--server", f"127.0.0.1:{port}", *sets, "-q")
    call("predict", "run", "new.npz", "-o", "server.csv")
    call("predict", "run", "new.npz", "-o", "site.csv", "--keys", "keys/sites/bonn")
    for who in ("server", "site"):
        print(f"the {who} says:", Path(f"{who}.csv").read_text().splitlines()[1])
    print("a site's score:", " ".join(call("evaluate", "run", "new.npz", "--keys", "keys/sites/bonn").split()[2:4]))
