"""The one way in: from what each client holds to placeholders, in any mode.

Stratify section IV-A needs one placeholder per distinct label, each client's own map, and the total of each
placeholder; every mode gives just that, up to the order of the placeholders, which the server draws. Parties are
separate objects that exchange bytes; `agreed` runs the protocol, whatever carries them. A job that misses a reply is
given up and repeated without the missing clients. In one process (`mask_labels`) every message is counted, recorded
where a transcript is kept, and lost where a client is absent.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedstrata.core.errors import RequestError, unknown_name
from fedstrata.core.events import Log
from fedstrata.core.rng import Rng
from fedstrata.privacy.frames import SERVER, RefusedError
from fedstrata.privacy.identity import Entropy, Identity, KeyDirectory
from fedstrata.privacy.labels import ckks_paper, plain, prf
from fedstrata.privacy.labels.parties import LabelClient, LabelServer
from fedstrata.privacy.labels.served import remaining

Carry = Callable[[str, Mapping[int, bytes]], Mapping[int, bytes]]  # a step, and what it asks of whom -> the replies


@dataclass(frozen=True)
class MaskedLabels:
    """What all parties know in the end. Rows are all clients there are; those left out hold nothing."""

    mode: str
    placeholders: int
    own: list[dict[Any, int]]  # each client's own labels, known to that client only
    holds: np.ndarray  # [N, P]: which client holds which placeholder, known to the server
    totals: np.ndarray  # [P]: samples of a placeholder over the clients that took part, known to the server
    counts: np.ndarray | None  # [N, P]: each client's samples, where the clients told them openly
    clients: tuple[int, ...]  # that took part
    left_out: tuple[int, ...]
    bytes_up: np.ndarray  # [N]: sent by each client, given-up jobs included
    bytes_down: np.ndarray  # [N]: received by each client
    warning: str | None = None  # what the mode is not worth


@dataclass(frozen=True)
class Message:
    """What passed the server."""

    step: str
    sender: int
    receiver: int
    data: bytes


@dataclass
class Transcript:
    """Everything the server sent and received."""

    messages: list[Message] = field(default_factory=list)

    @property
    def bytes(self) -> bytes:
        """All of it in one piece, to search in."""
        return b"\n".join(message.data for message in self.messages)


@dataclass(frozen=True)
class Mode:
    """The parties of a protocol, and its limits."""

    client: type[LabelClient]
    server: type[LabelServer]
    keys: Callable[[], tuple[dict[str, Any], dict[str, Any]]] = lambda: ({}, {})  # of clients, and of the server
    most: int | None = None  # clients
    warning: str | None = None


def _ckks_keys() -> tuple[dict[str, Any], dict[str, Any]]:
    keys = ckks_paper.Keys.new()
    return {"secret": keys.secret}, {"public": keys.public}


MODES: dict[str, Mode] = {
    "prf": Mode(prf.PrfClient, prf.PrfServer, most=prf.MOST),
    "ckks-paper": Mode(ckks_paper.CkksClient, ckks_paper.CkksServer, _ckks_keys, warning=ckks_paper.WARNING),
    "none": Mode(plain.PlainClient, plain.PlainServer),
}


def mask_labels(
    mode: str,
    held: Sequence[Mapping[Any, int]],
    *,
    rng: Rng,
    entropy: Callable[[int], Entropy] = lambda _: os.urandom,
    absent: Mapping[int, str] | None = None,
    note: Log = lambda *_, **__: None,
    transcript: Transcript | None = None,
    distributions: bool = False,
    classes: int | None = None,
) -> MaskedLabels:
    """Replace labels by placeholders.

    Parameters
    ----------
    mode : str
        A name in `MODES`.
    held : sequence of mappings
        How many samples of which label each client holds.
    rng : Generator
        What the server draws the order of the placeholders from.
    entropy : callable
        Gives each party (-1 is the server) its own source of secret bytes.
    absent : mapping, optional
        The step from which on a client is silent.
    note : callable
        Is told of clients that are left out.
    transcript : Transcript, optional
        Records all messages.
    distributions : bool
        Whether clients also tell their counts openly, by placeholder (as clustering at the server needs).
    classes : int, optional
        How many labels there are at most, where the server knows: `ckks-paper` looks for no more.
    """
    absent = absent or {}
    kind = fitting(mode, len(held))
    for client, step in absent.items():
        if not 0 <= client < len(held) or step not in kind.client.steps:
            raise RequestError(
                f'absent = {{{client}: "{step}"}}; allowed: clients 0 to {len(held) - 1}, steps {kind.client.steps}'
            )
    sources = [entropy(party) for party in range(len(held))]
    identities, server_entropy = [Identity.new(source) for source in sources], entropy(SERVER)
    server_identity = Identity.new(server_entropy)
    key_directory = KeyDirectory.of(server_identity, identities)
    of_clients, of_server = kind.keys()
    clients = [
        kind.client(i, identities[i], key_directory, held[i], sources[i], open_counts=distributions, **of_clients)
        for i in range(len(held))
    ]
    if kind.warning is not None:
        ckks_paper.warn()
    post = _Post(clients, absent, transcript)

    def begin(members: Sequence[int]) -> LabelServer:
        who = server_identity, key_directory, members, server_entropy, rng
        return kind.server(*who, distributions=distributions, classes=classes, **of_server)

    server = agree(kind, range(len(held)), begin, post.carry, rng, note)
    own = [client.own if client.me in server.members else {} for client in clients]
    return known(mode, server, own, post.up, post.down)


def agree(
    kind: Mode,
    everybody: Sequence[int],
    begin: Callable[[Sequence[int]], LabelServer],
    carry: Carry,
    rng: Rng,
    note: Log,
) -> LabelServer:
    """Run jobs until one is done, each without those who were missing from the last; give the server as it then is.

    `begin` makes the server's part of a job with some clients.
    """
    members, first = tuple(everybody), 0
    while True:
        server = begin(members)
        refused = _run_job(server, carry)
        if not server.missing:
            return server
        told = server.step == server.counting
        first = first or len(members) * told
        stay = remaining(members, server.missing, kind.client.least, first, told, rng)
        note(
            "label_masking_repeated",
            step=server.step,
            missing=sorted(server.missing),
            refused=refused,
            left_out=sorted(set(members) - set(stay)),
            clients=len(stay),
        )
        members = stay


def _run_job(server: LabelServer, carry: Carry) -> dict[int, str]:
    """Run a job until it is done or misses a reply; give why replies were refused, by client."""
    refused: dict[int, str] = {}
    while asks := server.asks():
        for client, reply in carry(server.step, asks).items():
            try:
                server.take(client, reply)
            except RefusedError as error:
                if client not in server.missing:  # its reply was well; what all of them add up to is not
                    raise
                refused[client] = str(error)
        if server.asks() is asks:
            break
    return refused


def fitting(mode: str, clients: int) -> Mode:
    """Return a mode; refuse one that does not fit so many clients."""
    if mode not in MODES:
        raise unknown_name("privacy.labels", mode, MODES)
    kind = MODES[mode]
    if clients < kind.client.least:
        raise RequestError(
            f'privacy.labels = "{mode}" with {clients} clients; allowed: at least {kind.client.least}, '
            "because the sum over fewer tells one client's counts to another"
        )
    if kind.most is not None and clients > kind.most:
        raise RequestError(
            f'privacy.labels = "{mode}" with {clients} clients; allowed: at most {kind.most}, '
            'because every two of them agree on a key; mask the labels of fewer clients, or use "none"'
        )
    return kind


class _Post:
    """Carries messages between the server and the clients, and loses those of absent ones."""

    def __init__(self, clients: Sequence[LabelClient], absent: Mapping[int, str], transcript: Transcript | None):
        self.clients, self._absent, self._transcript = clients, absent, transcript
        self.up, self.down = np.zeros(len(clients), dtype=np.int64), np.zeros(len(clients), dtype=np.int64)

    def carry(self, step: str, asks: Mapping[int, bytes]) -> dict[int, bytes]:
        """Let clients answer."""
        replies = {}
        for client, ask in asks.items():
            self._seen(step, SERVER, client, ask)
            if self._silent(client, step):
                continue
            replies[client] = self.clients[client].answer(step, ask)
            self._seen(step, client, SERVER, replies[client])
        return replies

    def _silent(self, client: int, step: str) -> bool:
        steps = self.clients[client].steps
        return client in self._absent and steps.index(step) >= steps.index(self._absent[client])

    def _seen(self, step: str, sender: int, receiver: int, data: bytes) -> None:
        sent, client = (self.up, sender) if sender != SERVER else (self.down, receiver)
        sent[client] += len(data)
        if self._transcript is not None:
            self._transcript.messages.append(Message(step, sender, receiver, data))


def hold_table(holds: Sequence[Collection[int]], placeholders: int) -> np.ndarray:
    """Return which client holds which placeholder, [N, P], from the placeholders of each."""
    table = np.zeros((len(holds), placeholders), dtype=bool)
    for row, places in zip(table, holds, strict=True):
        row[list(places)] = True
    return table


def known(
    mode: str, server: LabelServer, own: Sequence[dict[Any, int]], up: np.ndarray, down: np.ndarray
) -> MaskedLabels:
    """Put together what a finished job gave; `own` is what each of all clients knows, and nobody else."""
    clients, placeholders = len(own), len(server.totals)
    holds = hold_table([server.holds.get(client, ()) for client in range(clients)], placeholders)
    counts = None
    if server.counts is not None:
        counts = np.zeros((clients, placeholders), dtype=np.int64)
        for client, told in server.counts.items():
            counts[client] = told
    return MaskedLabels(
        mode=mode,
        placeholders=placeholders,
        own=list(own),
        holds=holds,
        totals=server.totals,
        counts=counts,
        clients=server.members,
        left_out=tuple(sorted(set(range(clients)) - set(server.members))),
        bytes_up=up,
        bytes_down=down,
        warning=MODES[mode].warning,
    )
