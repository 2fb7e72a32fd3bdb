"""What a site does itself, so that nobody learns more of its data than the experiment says.

    labels    a step of label masking; with the last one the site's map of placeholders goes to the server, sealed, and
              the names of its labels, sealed for the other sites
    renumber  which new placeholder is which of an earlier run, whose model goes on
    meet      hello, before sums under masks
    cluster   take part in k-means by masked sums, with the label shares that it has
    centres   a step of it
    enclave   tell label counts to an enclave, once it has shown that it is one that the site trusts
    features  answer a question about its features (`features.py`)

The server keeps the sealed map and shows it when a run begins or goes on; only the site can read it, so nothing of a
run has to outlive the site's process. Secrets come from the machine, or from the site's own key where they must be the
same again: noise on label counts is drawn once for the same data, however often they are asked for.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedstrata.config.sections import EnclaveChoice
from fedstrata.core.errors import RequestError
from fedstrata.core.index import Split
from fedstrata.core.storage.files import write_atomically
from fedstrata.data.federation import Federation
from fedstrata.data.reading import Label, fold_label, refuse_spellings
from fedstrata.privacy.agreement import derive
from fedstrata.privacy.clustering import ClusterMember
from fedstrata.privacy.enclave.service import SECRET
from fedstrata.privacy.frames import RefusedError
from fedstrata.privacy.histograms import NoisyHistograms
from fedstrata.privacy.identity import KeyDirectory
from fedstrata.privacy.labels.encoding import encode
from fedstrata.privacy.labels.kept import NONCE, OwnMap
from fedstrata.privacy.labels.names import open_names, seal_names
from fedstrata.privacy.labels.prf import PrfClient
from fedstrata.privacy.setup import held_labels
from fedstrata.privacy.sums.all_reduce import Participant
from fedstrata.remote.credentials import Credentials
from fedstrata.remote.protocol import CONFIRM, SUBMIT, PolicyError, read_values, to_json
from fedstrata.remote.roll import FILE, RollError
from fedstrata.remote.site.enclave import EnclaveParty
from fedstrata.remote.site.features import SiteFeatures
from fedstrata.remote.site.policy.gate import PolicyGate
from fedstrata.remote.site.source import align_classes
from fedstrata.remote.site.sums_served import SumsServed

log = logging.getLogger(__name__)
ROLL_REFUSED = "roll-refused.txt"  # in the folder of a site: the last roll that it refused, and why


class SitePrivacy:
    """Keeps a site's secrets; `load` gives its data, `credentials` say who is who, the gate what is allowed."""

    def __init__(
        self,
        name: str,
        load: Callable[[], Federation],
        credentials: Credentials | None,
        gate: PolicyGate | None = None,
        trusted: EnclaveChoice | None = None,  # the enclave
        folder: Path | None = None,  # where it remembers
    ):
        self.name, self._load, self._credentials = name, load, credentials
        self._gate, self._enclave = gate or PolicyGate(), EnclaveParty(trusted)
        self._looked: str | None = None  # the roll that lay beside the keys
        self._refused = ""  # why a roll was refused last
        self._beside()
        # Memories for all runs: sums of different runs could be subtracted as well.
        sums = SumsServed(folder, self._named)
        self._served, self._tested = sums.of("labels"), sums.of("tested")
        self._secret = os.urandom(32) if credentials is None else credentials.identity.private.private_bytes_raw()
        self._labels: PrfClient | None = None
        self._participant: Participant | None = None
        self._member: tuple[ClusterMember, Participant] | None = None
        self.requests: Mapping[str, Callable[..., tuple[bytes, ...]]] = {
            "labels": self._mask_labels,
            "renumber": self._renumber,
            "meet": self._meet,
            "cluster": self._cluster,
            "centres": self._centres,
            "enclave": self._tell_enclave,
            "features": SiteFeatures(load, self, sums.of("features")).answer,
        }

    @property
    def credentials(self) -> Credentials:
        """The site's keys, without which it takes part in no protocol."""
        if self._credentials is None:
            raise RefusedError(f"site {self.name} has no keys, and masked sums need them; see deploy keys")
        return self._credentials

    @property
    def serial(self) -> int:
        """The number of the roll that this site goes by; 0 without keys."""
        return 0 if self._credentials is None else self._credentials.roll.serial

    def hear_of_roll(self, told: Any, folder: Path | None) -> str:
        """Go by a later roll from here on: the server brings it, or somebody put it beside the keys.

        It is kept in `folder` for the next start. Return why what the server brings is refused, in words.
        """
        if self._credentials is None:
            return ""
        why = ""
        for where, data in (("its key folder", self._beside()), ("the server", told)):
            try:
                if isinstance(data, str):
                    self._take_in(self._credentials.take_in(data.encode()), folder)
            except RollError as error:
                self._refuse_roll(f"a roll of {where} is refused: {error}", folder)
                why = str(error) if where == "the server" else ""
        return why

    def _refuse_roll(self, why: str, folder: Path | None) -> None:
        """Say once that a roll is refused: a server brings it with every run, and this process may be new for each."""
        kept = None if folder is None else folder / ROLL_REFUSED
        with suppress(OSError, ValueError):
            self._refused = kept.read_text() if kept is not None else self._refused
        if why == self._refused:
            return
        self._refused = why
        log.warning(why, extra={"event": "roll_refused", "about": {"roll": self.serial}})
        with suppress(OSError):  # its disk may be full
            if kept is not None:
                write_atomically(kept, why.encode())

    def _beside(self) -> str | None:
        """Return the roll that lies beside the keys, if it is another one than at the last look."""
        if self._credentials is None or self._credentials.folder is None:
            return None
        try:
            text = (self._credentials.folder / FILE).read_text()
        except (OSError, ValueError):
            return None
        before, self._looked = self._looked, text
        return None if before in (None, text) else text

    def _take_in(self, later: Credentials, folder: Path | None) -> None:
        if later is self._credentials:
            return
        self._credentials = later
        about = {"roll": later.roll.serial, "issued": later.roll.issued}
        log.warning("roll %(roll)d of %(issued)s is taken in", about, extra={"event": "roll_taken_in", "about": about})
        if folder is not None:
            write_atomically(folder / FILE, later.roll.write())

    def key_directory(self, told: Mapping[str, Any]) -> KeyDirectory:
        """Return the roll of a run; it must have this site where it says."""
        names, client = told["sites"], int(told["client"])
        if not 0 <= client < len(names) or names[client] != self.name:
            raise RefusedError(f"site {self.name} is told that it is another one")
        if any(name not in self.credentials.sites for name in names):
            raise RefusedError(
                f"a site of this run is not on the roll that this site goes by (number {self.credentials.roll.serial})"
            )
        return self.credentials.key_directory(names)

    def own(self, told: Mapping[str, Any]) -> Federation:
        """Return the site's data with the class indices of a run."""
        if "sealed" not in told:
            return align_classes(self._load(), told["classes"])
        known = self.open_map(bytes.fromhex(told["sealed"]), told["run"])
        _refuse_other_spellings(known, told.get("names", ()))
        return _placed(self._load(), known)

    def counts(self, federation: Federation, epsilon: float | None) -> np.ndarray:
        """Return label counts as they may be told."""
        counts: np.ndarray = federation.counts[0]
        epsilon = self._gate.counts_epsilon(epsilon)
        if epsilon is None:
            return counts
        noisy, data = NoisyHistograms(epsilon), self._load().fingerprint

        def noise(label: Label) -> np.ndarray:  # each label's own: in whatever order, it is told with the same
            key = derive(self._secret, encode(label), b"histogram|%a|%a" % (epsilon, data), 16)
            rng = np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))
            return noisy.noise((1,), rng)

        return noisy.tellable(counts + np.concatenate([noise(label) for label in federation.classes]))

    def by_label(self, invitation: bytes, sites: int, figures: np.ndarray) -> bytes:
        """Return figures of test samples under masks, for a sum over all sites of a run; else nothing.

        How often a label is tested is the same in every round: two sums must not differ by a few sites.
        """
        participant = self.participant(invitation)
        try:
            if len(participant.present) < sites:
                raise RefusedError("some sites are missing")
            self._tested.sent(participant.keys)
        except RefusedError:
            return b""
        return participant.mask(figures).tobytes()

    def participant(self, invitation: bytes) -> Participant:
        """Join the all-reduce for which this site sent its key."""
        if self._participant is None:
            raise RefusedError(f"site {self.name} was asked to no meeting")
        participant, self._participant = self._participant, None
        participant.join(invitation)
        return participant

    def _named(self, key: bytes) -> bytes:
        """Return the name of the site that a public key is of."""
        for name, known in self.credentials.sites.items():
            if known == key:
                return name.encode()
        raise RefusedError("a site of this sum is not on the roll any more")

    # ---- requests

    def _mask_labels(self, step: bytes, about: bytes, message: bytes) -> tuple[bytes, bytes, bytes]:
        told = read_values(about)
        if step.decode() == PrfClient.steps[0]:
            federation, key_directory = self._load(), self.key_directory(told)
            if told["open"] and self._gate.counts_epsilon(None) is not None:
                raise PolicyError("its policy tells label counts with noise only, and placeholders have none")
            try:
                refuse_spellings(held := held_labels(federation))
                self._labels = PrfClient(
                    int(told["client"]),
                    self.credentials.identity,
                    key_directory,
                    held,
                    os.urandom,
                    open_counts=bool(told["open"]),
                    served=self._served,
                )
            except RequestError:  # its words name a label
                log.exception("labels cannot be masked")
                raise RefusedError("its labels cannot be masked (the site's own log says why)") from None
        if self._labels is None:
            raise RefusedError("label masking begins with its keys")
        reply = self._labels.answer(step.decode(), message)
        if step.decode() != PrfClient.steps[-1]:
            return reply, b"", b""
        own = OwnMap(self._labels.own, self._labels.placeholders, self._labels.names_key)
        names = {str(place): entry.hex() for place, entry in seal_names(own.names_key, own.own).items()}
        return reply, self.seal_map(own, told["run"]), to_json(names)

    def _renumber(self, about: bytes) -> tuple[bytes, bytes]:
        told = read_values(about)
        now = self.open_map(bytes.fromhex(told["sealed"]), told["run"])
        before = self.open_map(bytes.fromhex(told["before"]), told["run_before"])
        pairs = {str(place): old for place, old in before.renumber(now.own).items()}
        return to_json(pairs), self.seal_map(before, told["run"])

    def _meet(self, about: bytes) -> tuple[bytes]:
        told = read_values(about)
        me, job = int(told["client"]), bytes.fromhex(told["job"])
        self._participant = Participant(me, self.credentials.identity, self.key_directory(told), job, os.urandom)
        return (self._participant.hello(),)

    def _cluster(self, about: bytes, invitation: bytes) -> tuple[bytes]:
        told = read_values(about)
        participant, counts = self.participant(invitation), self.counts(self.own(told), told["epsilon"])
        me, shares = int(told["client"]), counts / counts.sum()
        self._member = (
            ClusterMember(me, shares, self.credentials.identity, self.key_directory(told), participant.job),
            participant,
        )
        return (b"",)

    def _centres(self, what: bytes, asked: bytes) -> tuple[bytes]:
        if self._member is None:
            raise RefusedError(f"site {self.name} is not being clustered")
        member, participant = self._member
        if what == b"tell":
            return (member.cluster(asked),)
        return (participant.mask(member.contribution(asked)).tobytes(),)

    def _tell_enclave(self, step: bytes, data: bytes) -> tuple[bytes]:
        if step == SUBMIT:
            return (self._enclave.submit(data),)
        if step == CONFIRM:
            self._enclave.confirm(data)
            return (b"",)
        told = read_values(data)
        counts, roll = self.own(told).counts[0], self.key_directory(told)
        # The same in a run that goes on: a fresh enclave catches up with what the last one drew.
        secret = derive(self._secret, str(told["run"]).encode(), b"fedstrata enclave noise", SECRET)
        return (self._enclave.hello(told, self.credentials.identity, roll, counts, secret),)

    # ---- the map of placeholders, in the server's keeping

    def seal_map(self, own: OwnMap, run: str) -> bytes:
        """Seal the placeholders of own labels for a run; only this site can open them."""
        return own.seal(map_key(self._secret), os.urandom(NONCE), run)

    def open_map(self, sealed: bytes, run: str) -> OwnMap:
        """Open what `seal_map` sealed for a run."""
        try:
            return OwnMap.open(map_key(self._secret), sealed, run)
        except RefusedError:
            raise RefusedError(
                f"the map of labels that is shown to site {self.name} is not the one it sealed"
            ) from None


