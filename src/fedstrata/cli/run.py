"""`fedstrata run`: train once."""

from __future__ import annotations

import json
import shlex
import signal
import sys
import textwrap
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedstrata.cli import completing
from fedstrata.cli.options import AsJson, ExperimentFile, Quiet, Sets, overrides
from fedstrata.core.errors import RequestError
from fedstrata.core.machine.quick_imports import quick_imports

if TYPE_CHECKING:
    from fedstrata.runs.folder import Run

TRACEBACK = "traceback.txt"  # in the folder of a run that an error in the user's own code ended
SHOWN = (
    "method",
    "seed",
    "rounds",
    "accuracy",
    "balanced_accuracy",
    "worst10",
    "best_accuracy",
    "best_balanced_accuracy",
    "accuracy_last10",
    "accuracy_last10_std",
    "bytes_up",
    "bytes_down",
    "bytes_p2p",
    "client_updates",
    "seconds",
    "time",
    "run_dir",
    "rounds_to",
    "bytes_to",
    "remarks",
)
MEANS = {  # what a name does not say
    "worst10": "mean of the worst tenth of clients",
    "accuracy_last10": "mean of the last ten evaluations",
    "seconds": "of this machine",
    "time": "of devices and links; virtual in a simulation",
}
ASKED_FOR = (
    "name",
    "personal_mean",
    "personal_worst10",
    "rounds_to_target",
    "bytes_to_target",
    "time_to_target",
    "choices",
)


def run(
    experiment: ExperimentFile = None,
    sets: Sets = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Run folder; the next free one under runs/ without it.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Continue the run in this folder; with --set train.rounds=N, up to N rounds.",
            autocompletion=completing.run_folders,
        ),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train a model over a federation."""
    with quick_imports():
        from fedstrata.config import tables
        from fedstrata.runs.progress import reporter
        from fedstrata.runs.training import resume as resume_run
        from fedstrata.runs.training import train

    if resume is not None and (experiment or out):
        raise RequestError("--resume takes the experiment from the run folder; leave out the file and --out")
    if experiment is not None and "compare" in tables.read(experiment):
        print(
            f"note: this trains the plain experiment of {experiment}; its comparison: fedstrata compare {experiment}",
            file=sys.stderr,
        )
    stop_cleanly()
    progress = reporter(quiet)
    try:
        if resume is not None:
            done = resume_run(resume, overrides=overrides(sets), watch=progress, progress=False)
        else:
            done = train(experiment, overrides=overrides(sets), out=out, watch=progress, progress=False)
    except KeyboardInterrupt:
        progress.close()
        advice = (
            f"; continue with: fedstrata run --resume {shlex.quote(str(progress.run_dir))}"
            if progress.run_dir
            else " before the run began"
        )
        print(f"stopped{advice}", file=sys.stderr)
        raise typer.Exit(130) from None
    except Exception as error:
        _keep_traceback(error, progress.run_dir)
        raise
    finally:
        progress.close()
    with suppress(OSError):  # of an earlier try
        (done.path / TRACEBACK).unlink(missing_ok=True)
    if progress.run_dir is None:
        print(f"{done.path} was finished already", file=sys.stderr)
    conclude(done, as_json)


def _keep_traceback(error: Exception, run_dir: str | None) -> None:
    """Keep the whole traceback of an error in the user's own code, of which the terminal shows the end."""
    from fedstrata.cli.tracebacks import in_short

    said = traceback.format_exc()
    if run_dir is not None and in_short(said) is not None:
        path = Path(run_dir) / TRACEBACK
        with suppress(OSError):
            path.write_text(said)
            error.add_note(f"the whole traceback: {path}")


def conclude(done: Run, as_json: bool) -> None:
    """Print the outcome of a run."""
    from fedstrata.config.experiment import Experiment
    from fedstrata.config.sections import Privacy
    from fedstrata.runs.amounts import write_share

    asked_for = [key for key in ASKED_FOR if key in done.summary]
    shown = {key: done.summary.get(key) for key in (*SHOWN, *asked_for)}
    for remark in done.summary["remarks"]:
        print(f"warning: {remark}", file=sys.stderr)
    if as_json:
        print(json.dumps(shown | done.summary))
        return
    del shown["remarks"]  # they are said already
    for choice in shown.pop("choices", None) or ():
        print(f"chosen: {choice}")
    shown["stopped"] = done.summary["stopped"]
    lines = {key: _said(key, value) for key, value in shown.items() if value != {}}
    for key in ("best_accuracy", "best_balanced_accuracy"):
        if (best := done.summary[f"{key}_round"]) is not None:
            lines[key] += f" (round {best})"
    for figure, value in done.summary.get("metrics", {}).items():
        lines[figure] = "not known" if value is None else f"{write_share(value)} %"
    lines |= {key: f"{lines[key]} ({means})" for key, means in MEANS.items() if shown[key] is not None}
    print("\n".join(f"{key:22} {said}" for key, said in lines.items()))
    if Experiment.of(done.path / "experiment.toml").privacy != Privacy():
        print("\nWho could learn what:")
        print("\n".join(_statement(done.summary["privacy"])))
    path = shlex.quote(str(done.path))
    print(f"figures and curves: fedstrata report {path}\nthe model at work:  fedstrata predict {path} INPUT")


def _statement(privacy: dict[str, Any]) -> list[str]:
    """Return the privacy statement in lines of a readable length."""
    from fedstrata.runs.amounts import write_epsilon

    lines = []
    for who, told in privacy.items():
        said = write_epsilon(told) if who == "epsilon" else told
        lines.append(f"  {who}: {said}" if not isinstance(said, list) else f"  {who}:")
        for sentence in said if isinstance(said, list) else ():
            lines += textwrap.wrap(sentence, 110, initial_indent="    - ", subsequent_indent="      ")
    return [part for line in lines for part in textwrap.wrap(line, 118, subsequent_indent="      ")]


def stop_cleanly() -> None:
    """Treat a polite kill like Ctrl-C, and let neither be lost."""
    from fedstrata.runs.progress import Reporter

    Reporter.asked_to_stop = False

    def stop(*_: object) -> None:
        Reporter.asked_to_stop = True
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # scripts start background jobs with SIGINT ignored
        signal.signal(signal.SIGINT, stop)


def _said(key: str, value: Any) -> str:
    """Write a figure for people: shares in percent, bytes in their unit; `--json` has it in full."""
    from fedstrata.runs.amounts import write_bytes, write_seconds, write_share

    if isinstance(value, dict):  # by target
        spent = {target: "never" if one is None else _said(key, one) for target, one in value.items()}
        return ", ".join(f"{target}: {said}" for target, said in spent.items())
    if key.startswith("bytes") and isinstance(value, int | float):
        return write_bytes(value)
    if isinstance(value, float) and key.startswith(("seconds", "time")):
        return write_seconds(value)
    shares = ("accuracy", "balanced", "best", "worst10", "personal")
    if value is None and key.startswith(shares):
        return "not known"
    return f"{write_share(value)} %" if isinstance(value, float) and key.startswith(shares) else str(value)
