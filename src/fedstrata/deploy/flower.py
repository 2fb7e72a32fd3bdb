"""Flower's commands: how they are called. Nothing here imports Flower; only processes of their own do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tomli_w

from fedstrata.core.errors import FedstrataError, RequestError
from fedstrata.remote.flower.app_config import NodeConfig

CONNECTION = "fedstrata"  # what Flower's configuration calls our server
LOOPBACK = "127.0.0.1"
PATIENCE = 120.0  # seconds that one of Flower's short commands may take


def require_flower() -> None:
    """Refuse to go on without Flower."""
    if find_spec("flwr") is None:
        raise RequestError('real sites need Flower, which is not installed here: pip install "fedstrata[flower]"')


def home(folder: Path) -> Path:
    """Return Flower's own folder inside one of ours, so that it shares nothing with other uses of Flower."""
    return folder / "flwr"


def environment(folder: Path) -> dict[str, str]:
    """Return what Flower's processes find around them: our Flower first, no telemetry, no look for updates."""
    around = dict(os.environ)
    around["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), around.get("PATH", os.defpath)])
    for name in ("no_proxy", "NO_PROXY"):  # what stays on this machine goes through no proxy
        around[name] = ",".join(filter(None, [around.get(name), LOOPBACK, "localhost"]))
    return around | {
        "FLWR_HOME": str(home(folder)),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",  # where Flower's own executor is used: it would look once a second
        "PYTHONUNBUFFERED": "1",  # logs are followed
        "PYTHONSAFEPATH": "1",  # what lies in the folder they are started in is no module
    }


def configure(folder: Path, address: str, ca: Path | None) -> None:
    """Tell Flower's command line where the server is."""
    trust = {"insecure": True} if ca is None else {"root-certificates": str(ca)}
    home(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    table = {"superlink": {"default": CONNECTION, CONNECTION: {"address": address, **trust}}}
    (home(folder) / "config.toml").write_text(tomli_w.dumps(table))


# ---- processes that stay -------------------------------------------------------------------------------------------


def database(folder: Path, keys: Path | None) -> Path:
    """Return where Flower notes who may connect: whoever did without keys must not be let in where keys count."""
    return folder / ("insecure.db" if keys is None else "superlink.db")


def superlink(folder: Path, host: str, port: int, keys: Path | None) -> list[str]:
    """Return the command of the server, behind our gate."""
    command = [sys.executable, "-P", "-m", "fedstrata.deploy.server.auth_proxy", "--host", host, "--port", str(port)]
    command += ["--database", str(database(folder, keys)), "--disable-runtime-dependency-installation"]
    command += ["--isolation", "process"]  # the gate starts the processes of runs itself
    if keys is None:
        return [*command, "--insecure"]
    command += ["--ssl-ca-certfile", str(keys / "ca.crt"), "--ssl-certfile", str(keys / "server.crt")]
    return [*command, "--ssl-keyfile", str(keys / "server.key"), "--enable-supernode-auth"]


def supernode(server: str, site: str, socket: Path, keys: Path | None) -> list[str]:
    """Return the command of a site's connection to the server; it runs no app but ours, and opens no port."""
    command = [sys.executable, "-P", "-m", "fedstrata.deploy.site.supernode", "--superlink", server]
    command += ["--isolation", "process", "--node-config", NodeConfig(str(socket), site).option()]
    if keys is None:
        return [*command, "--insecure"]
    certificate, key = str(keys / "ca.crt"), str(keys / "node.key")
    return [*command, "--root-certificates", certificate, "--auth-supernode-private-key", key]


def run_command(name: str) -> None:
    """Become one of Flower's own commands, with the words that this process was started with."""
    (command,) = entry_points(group="console_scripts", name=name)
    sys.argv[0] = name
    command.load()()


# ---- short commands ------------------------------------------------------------------------------------------------


def registration(key: Path) -> list[str]:
    """Return the words that let a site connect."""
    return ["supernode", "register", str(key), CONNECTION]


def removal(node: str) -> list[str]:
    """Return the words that shut a site out."""
    return ["supernode", "unregister", node, CONNECTION]


def listing() -> list[str]:
    """Return the words that name the sites and say whether they are up."""
    return ["supernode", "list", CONNECTION]


def stopping(run: str) -> list[str]:
    """Return the words that stop a run."""
    return ["stop", run, CONNECTION]


def outcome(run: str) -> list[str]:
    """Return the words that say how a run is doing."""
    return ["list", CONNECTION, "--run-id", run]


def log_of(folder: Path, run: str) -> str:
    """Return what the server side of a run printed, as far as Flower kept it."""
    done = _called(folder, ["log", run, CONNECTION, "--show"])
    return done.stdout if done.returncode == 0 else ""  # or else it says only what it tried


def flwr(folder: Path, words: list[str]) -> dict[str, Any]:
    """Call Flower's command line and give what it says."""
    done = _called(folder, [*words, "--format", "json"])
    said = read(done.stdout)
    if not said.get("success"):
        why = said.get("error-message") or done.stderr or done.stdout or f"exit code {done.returncode}"
        raise FlowerError(words[0], " ".join(str(why).split()))
    return said


def _called(folder: Path, words: list[str]) -> subprocess.CompletedProcess[str]:
    around = environment(folder)
    command = shutil.which("flwr", path=around["PATH"])
    if command is None:
        require_flower()
        raise RequestError("Flower is installed, but its command `flwr` is not where it should be; install it again")
    try:
        return subprocess.run(  # in our folder: Flower looks for projects of its own in the one it is started in
            [command, *words],
            env=around,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is ours
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise FedstrataError(f"`flwr {words[0]}` does not come back; is the server still there?") from None


class FlowerError(FedstrataError):
    """Flower's command line refused."""

    def __init__(self, word: str, why: str):
        super().__init__(f"`flwr {word}` failed: {why}")
        self.why = why


def read(text: str) -> dict[str, Any]:
    """Find the one JSON object in what `flwr` printed."""
    first, last = text.find("{"), text.rfind("}")
    try:
        said = json.loads(text[first : last + 1], strict=False)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}
