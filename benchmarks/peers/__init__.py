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
BOUNDED = ("--timeout", "20", "--retries", "1")  # for each answer of an index: one that is not there is soon given up
LONGEST = 600.0  # seconds of a whole installation


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
    try:
        _called([sys.executable, "-m", "venv", "--clear", str(home)])
        _install(python, PINS[peer])
    except (OSError, subprocess.SubprocessError) as error:
        say(f"{peer} is left out, because it cannot be installed: {last_line(error)}")
        return None
    (home / "complete").touch()
    return python


def _install(python: Path, pin: str) -> None:
    """Install a peer and our release of torch from pip's own index, and where that fails, torch from its CPU builds."""
    release, _, build = torch.__version__.partition("+")
    pip = [str(python), "-m", "pip", "install", "--quiet", *BOUNDED, pin]
    try:
        _called([*pip, f"torch=={release}"])  # only an index of builds knows which build it is
    except subprocess.SubprocessError as error:
        if build != "cpu":
            raise
        say(f"not from pip's own index ({last_line(error)}), so {CPU_BUILDS} is tried")
        _called([*pip, f"torch=={torch.__version__}", "--extra-index-url", CPU_BUILDS])


def _called(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=LONGEST)


def cache_folder() -> Path:
    """Return where environments are kept: FEDSTRATA_PEERS, or the user's cache."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedstrata" / "peers"
    return Path(os.environ.get("FEDSTRATA_PEERS") or base)


def last_line(error: Exception) -> str:
    """Say in one line what went wrong in a child process."""
    if isinstance(error, subprocess.TimeoutExpired):
        return f"it was not done after {error.timeout:.0f} seconds"
    lines = str(getattr(error, "stderr", None) or error).strip().splitlines()
    return next((line for line in reversed(lines) if line.strip()), type(error).__name__)


def say(line: str) -> None:
    """Tell whoever is watching; the results stand alone on the standard output."""
    print(line, file=sys.stderr, flush=True)
