"""An error in the user's own code, told by the user's own lines: what lies between is ours, and of no help."""

from __future__ import annotations

import re
import sysconfig
from itertools import pairwise
from pathlib import Path

BEGIN = "Traceback (most recent call last):"
FRAME = re.compile(r'  File "(?P<path>[^"]+)", line \d+, in ')
MOST = 3  # frames that are shown


def in_short(said: str) -> str | None:
    """Return what a traceback says, the last frames of the user's own code, and notes; None: it went through none."""
    before, found, trace = said.rpartition(f"{BEGIN}\n")
    frames, why = list[str](), list[str]()
    for line in trace.splitlines():
        if why or not line.startswith(" "):
            why.append(line)
        elif FRAME.match(line):
            frames.append(line)
        elif frames:
            frames[-1] += f"\n{line}"
    own = [frame for frame in frames if _is_own(frame)]
    if not found or not own:
        return None
    client = re.search(r"^client \d+ failed:$", before, re.MULTILINE)
    return "\n".join([" ".join(filter(None, (client and client[0], why[0]))), *own[-MOST:], *why[1:]])


def _is_own(frame: str) -> bool:
    """Say whether a frame lies outside of this package, of what is installed and of Python itself.

    Packages that bring parts are installed, and the user's own all the same. Packages may lie in several places, such
    as those of an environment and of the one below it.
    """
    from fedstrata.core.registry import other_packages

    match = FRAME.match(frame)
    if match is None or match["path"].startswith("<"):
        return False
    path = Path(match["path"]).resolve()
    installed = [Path(sysconfig.get_path(kind)) for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
    if path.is_relative_to(Path(__file__).parents[1]):
        return False
    for place, name in pairwise(path.parts):
        if place in ("site-packages", "dist-packages"):
            return name.removesuffix(".py") in {entry.module.partition(".")[0] for entry in other_packages()}
    return not any(path.is_relative_to(there.resolve()) for there in installed)
