"""Optuna's search: its sampler suggests what to try, and its pruner stops trials that stay behind.

Each row under each condition has a study of its own, in a journal in the folder of its trials. Trials of a study come
one after another, those of different studies side by side, so that neither jobs nor a stop on the way change what is
suggested. The first seed of a trial is what may be pruned; the others are run where it was not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedstrata.config.tables import write_value
from fedstrata.core.errors import RequestError
from fedstrata.runs.compare.cells import Cell
from fedstrata.runs.compare.choice import Trial
from fedstrata.runs.compare.pool import Pruned
from fedstrata.runs.compare.search import FOLDER, Place, RunCells, Search
from fedstrata.runs.compare.settings import folder_name
from fedstrata.runs.compare.tune import TRIALS, Range, Setting, Values
from fedstrata.runs.metrics import evaluations

if TYPE_CHECKING:
    import optuna

JOURNAL = "optuna.journal"
WARM_UP = 5  # a fifth of the rounds says nothing about the last
DIGITS = 4  # of a suggested number: more tell nothing, and settings can be read


@dataclass
class OptunaSearch(Search):
    """A search that chooses what to try next from what was tried."""

    asked: dict[Place, optuna.trial.Trial] = field(default_factory=dict)  # what is being tried now

    def lay_out(self) -> None:
        """Check the corners of what may be tried, and read what was tried already."""
        _load()
        for condition, entry in self.places.values():
            for setting in self.design.tune.grid(entry):
                self.cell(condition, entry, setting, self.seeds[0])
        if self.lines is not None:
            self.refresh()

    def refresh(self) -> None:
        """Read from the journals what was tried, here or elsewhere."""
        for place in self.places:
            if place not in self.asked and self._journal(place).exists():
                ended = _ended(self._study(place))
                if len(ended) > len(self.trials[place]):
                    self.trials[place] = [self._read(place, one) for one in ended]

    def settled(self, place: Place) -> bool:
        """Say whether as many trials were made as were asked for."""
        return len(self.trials[place]) >= self._wanted and super().settled(place)

    def run(self, run_cells: RunCells, places: Sequence[Place]) -> bool:
        """Try one setting after another, for all places that need more."""
        places = [place for place in places if place in self.trials]
        while open_places := [place for place in places if len(self.trials[place]) < self._wanted]:
            now = {place: self._ask(place) for place in open_places}
            for at in range(len(self.seeds)):
                cells = [t.cells[at] for t in now.values() if not t.ended and t.cells[at].state != "finished"]
                if not run_cells(cells):
                    return False
            for place, trial in now.items():
                self._tell(place, trial)
        return True

    def watch(self, cell: Cell, event: Mapping[str, Any]) -> None:
        """Tell the pruner how a trial stands; raise `Pruned` where it shall go no further."""
        place = cell.condition, cell.method
        if not cell.prunable or place not in self.asked:
            return
        if event["event"] == "begin" and event["round"]:  # it goes on after a stop
            told = [one for one in cell.run.events() if one.get("round", 0) <= event["round"]]
            self._curves[place] = evaluations(told)
            for upto in range(1, len(self._curves[place]) + 1):
                self._report(place, upto)
        if event["event"] == "round" and "accuracy" in event:
            curve = self._curves.setdefault(place, [])
            curve.append({key: value for key, value in event.items() if key != "steps"})
            self._report(place, len(curve))
            if self.asked[place].should_prune():
                raise Pruned

    def __post_init__(self) -> None:
        self._studies: dict[Place, optuna.Study] = {}
        self._curves: dict[Place, list[Any]] = {}
        self._wanted = self.design.tune.trials or TRIALS
        super().__post_init__()

    def _report(self, place: Place, upto: int) -> None:
        scored = self._curves[place][:upto]
        value = self.metric.so_far(scored)
        if value is not None:
            self.asked[place].report(value, scored[-1]["round"])

    def _ask(self, place: Place) -> Trial:
        """Take up the trial that was under way, or have the next one suggested."""
        optuna = _load()
        study = self._study(place)
        for stale in study.get_trials(deepcopy=False, states=[optuna.trial.TrialState.RUNNING]):
            study.tell(stale.number, state=optuna.trial.TrialState.FAIL)
            study.enqueue_trial(stale.params)
        number = len(_ended(study))
        digest = sha256(json.dumps([*place, number]).encode()).digest()
        study.sampler = optuna.samplers.TPESampler(seed=int.from_bytes(digest[:4], "big"))
        space = self._space(place)
        trial = study.ask({key: _distribution(values) for key, values in space.items()})
        setting = {key: _read_value(trial.params[key], values) for key, values in space.items()}
        trial.set_user_attr("set", setting)
        self.asked[place] = trial
        self._curves.pop(place, None)
        return self._made(place, setting)

    def _tell(self, place: Place, trial: Trial) -> None:
        optuna = _load()
        state = optuna.trial.TrialState
        value = trial.value(self.metric) if trial.finished else None
        if value is not None:
            self._study(place).tell(self.asked[place], value)
        else:
            pruned = any(cell.state == "pruned" for cell in trial.cells)
            why = next((cell.why for cell in trial.cells if cell.why), "it was not measured")
            self.asked[place].set_user_attr("ended", "pruned" if pruned else f"failed: {why}")
            self._study(place).tell(self.asked[place], state=state.PRUNED if pruned else state.FAIL)
        self.trials[place].append(trial)
        del self.asked[place]

    def _read(self, place: Place, frozen: optuna.trial.FrozenTrial) -> Trial:
        """Return a trial that has ended as the study knows it."""
        trial = self._made(place, frozen.user_attrs["set"])
        ended = frozen.user_attrs.get("ended", "")
        cut = next((cell for cell in trial.cells if cell.state != "finished"), None)
        if cut is not None and ended:  # those after it never began
            cut.state, cut.why = ("pruned", None) if ended == "pruned" else ("failed", ended.removeprefix("failed: "))
        return trial

    def _made(self, place: Place, setting: Setting) -> Trial:
        condition, entry = self.places[place]
        cells = [self.cell(condition, entry, setting, seed) for seed in self.seeds]
        cells[0].prunable = self.metric.target is None
        return Trial(setting, cells)

    def _space(self, place: Place) -> dict[str, Values]:
        return self.design.tune.space(self.places[place][1])

    def _journal(self, place: Place) -> Path:
        return self.root.joinpath(FOLDER, *map(folder_name, filter(None, place)), JOURNAL)

    def _study(self, place: Place) -> optuna.Study:
        if place in self._studies:
            return self._studies[place]
        optuna = _load()
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock  # noqa: PLC0415

        file = self._journal(place)
        file.parent.mkdir(parents=True, exist_ok=True)
        backend = JournalFileBackend(str(file), lock_obj=JournalFileOpenLock(str(file)))
        condition, entry = self.places[place]
        rounds = self.design.experiment(condition, entry, more=self.design.tune.overrides).train.rounds
        study = optuna.create_study(
            storage=optuna.storages.JournalStorage(backend),
            pruner=optuna.pruners.MedianPruner(n_warmup_steps=rounds // WARM_UP),
            study_name=", ".join(filter(None, place)),
            direction="minimize" if self.metric.lower else "maximize",
            load_if_exists=True,
        )
        lists = {key: v for key, v in self._space(place).items() if not isinstance(v, Range)}
        about = {"metric": self.metric.name, "values": lists}
        known = study.user_attrs.get("about", about)
        if known != about:
            raise RequestError(
                f"{file.parent} was tuned by {known['metric']} over {known['values']}, and this is {about['metric']} "
                f"over {lists}: only ranges and the number of trials may change; choose another folder"
            )
        if not study.user_attrs:
            study.set_user_attr("about", about)
        self._studies[place] = study
        return self._studies[place]


def _load() -> Any:
    """Import Optuna, which is not there by itself, and keep it from talking."""
    try:
        import optuna  # noqa: PLC0415
    except ImportError:
        raise RequestError('tuner = "optuna" needs a package: pip install "fedstrata[tune]"') from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _ended(study: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    """Return the trials that ended by themselves; those that a stop cut off were asked for again."""
    trials = study.get_trials(deepcopy=False)
    return [one for one in trials if one.state.name in ("COMPLETE", "PRUNED") or "ended" in one.user_attrs]


def _distribution(values: Values) -> Any:
    optuna = _load()
    if not isinstance(values, Range):
        return optuna.distributions.CategoricalDistribution([write_value(value) for value in values])
    kind = optuna.distributions.IntDistribution if values.whole else optuna.distributions.FloatDistribution
    return kind(values.low, values.high, log=values.log)


def _read_value(suggested: Any, values: Values) -> Any:
    """Return the value that a suggestion stands for."""
    if not isinstance(values, Range):
        return next(value for value in values if write_value(value) == suggested)
    return suggested if values.whole else float(f"{suggested:.{DIGITS}g}")
