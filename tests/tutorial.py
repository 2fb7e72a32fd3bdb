"""A page that is run: its files are written and its commands typed, in an empty folder.

* ```` ```toml title="wine.toml" ```` is a file of that name.
* ```` ```sh ```` is typed, and must succeed; ```` ```sh background ```` goes on until the page ends.
* ```` ```text ```` is what the commands before it printed, but for the figures: every line must be there.
* Other blocks are for reading.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

import fedstrata

BLOCK = re.compile(r"^```(\w*) *([^\n]*)\n(.*?)^```$", re.M | re.S)
PATIENCE = 240.0  # seconds for a block, on a busy machine


def follow(page: Path, folder: Path) -> None:
    """Do what a page says, from its first block to its last."""
    around, printed = _environment(folder), ""
    with ExitStack() as background:
        for language, more, text in BLOCK.findall(page.read_text()):
            if title := re.search(r'title="(.+?)"', more):
                (folder / title[1]).write_text(text)
            elif language == "sh" and more == "background":
                background.enter_context(_running(text, folder, around))
            elif language == "sh":
                printed = _typed(text, folder, around)
            elif language == "text":
                there = set(map(_shape, printed.splitlines()))
                assert not [line for line in text.splitlines() if _shape(line) not in there], f"{text}\n{printed}"


def _typed(text: str, folder: Path, around: Mapping[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-ec", text], cwd=folder, env=around, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, f"{text}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout + done.stderr


@contextmanager
def _running(text: str, folder: Path, around: Mapping[str, str]) -> Iterator[None]:
    """Start commands, and go on when they first say something, as a reader would."""
    log = folder.parent / f"background-{len(list(folder.parent.iterdir()))}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            ["bash", "-ec", text], cwd=folder, env=around, stdout=file, stderr=file, start_new_session=True
        )
    try:
        end = monotonic() + PATIENCE
        while not log.stat().st_size and monotonic() < end:
            assert process.poll() is None, text
            sleep(0.1)
        yield
    finally:
        with suppress(ProcessLookupError):  # the page has killed it
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(PATIENCE)


def _environment(folder: Path) -> dict[str, str]:
    """Let `fedstrata` and `python` be those of this test, whatever is installed."""
    tools = folder.parent / "tools"
    tools.mkdir(exist_ok=True)
    for name, command in (("fedstrata", f'"{sys.executable}" -m fedstrata'), ("python", f'"{sys.executable}"')):
        (tools / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (tools / name).chmod(0o755)
    source = str(Path(fedstrata.__file__).parents[1])
    return {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": source, "COLUMNS": "120"}


def _shape(line: str) -> str:
    """Return a line without its figures and its spaces."""
    return " ".join(re.sub(r"[-+]?\d+(\.\d+)?", "#", line).split())
