"""A site that can be told to misbehave: `python odd.py deploy client ...` is `fedstrata deploy client ...` otherwise.

A wish is a file SITE-ROUND (rounds counted from 1) in the folder FEDSTRATA_WISHES. It says what to do, and may say in
which kind of step: "hold gradient"; SITE-0 holds evaluation. There the site also notes what cannot be seen outside.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch

from fedstrata.cli import main
from fedstrata.client.site_client import Site
from fedstrata.core.messages import Report
from fedstrata.core.wire import pack_report, unpack_report, unpack_task
from fedstrata.deploy.site import client
from fedstrata.remote.flower import stream_site
from fedstrata.remote.flower.framing import Kind
from fedstrata.remote.site import process
from fedstrata.remote.site.site_server import SiteServer

LIES = {
    "nan": lambda tensor: tensor * torch.nan,
    "shapes": lambda tensor: tensor[:-1],
    "huge": lambda tensor: tensor * 1e12,
}


def place() -> Path:
    return Path(os.environ["FEDSTRATA_WISHES"])


def lied(data: bytes, how: str) -> bytes:
    report = unpack_report(data)
    aggregated = {name: LIES[how](tensor) for name, tensor in report.aggregated.items()}
    return pack_report(Report(**{**vars(report), "aggregated": aggregated}))


def misbehave(name: str) -> None:
    """Do tasks as it is wished to, and note when the site is on the stream."""
    answer, evaluate, parcels = Site.answer, SiteServer._evaluate, stream_site.parcels

    def hold(wish: Path) -> None:
        """Wait until a wish is taken back."""
        wish.with_suffix(".held").touch()
        while wish.exists():
            time.sleep(0.02)

    def evaluated(self, *fields: bytes):
        if (wish := place() / f"{name}-0").exists():
            hold(wish)
        return evaluate(self, *fields)

    def answered(self, data: bytes, *more):
        task = unpack_task(data)
        wish = place() / f"{name}-{task.round + 1}"
        word, _, kind = wish.read_text().partition(" ") if wish.exists() else ("", "", "")
        word = word if kind in ("", task.kind) else ""
        if word == "hold":
            hold(wish)
        said = answer(self, data, *more)
        if word == "note":
            wish.with_suffix(".done").touch()
        return lied(said, word) if word in LIES else said

    def heard(*frames):
        for parcel in parcels(*frames):
            if parcel.kind is Kind.WELCOME:
                (place() / f"{name}.joined").touch()
            yield parcel

    Site.answer, SiteServer._evaluate, stream_site.parcels = answered, evaluated, heard


if __name__ == "__main__":
    if sys.argv[1] == "deploy":
        client.PROCESS = [sys.executable, str(Path(__file__).resolve())]
        main()
    else:
        misbehave(json.loads(Path(sys.argv[1]).read_text())["site"])
        process.main(*sys.argv[1:])
