"""The gate of a site: every request passes it before anything is done, and every reply before it leaves.

It reads what a server tells of a run (`config/travel.py`), holds it against the site's rules, asks the site's owner
where the rules say so, keeps count of what was given, and writes the audit log.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Mapping
from datetime import datetime, timedelta
from math import sqrt
from pathlib import Path
from time import time
from typing import Any, NamedTuple

from fedstrata.config.experiment import Experiment
from fedstrata.config.naming import name_run
from fedstrata.config.open_stages import reopen
from fedstrata.config.travel import from_server, to_sites
from fedstrata.core.errors import RequestError
from fedstrata.core.storage.files import make_folder
from fedstrata.privacy.accounting import Accountant, library
from fedstrata.privacy.frames import RefusedError
from fedstrata.privacy.noise import UpdateNoise
from fedstrata.remote.protocol import AbsentError, PolicyError, SiteError
from fedstrata.remote.site.policy.approvals import Approvals
from fedstrata.remote.site.policy.audit import AuditLog
from fedstrata.remote.site.policy.hours import Hours
from fedstrata.remote.site.policy.rules import SitePolicy

AUDIT, RUNS = "audit.jsonl", "runs"  # in the folder of a site
DAY = timedelta(days=1).total_seconds()
LOG = logging.getLogger(__name__)
MOST = 64  # runs that a site knows of at once


class Admitted(NamedTuple):
    """A run that a site takes part in, if its owner does not mind."""

    told: Mapping[str, Any]  # as the server wrote it
    experiment: Experiment
    whole: Mapping[str, Any]  # the same with every option
    proposed: Mapping[str, Any]  # before its recipe chose parts, where it does


class PolicyGate:
    """Holds requests against a site's policy; in `folder` it keeps the audit log and the owner's approvals."""

    def __init__(self, policy: SitePolicy | None = None, folder: Path | None = None):
        self.policy = policy or SitePolicy()
        if self.policy.approval == "ask" and folder is None:
            raise RequestError('approval = "ask" needs a folder for the word of the site\'s owner')
        if folder is not None:
            make_folder(folder, 0o700)
        self._audit = AuditLog(None if folder is None else folder / AUDIT)
        self._approvals = None if folder is None else Approvals(folder / RUNS)
        self._hours = [Hours.read(text) for text in self.policy.hours or ()]
        self._admitted: dict[str, Admitted] = {}  # by run
        self._updates: deque[tuple[float, tuple[str, int]]] = deque()  # of the last day: when, of which run and round
        self._rounds: Counter[tuple[str, int]] = Counter()  # the same, counted
        if self.policy.privacy.epsilon is not None:
            library()
        self._recall()

    # ---- requests

    def check_time(self) -> None:
        """Refuse whatever comes outside of working hours."""
        if self._hours and not any(hours.holds(self.now()) for hours in self._hours):
            raise PolicyError(f"it is outside of its working hours, {', '.join(self.policy.hours or ())}")

    def admit(self, run: str, told: Any) -> Experiment:
        """Read what a run is, refuse what the rules do not allow, and wait for the owner where they say so."""
        if not isinstance(told, Mapping):
            raise RefusedError("an experiment is a table")
        if run not in self._admitted or self._admitted[run].told != told:
            try:
                experiment = from_server(told, self.policy.import_paths)
                self.policy.check_experiment(experiment)
            except (RequestError, PolicyError) as error:
                LOG.warning("run_refused", extra={"about": {"run": run, "why": str(error)[:500]}})
                if isinstance(error, PolicyError):
                    raise
                raise SiteError(f"it does not take this experiment: {error}") from None
            self._admitted = dict(list(self._admitted.items())[1 - MOST :])
            admitted = Admitted(told, experiment, to_sites(experiment), to_sites(reopen(experiment)))
            self._admitted[run] = admitted
            about = {"run": run, "method": name_run(admitted.whole), "privacy": admitted.whole.get("privacy")}
            LOG.info("run_admitted", extra={"about": about})
        self.check_approved(run)
        return self._admitted[run].experiment

    def experiment(self, run: str) -> Experiment:
        """Return what a run is that was admitted."""
        self.check_approved(run)
        return self._admitted[run].experiment

    def check_approved(self, run: str) -> None:
        """Refuse a run that this site was not asked to take part in, or that its owner does not want (any more)."""
        if run not in self._admitted:
            raise AbsentError("the site was restarted, or was not told of this run")
        if self.policy.approval == "ask" and self._approvals is not None:
            self._approvals.check(run, self._admitted[run].proposed, self._admitted[run].whole)

    def check_update(self, run: str, round: int) -> None:
        """Refuse another client update where the day has had enough of them."""
        limits, since = self.policy.limits, self.clock() - DAY
        while self._updates and self._updates[0][0] < since:
            _, old = self._updates.popleft()
            self._rounds[old] -= 1
            if not self._rounds[old]:
                del self._rounds[old]
        if limits.updates_per_day is not None and len(self._updates) >= limits.updates_per_day:
            raise PolicyError(f"it has made {limits.updates_per_day} updates in the last 24 hours, all that it allows")
        rounds = len(self._rounds) + ((run, round) not in self._rounds)
        if limits.rounds_per_day is not None and rounds > limits.rounds_per_day:
            raise PolicyError(
                f"it took part in {limits.rounds_per_day} rounds in the last 24 hours, all that it allows"
            )

    def check_budget(self, noise: UpdateNoise | None, spent: float) -> None:
        """Refuse a report that would spend more of the site's privacy than its owner gives.

        What all reports have spent before, the site's ledger says (`Ledger.spent`).
        """
        most, delta = self.policy.privacy.epsilon, self.policy.privacy.delta
        if most is None:
            return
        if noise is None or not noise.local or not noise.noise:
            raise PolicyError("its policy wants noise on updates")
        epsilon = Accountant(2 / sqrt(spent + noise.cost), delta, local=True).epsilon(1)
        if epsilon > most:
            raise PolicyError(
                f"its privacy budget is spent: another report makes epsilon {epsilon:.3g}; allowed: {most:g}"
            )

    def counts_epsilon(self, asked: float | None) -> float | None:
        """Return with which noise label counts are told; None: with none. Always the same, or draws would average."""
        least = self.policy.privacy
        if least.counts == "none":
            raise PolicyError("its policy tells nobody how many samples of a label it has")
        if least.counts == "exact":
            return asked
        if asked is not None and asked < least.counts_epsilon:
            raise PolicyError(
                f"its policy tells label counts with privacy.histogram_epsilon = {least.counts_epsilon:g}"
            )
        return least.counts_epsilon

    # ---- replies

    def leaves(self, kind: str, reply: bytes, about: Mapping[str, Any]) -> None:
        """Write down what leaves the site, before it does."""
        self._audit.append(kind, reply, **about)
        self._count(self.clock(), about)

    def _count(self, at: float, about: Mapping[str, Any]) -> None:
        if "refused" in about:
            return
        if "round" in about:
            self._updates.append((at, of := (str(about.get("run")), int(about["round"]))))
            self._rounds[of] += 1

    def _recall(self) -> None:
        """Count again what was given in the day before this process began."""
        since, known = self.clock() - DAY, list[tuple[float, Mapping[str, Any]]]()
        for line in self._audit.newest_first():
            at = datetime.fromisoformat(line["at"]).timestamp()
            if at < since:
                break
            known.append((at, line))
        for at, line in reversed(known):
            self._count(at, line)

    # ---- clocks

    def now(self) -> datetime:
        """Return the time of day, where the site is."""
        return datetime.now()

    def clock(self) -> float:
        """Return seconds since 1970."""
        return time()
