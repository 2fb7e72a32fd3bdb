"""Other simulators, each in a virtual environment of its own: pinned, installed when first needed, kept in a cache."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from hashlib import sha256
from pathlib import Path

import torch

PINS = {"flower": "flwr[simulation]==1.41.0", "pfl": "pfl[pytorch]==0.6.0"}
CPU_BUILDS = "https://download.pytorch.org/whl/cpu"


@cache
def python_of(peer: str) -> Path | None:
    """Return the interpreter of a peer's environment, which is made if need be; None, and a line that says why."""
    pins = [PINS[peer], f"torch=={torch.__version__}"]  # ours, so that nobody has a faster one
    digest = sha256(repr((pins, sys.version_info[:2])).encode()).hexdigest()[:10]
    home = cache_folder() / f"{peer}-{digest}"
    python = home / "bin" / "python"
    if (home / "complete").exists():
        return python
    say(f"installing {' and '.join(pins)} into {home}")
    index = ["--extra-index-url", CPU_BUILDS] if "+cpu" in torch.__version__ else []
    try:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True, capture_output=True, text=True)
        install = [str(python), "-m", "pip", "install", "--quiet", *index, *pins]
        subprocess.run(install, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        say(f"{peer} is left out, because it cannot be installed: {last_line(error)}")
        return None
    (home / "complete").touch()
    return python


def cache_folder() -> Path:
    """Return where environments are kept: FEDSTRATA_PEERS, or the user's cache."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedstrata" / "peers"
    return Path(os.environ.get("FEDSTRATA_PEERS") or base)


def last_line(error: Exception) -> str:
    """Say in one line what went wrong in a child process."""
    lines = str(getattr(error, "stderr", None) or error).strip().splitlines()
    return next((line for line in reversed(lines) if line.strip()), type(error).__name__)


def say(line: str) -> None:
    """Tell whoever is watching; the results stand alone on the standard output."""
    print(line, file=sys.stderr, flush=True)
