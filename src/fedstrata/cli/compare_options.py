"""Options of `fedstrata compare`: the design, how rows are tuned, where runs lie, how they are run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedstrata.cli import completing

Given = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[EXPERIMENT.toml]",
        help="Experiment file; the embedded default without one. With --merge, the folders of the runs.",
        readable=False,
    ),
]
Methods = Annotated[
    str,
    typer.Option(
        metavar="A,B(KEY=VALUE)",
        help="Methods, with keys of their own; `fedstrata list methods` names them.",
        autocompletion=completing.methods,
    ),
]
Variants = Annotated[
    list[str] | None,
    typer.Option(metavar="'NAME: KEY=VALUE, ...'", help="One more row, by what it sets; any number of times."),
]
Over = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=V1,V2", help="A condition for every value; for every combination of several."),
]
Conditions = Annotated[
    list[str] | None,
    typer.Option(metavar="'NAME: KEY=VALUE, ...'", help="A condition that sets several keys at once."),
]
Seeds = Annotated[int | None, typer.Option(metavar="N", help="Seeds, counted up from the experiment's.")]
Budget = Annotated[
    str | None,
    typer.Option(
        metavar="WHAT=N", help="End each run when it has spent rounds=N, bytes=50MB, client_updates=N or time=N."
    ),
]
Ablate = Annotated[
    str,
    typer.Option(metavar="STAGES", help="Put stages of one method, such as selector,sampler, back to FedAvg's."),
]
Same = Annotated[
    str, typer.Option(metavar="STAGES", help="Give all rows what the first has, such as combiner or train.lr.")
]
Metrics = Annotated[
    list[str] | None,
    typer.Option(
        metavar="M1,M2",
        help="What is compared: accuracy, balanced_accuracy, worst10, best, mean_last10, rounds_to:0.8, ...; "
        "ranks and tests follow the first.",
    ),
]
TuneOver = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=V1,V2",
        help="Give each row its best of these values, on samples that clients hold out; any number of times. "
        "'ROW: KEY=V1,V2' is for one row.",
    ),
]
TuneBudget = Annotated[
    str | None, typer.Option(metavar="WHAT=N", help="What each trial may spend, as with --budget: rounds=50.")
]
TuneSeeds = Annotated[int | None, typer.Option(metavar="N", help="Seeds of each setting that is tried; 1.")]
TuneValidation = Annotated[
    float | None, typer.Option(metavar="SHARE", help="Of their training samples, what clients hold out; 0.2.")
]
Tuner = Annotated[
    str | None, typer.Option(metavar="NAME", help="grid tries all, optuna chooses: also from 0.001..0.3:log.")
]
Trials = Annotated[
    int | None, typer.Option(metavar="N", help="Settings that optuna tries for each row and condition; 30.")
]
Out = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder of the runs; a comparison that lies there goes on."),
]
Resume = Annotated[Path | None, typer.Option(metavar="DIR", help="Go on with the comparison in a folder.")]
Jobs = Annotated[int | None, typer.Option(metavar="N", help="Runs at a time; one a core without it, where that pays.")]
Minutes = Annotated[
    float | None, typer.Option(metavar="N", help="Stop after so long, between rounds; --resume goes on.")
]
ShardOf = Annotated[
    str | None, typer.Option(metavar="I/N", help="Run only one of so many shares: for several machines.")
]
EngineName = Annotated[
    str,
    typer.Option(metavar="NAME", help="ray executes runs on a Ray cluster, ray=HOST:PORT on that one; else local."),
]
Merge = Annotated[Path | None, typer.Option(metavar="DIR", help="Put the runs of several folders into this one.")]
Tables = Annotated[
    list[Path] | None, typer.Option(metavar="FILE", help="Also write the table: .tex (booktabs), .md or .csv.")
]
Wide = Annotated[bool, typer.Option("--wide", help="Print every figure, however wide the table gets.")]
