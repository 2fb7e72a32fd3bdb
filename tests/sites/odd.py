"""A site that can be told to misbehave: `python odd.py deploy client ...` is `fedstrata deploy client ...` otherwise.

Its wishes are files in the folder FEDSTRATA_WISHES, named SITE-ROUND (rounds counted from 1), that hold one word each.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch

from fedstrata.cli import main
from fedstrata.deploy import client
from fedstrata.engines.sites import site_process
from fedstrata.engines.sites.telling import replied, split
from fedstrata.messages import Report
from fedstrata.wire import pack_report, unpack_report, unpack_task

LIES = {
    "nan": lambda tensor: tensor * torch.nan,
    "shapes": lambda tensor: tensor[:-1],
    "huge": lambda tensor: tensor * 1e12,
}


class Odd(site_process.Host):
    """Answers tasks as it is wished to."""

    def answer(self, request: bytes) -> bytes:
        kind, *fields = split(request)
        wish = self._wish(unpack_task(fields[0]).round + 1) if kind == b"task" else None
        word = wish.read_text() if wish is not None and wish.exists() else ""
        if word == "hold":  # until the wish is taken back
            wish.with_suffix(".held").touch()
            while wish.exists():
                time.sleep(0.02)
        reply = super().answer(request)
        return changed(reply, LIES[word]) if word in LIES else reply

    def _wish(self, number: int) -> Path:
        return Path(os.environ["FEDSTRATA_WISHES"]) / f"{self.name}-{number}"


def changed(reply: bytes, lie) -> bytes:
    """Change the sums of a report."""
    _, said, data = split(reply)
    report = unpack_report(data)
    fields = {**vars(report), "summed": {name: lie(tensor) for name, tensor in report.summed.items()}}
    return replied(said, pack_report(Report(**fields)))


if __name__ == "__main__":
    if sys.argv[1] == "deploy":
        client.PROCESS = [sys.executable, str(Path(__file__).resolve())]
        main()
    else:
        site_process.Host = Odd
        site_process.main(*sys.argv[1:])
