"""What sites and server agree on before the first round: placeholders for labels, and clusters that no site tells.

The same parties as in a simulation, but each at its own place; what carries their messages is given.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedstrata.core.errors import RequestError
from fedstrata.core.events import Log
from fedstrata.core.rng import Rng
from fedstrata.methods.selectors.flips import Flips
from fedstrata.privacy.clustering import Organiser, PrivateClusters
from fedstrata.privacy.frames import RefusedError, split
from fedstrata.privacy.labels.kept import join_renumberings
from fedstrata.privacy.labels.masking import MODES, agree, fitting
from fedstrata.privacy.labels.parties import LabelServer
from fedstrata.privacy.sums.all_reduce import add_words, read_words
from fedstrata.remote.credentials import Credentials
from fedstrata.remote.protocol import build_request, read_values, to_json
from fedstrata.remote.server.federation import MaskedRemoteFederation
from fedstrata.remote.server.masked_all_reduce import invite_sites
from fedstrata.remote.server.site_registry import by_client

MODE = "prf"  # the one mode whose secrets every site can draw for itself
Tell = Callable[[Mapping[str, bytes], int], Mapping[str, tuple[bytes, ...]]]  # requests, fields -> replies that came


def mask_labels_at(
    ask: Tell, credentials: Credentials, sites: Sequence[str], run: str, tell_counts: bool, rng: Rng, note: Log
) -> MaskedRemoteFederation:
    """Let sites agree on placeholders; those that fail on the way are left out."""
    fitting(MODE, len(sites))
    mode, key_directory, up = MODES[MODE], credentials.key_directory(sites), 0
    sealed: dict[int, bytes] = {}
    directories: dict[int, Mapping[str, Any]] = {}

    def begin(members: Sequence[int]) -> LabelServer:
        return mode.server(credentials.identity, key_directory, members, os.urandom, rng, distributions=tell_counts)

    def carry(step: str, asks: Mapping[int, bytes]) -> dict[int, bytes]:
        nonlocal up
        about = {"run": run, "sites": list(sites), "open": tell_counts}
        requests = {
            sites[i]: build_request("labels", step.encode(), to_json({**about, "client": i}), ask)
            for i, ask in asks.items()
        }
        said = {sites.index(name): told for name, told in ask(requests, 3).items()}
        up += sum(len(field) for told in said.values() for field in told)
        sealed.update({i: kept for i, (_, kept, _) in said.items()})
        directories.update({i: read_values(entries) for i, (_, _, entries) in said.items() if entries})
        return {i: reply for i, (reply, _, _) in said.items()}

    server = agree(mode, range(len(sites)), begin, carry, rng, note)
    there = server.members
    return MaskedRemoteFederation(
        placeholders=len(server.totals),
        sites=tuple(sites[i] for i in there),
        holds=tuple(tuple(server.holds[i].tolist()) for i in there),
        totals=tuple(server.totals.tolist()),
        counts=None if server.counts is None else tuple(tuple(server.counts[i].tolist()) for i in there),
        sealed=tuple(sealed[i].hex() for i in there),
        bytes_up=up,
        names=_joined({sites[i]: (directories[i], server.holds[i].tolist()) for i in there}, len(server.totals)),
    )


def _joined(told: Mapping[str, tuple[Mapping[str, Any], Sequence[int]]], placeholders: int) -> tuple[str, ...]:
    """Keep one sealed name a placeholder, of what each site tells and holds; they must have sealed the same."""
    names: dict[int, tuple[str, str]] = {}
    for site, (entries, holds) in told.items():
        if set(entries) != {str(place) for place in holds} or not all(map(_is_hex, entries.values())):
            raise RequestError(f"site {site} did not seal the names of its own labels, and of no others; try again")
        for place, entry in entries.items():
            known, where = names.setdefault(int(place), (entry, site))
            if known != entry:
                raise RequestError(f"sites {where} and {site} name placeholder {place} differently; try again")
    return tuple(names[place][0] for place in range(placeholders))


def _is_hex(entry: Any) -> bool:
    return isinstance(entry, str) and re.fullmatch(r"([0-9a-f]{2})+", entry) is not None


def renumber_at(
    ask: Tell, known: MaskedRemoteFederation, run: str, run_before: str, before: MaskedRemoteFederation
) -> MaskedRemoteFederation:
    """Let sites say which placeholder is which of an earlier run, and take up its numbers; all of them must."""
    sealed = dict(zip(before.sites, before.sealed, strict=True))
    requests = {
        name: build_request(
            "renumber",
            to_json({"run": run, "sealed": own, "run_before": run_before, "before": sealed.get(name, "")}),
        )
        for name, own in zip(known.sites, known.sealed, strict=True)
    }
    said = ask(requests, 2)
    if missing := [name for name in known.sites if name not in said]:
        raise RequestError(
            f"model.init: site {missing[0]} cannot go on with the placeholders of that run; it must have taken part in "
            "it, with the same keys and all the labels that it has now"
        )
    told = {
        i: {int(p): int(old) for p, old in read_values(said[name][0]).items()} for i, name in enumerate(known.sites)
    }
    try:
        old = join_renumberings(told, before.placeholders)
    except RefusedError as error:
        raise RequestError(f"model.init: sites disagree on the placeholders of that run: {error}") from None

    def placed(row: Sequence[int]) -> tuple[int, ...]:
        whole = [0] * before.placeholders
        for place, number in enumerate(row):
            whole[old[place]] = number
        return tuple(whole)

    return replace(
        known,
        placeholders=before.placeholders,
        holds=tuple(tuple(sorted(old[place] for place in places)) for places in known.holds),
        totals=placed(known.totals),
        counts=None if known.counts is None else tuple(map(placed, known.counts)),
        sealed=tuple(said[name][1].hex() for name in known.sites),
        names=before.names,
        bytes_up=known.bytes_up + sum(len(field) for fields in said.values() for field in fields),
    )


def cluster_at(
    ask: Tell,
    credentials: Credentials,
    names: Sequence[str],
    places: Mapping[int, Mapping[str, Any]],
    flips: Flips,
    labels: int,
) -> PrivateClusters:
    """Let sites find their clusters by masked sums, all of them; `places` says what each is told of the run."""
    some = by_client(names, lambda requests: ask(requests, 1))

    def everybody(requests: Mapping[int, bytes]) -> dict[int, bytes]:
        said = some(requests)
        if missing := [names[i] for i in requests if i not in said]:
            raise RequestError(f'site {missing[0]} is missing from privacy.clustering = "masked"; try again')
        return said

    def refuse(client: int, error: RefusedError) -> None:
        raise RequestError(f'site {names[client]} cannot take part in privacy.clustering = "masked": {error}')

    members, invitation = invite_sites(everybody, names, sorted(places), credentials.key_directory(names), refuse)
    job = split(invitation)[0]
    everybody({i: build_request("cluster", to_json(places[i]), invitation) for i in members})

    def sums(broadcast: bytes) -> np.ndarray:
        brought = everybody(dict.fromkeys(members, build_request("centres", b"sum", broadcast)))
        return add_words([read_words(words) for words in brought.values()])

    def tell(broadcast: bytes) -> dict[int, bytes]:
        return everybody(dict.fromkeys(members, build_request("centres", b"tell", broadcast)))

    organiser = Organiser(credentials.identity, credentials.key_directory(names), job, labels, len(members), sums)
    return organiser.clustered(flips.clusters, flips.elbow, tell)
