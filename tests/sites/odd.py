"""A site that can be told to misbehave: `python odd.py deploy client ...` is `fedstrata deploy client ...` otherwise.

A wish is a file SITE-ROUND (rounds counted from 1) in the folder FEDSTRATA_WISHES. It says what to do, and may say in
which kind of step: "hold gradient". There the site also notes what cannot be seen from outside.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch

from fedstrata.cli import main
from fedstrata.core.messages import Report
from fedstrata.core.wire import pack_report, unpack_report, unpack_task
from fedstrata.deploy import client
from fedstrata.remote import site_process
from fedstrata.remote.flower.framing import Kind
from fedstrata.remote.flower.stream_site import StreamSite
from fedstrata.remote.site_server import REPORT

LIES = {
    "nan": lambda tensor: tensor * torch.nan,
    "shapes": lambda tensor: tensor[:-1],
    "huge": lambda tensor: tensor * 1e12,
}


class Odd(site_process.Host):
    """Does tasks as it is wished to."""

    def _task(self, data: bytes, *more: bytes) -> tuple[bytes, bytes]:
        task = unpack_task(data)
        wish = place() / f"{self.name}-{task.round + 1}"
        word, _, kind = wish.read_text().partition(" ") if wish.exists() else ("", "", "")
        word = word if kind in ("", task.kind) else ""
        if word == "hold":  # until the wish is taken back
            wish.with_suffix(".held").touch()
            while wish.exists():
                time.sleep(0.02)
        what, said = super()._task(data, *more)
        if word == "note":
            wish.with_suffix(".done").touch()
        return what, lied(said, word) if word in LIES and what == REPORT else said


class Noted(StreamSite):
    """Notes when it is on the stream."""

    def _take(self, parcel, outbox):
        if parcel.kind is Kind.WELCOME:
            (place() / f"{self._invitation.site}.joined").touch()
        super()._take(parcel, outbox)


def place() -> Path:
    return Path(os.environ["FEDSTRATA_WISHES"])


def lied(data: bytes, how: str) -> bytes:
    report = unpack_report(data)
    aggregated = {name: LIES[how](tensor) for name, tensor in report.aggregated.items()}
    return pack_report(Report(**{**vars(report), "summed": aggregated}))


if __name__ == "__main__":
    if sys.argv[1] == "deploy":
        client.PROCESS = [sys.executable, str(Path(__file__).resolve())]
        main()
    else:
        site_process.Host = Odd
        sys.modules[StreamSite.__module__].StreamSite = Noted
        site_process.main(*sys.argv[1:])
