"""A site's ledger: what it gave under masks or with noise stands on its own disk before it leaves.

FOLDER/ledger.json    by run, the last step that the site gave an update for, and what its noise has spent

A site only goes forward: for a step of a run it gives its update once, whatever a server lost, or says that it lost.
Two sums of one step would tell their difference: with a site missing in the second, that site's update. And a report
that is given again, with fresh noise, costs privacy again. So a crash may cost an update, and never more than that.

The file is all that a site remembers of this. Whoever removes it, or gives the site another folder, allows everything
anew; a file that cannot be read is therefore an error, and not an empty ledger.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from hashlib import sha256
from math import inf
from pathlib import Path

from fedstrata.core.errors import RequestError
from fedstrata.core.messages import Tag
from fedstrata.core.storage.files import make_folder, write_atomically
from fedstrata.privacy.frames import RefusedError

FILE = "ledger.json"
HAIR = 1e-9  # of a budget: sums of the same costs differ in their last bits


@dataclass(frozen=True)
class Given:
    """What a site gave in one run."""

    step: Tag  # round and step of the last update
    spent: float  # the costs of its noise (`UpdateNoise.cost`), which add up


class Ledger:
    """What a site gave in all its runs; without a folder, it is forgotten with the process."""

    def __init__(self, folder: Path | None):
        self._file = None if folder is None else folder / FILE
        self._runs = {} if self._file is None or not self._file.exists() else _read(self._file)

    def check(self, run: str, step: Tag) -> None:
        """Refuse a step that is not later than all for which something was given."""
        if not all(type(number) is int and number >= 0 for number in step):  # NaN comes neither before nor after
            raise RefusedError("rounds and steps are whole numbers")
        before = self._runs.get(_key(run))
        if before is not None and step <= before.step:
            raise RefusedError(
                f"it gave its update for round {before.step[0] + 1}, step {before.step[1]} of this run, and gives none "
                f"for round {step[0] + 1}, step {step[1]}: once for a step, and never for an earlier one"
            )

    def enter(self, run: str, step: Tag, cost: float = 0.0, most: float = inf) -> None:
        """Write down that an update leaves, with what it costs; `most` may be spent in the run.

        When this returns, it is safe on disk.
        """
        self.check(run, step)
        before = self._runs.get(_key(run))
        spent = cost + (0.0 if before is None else before.spent)
        if spent > most * (1 + HAIR):
            raise RefusedError(
                "its privacy budget for this run (privacy.dp.budget) does not allow another report; it counts those "
                "it gave itself"
            )
        runs = {**self._runs, _key(run): Given(step, spent)}
        if self._file is not None:
            make_folder(self._file.parent, 0o700)
            write_atomically(self._file, json.dumps({key: asdict(given) for key, given in runs.items()}).encode())
        self._runs = runs

    def spent(self) -> float:
        """Return what all runs together have spent."""
        return sum(given.spent for given in self._runs.values())


def _key(run: str) -> str:
    """Return a run's name as it stands in the ledger: as long as others, whatever a server calls it."""
    return sha256(run.encode()).hexdigest()[:32]


def _read(file: Path) -> dict[str, Given]:
    try:
        table = json.loads(file.read_bytes())
        known = {key: Given((int(g["step"][0]), int(g["step"][1])), float(g["spent"])) for key, g in table.items()}
        if not all(0 <= given.spent < inf for given in known.values()):  # NaN would be less than any budget
            raise ValueError("nobody spent that")
        return known
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise RequestError(
            f"{file} cannot be read ({type(error).__name__}): the site does not know any more what it gave. "
            "Restore it; removing it lets every run ask again for what it has, and forgets what was spent of budgets"
        ) from None
