"""What operators say to runs: stop, pause, go on, approved, refused. Every word is signed, and stays in a file.

    {"action": "pause", "run": ..., "operator": "ann", "at": "2026-01-31T12:00:00+00:00", "signature": ...}

`run` is the number that a run got when it was asked for; no other has it. Words of who is no operator of the roll do
not count. Without keys there are no operators, and the words of whoever can write the file count.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from time import sleep
from typing import Literal, get_args

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedstrata.core.errors import FedstrataError, RequestError
from fedstrata.core.events import Log
from fedstrata.privacy.identity import Identity
from fedstrata.remote.roll import Roll

Action = Literal["stop", "pause", "continue", "approve", "refuse"]
FILE = "orders.jsonl"
OFTEN = 0.5  # seconds between two looks while a run is paused


class StoppedError(FedstrataError):
    """An operator stopped a run."""


@dataclass(frozen=True)
class OperatorOrder:
    """One word of an operator."""

    action: Action
    run: str
    operator: str
    at: str
    signature: str = ""

    @classmethod
    def of(cls, action: Action, run: str, operator: str, identity: Identity | None) -> OperatorOrder:
        """Say something now; None: without keys."""
        order = cls(action, run, operator, datetime.now(UTC).isoformat(timespec="milliseconds"))
        return order if identity is None else replace(order, signature=identity.sign(order._body()).hex())

    def counts(self, roll: Roll | None) -> bool:
        """Say whether an operator of the roll said it; None: there are no keys."""
        if roll is None:
            return True
        try:
            key = Ed25519PublicKey.from_public_bytes(roll.operators[self.operator])
            key.verify(bytes.fromhex(self.signature), self._body())
        except (KeyError, ValueError, InvalidSignature):
            return False
        return True

    def _body(self) -> bytes:
        return b"fedstrata order\n" + json.dumps([self.action, self.run, self.operator, self.at]).encode()


def give_order(path: Path, order: OperatorOrder) -> None:
    """Add a word to the file."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(handle, "ab") as file:
        file.write(json.dumps(asdict(order)).encode() + b"\n")


def read_orders(path: Path, run: str, roll: Roll | None) -> list[OperatorOrder]:
    """Return what was said to a run and counts, the oldest first."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return []
    orders = [order for line in lines if (order := _read(line)) is not None and order.run == run]
    return [order for order in orders if order.counts(roll)]


@dataclass
class RunControl:
    """What operators say to one run, as the run itself hears it."""

    path: Path
    run: str
    roll: Callable[[], Roll | None]

    def latest(self, *actions: Action) -> OperatorOrder | None:
        """Return the latest of some words."""
        return next((o for o in reversed(read_orders(self.path, self.run, self.roll())) if o.action in actions), None)

    def heed_unbegun(self) -> None:
        """Stop here, before the run has begun, if an operator said so."""
        if (stop := self.latest("stop")) is not None:
            raise StoppedError(f"operator {stop.operator} stopped the run before it began")

    def heed(self, note: Log) -> None:
        """Stop or pause here, if an operator said so; pauses and their ends are events."""
        paused: OperatorOrder | None = None
        while True:
            if (stop := self.latest("stop")) is not None:
                raise StoppedError(f"operator {stop.operator} stopped the run; it can be resumed")
            word = self.latest("pause", "continue")
            if word is None or word.action == "continue":
                if paused is not None and word is not None:
                    note("continued", why=f"operator {word.operator} let it go on")
                return
            if paused is None:
                paused = word
                note("paused", why=f"operator {word.operator} paused it")
            sleep(OFTEN)


def operator_key(folder: Path) -> tuple[str, Identity]:
    """Read an operator's folder: a name and a key."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415

    try:
        told = json.loads((folder / "identity.json").read_text())
        key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(told["private"]))
        return str(told["name"]), Identity(key)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RequestError(
            f"--operator {folder} holds no operator's key ({error}); "
            "make one with: fedstrata deploy keys operator DIR NAME"
        ) from None


def _read(line: bytes) -> OperatorOrder | None:
    try:
        order = OperatorOrder(**json.loads(line))
    except (ValueError, TypeError, RecursionError):
        return None
    return order if order.action in get_args(Action) else None