def map_key(secret: bytes) -> bytes:
    """Return the key that a site seals its map of placeholders with, from its own secret."""
    return derive(secret, b"", b"fedstrata label map")


def _refuse_other_spellings(known: OwnMap, sealed: Sequence[str]) -> None:
    """Refuse a run in which another site has a label of this one under a name that is spelled differently."""
    own = {fold_label(label): label for label in known.own}
    for other in open_names(known.names_key, [bytes.fromhex(entry) for entry in sealed]):
        label = own.get(fold_label(other), other)
        if other != label or type(other) is not type(label):
            log.error("label %r of this site is %r at another one", label, other)
            raise RefusedError(
                "it spells a label differently than another site: use one name (the site's own log says which)"
            )


def _placed(federation: Federation, known: OwnMap) -> Federation:
    """Return data with placeholders for labels; test samples whose label the site never trains on have none."""
    codes = np.array([known.own.get(label, -1) for label in federation.classes])
    placed = federation.relabel(codes, range(known.placeholders))
    if (placed.labels[placed.train_split[0]] < 0).any():
        raise RefusedError("the site's labels changed since they were masked; begin a new run")
    rows = placed.test_split[0]
    return replace(placed, test_split=Split.of([rows[placed.test.y.numpy()[rows] >= 0]]))
