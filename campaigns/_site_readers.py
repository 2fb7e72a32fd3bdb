"""What servers, sites and their owners keep and tell beside runs, with a sound example of each."""

from __future__ import annotations

import json
import os
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from campaigns._reader import Reader, of, written
from fedstrata.deploy.site_reports import SiteReport
from fedstrata.privacy.identity import Identity
from fedstrata.remote.protocol import PendingError
from fedstrata.remote.roll import Roll
from fedstrata.remote.server.orders import OperatorOrder, read_orders
from fedstrata.remote.site.ledger import FILE as LEDGER
from fedstrata.remote.site.ledger import Ledger
from fedstrata.remote.site.policy.approvals import Approvals
from fedstrata.remote.site.policy.audit import AuditLog, verify
from fedstrata.remote.site.policy.rules import read_policy

POLICY = Path(__file__).parents[1] / "examples" / "site.toml"


def site_readers(folder: Path) -> Iterator[Reader]:
    """Give a reader each; `folder` is for files."""
    roll = Roll(bytes(32), {"a": bytes(32), "b": bytes(32)}, {"a": "ssh-ed25519 AAAA a"}, {"ann": bytes(32)}, 3, "now")
    brought = Roll(bytes(32), {}, serial=4).write()

    def takes_in(data: bytes) -> None:
        Roll.read(data)
        roll.followed_by(data, brought)  # whoever signed it

    yield Reader("rolls of keys", of(roll.write(), tables=True), takes_in)
    report = json.dumps(asdict(SiteReport("a", "busy", 5.0, "run x", "1.0", 3))).encode()
    yield Reader("reports of sites at the gate", of(report, tables=True), _as_header)
    yield Reader("policies of sites", of(POLICY.read_bytes()), written(folder / "site.toml", read_policy), 0.5)
    yield from _kept(folder)


def _as_header(data: bytes) -> None:
    report = SiteReport.read(b64encode(data).decode())
    if report is not None:
        json.dumps(asdict(report), allow_nan=False)  # as a browser and other programs are told of it


def _kept(folder: Path) -> Iterator[Reader]:
    """Give the files that a site keeps of what it gave, and of what its owner said."""
    ledger = Ledger(folder / "ledger")
    ledger.enter("r", (1, 0), 0.5)
    file = folder / "ledger" / LEDGER
    again = written(folder / "ledger2" / LEDGER, lambda path: Ledger(path.parent).spent())
    yield Reader("ledgers of sites", of(file.read_bytes(), tables=True), again, 0.5)
    log = AuditLog(folder / "audit.jsonl")
    for number in range(3):
        log.append("task", bytes(number), run="r", round=number)
    audit = (folder / "audit.jsonl").read_bytes()
    yield Reader("audit logs", of(audit), written(folder / "audit2.jsonl", _audited), 0.5)
    approvals = Approvals(folder / "runs")
    with suppress(PendingError):
        approvals.check("r", {"train": {"rounds": 3}})
    (asked,) = (folder / "runs").iterdir()
    known = written(folder / "runs2" / asked.name, _all_of(Approvals))
    yield Reader("words of a site's owner", of(asked.read_bytes(), tables=True), known, 0.5)
    order = OperatorOrder.of("stop", "7", "ann", Identity.new(os.urandom))
    line = json.dumps(asdict(order)).encode()
    told = written(folder / "orders.jsonl", lambda path: read_orders(path, "7", None))
    yield Reader("orders of operators", of(line, tables=True), told, 0.5)


def _audited(path: Path) -> None:
    verify(path)
    AuditLog(path)


def _all_of(kind: Callable[[Path], Any]) -> Callable[[Path], Any]:
    return lambda path: kind(path.parent).all()
