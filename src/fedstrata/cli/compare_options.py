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
        help="Experiment file; without one, the defaults: FedAvg on digits. With --merge, the comparisons to merge.",
        readable=False,
    ),
]
Methods = Annotated[
    str,
    typer.Option(
        metavar="A,B(KEY=VALUE)",
        help="Methods to compare, each with its own settings in brackets, if any; `fedstrata list methods` names them. "
        "The first is what the others are tested against.",
        autocompletion=completing.methods,
    ),
]
Variants = Annotated[
    list[str] | None,
    typer.Option(
        metavar="'NAME: KEY=VALUE, ...'",
        help="One more method, named and described by its settings; any number of times.",
    ),
]
Over = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=V1,V2",
        help="Compare under each of these values, e.g. data.partition.alpha=0.1,1; any number of times, which gives "
        "every combination.",
    ),
]
Conditions = Annotated[
    list[str] | None,
    typer.Option(
        metavar="'NAME: KEY=VALUE, ...'", help="Compare under these settings, too, set together; any number of times."
    ),
]
Seeds = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Runs of each method, with seeds counted up from train.seed; default: the file's, or 1."
    ),
]
Budget = Annotated[
    str | None,
    typer.Option(
        metavar="WHAT=N", help="End each run when it has spent rounds=N, bytes=50MB, client_updates=N or time=N."
    ),
]
Ablate = Annotated[
    str,
    typer.Option(
        metavar="STAGES",
        help="Ablation: add a row for each of these stages, such as selector,sampler, with FedAvg's part there.",
    ),
]
Same = Annotated[
    str,
    typer.Option(
        metavar="STAGES",
        help="Give all methods what the first has of these stages or keys, such as combiner or train.lr.",
    ),
]
Metrics = Annotated[
    list[str] | None,
    typer.Option(
        metavar="M1,M2",
        help="What is compared: accuracy, balanced_accuracy, worst10, best, mean_last10, rounds_to:0.8, ...; "
        "ranks and tests follow the first; any number of times.",
    ),
]
TuneOver = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=V1,V2",
        help="Tune: give each method the best of these values, by samples that clients hold out; any number of times. "
        "'METHOD: KEY=V1,V2' tunes one method.",
    ),
]
TuneBudget = Annotated[
    str | None,
    typer.Option(metavar="WHAT=N", help="What each trial of --tune may spend, as with --budget, e.g. rounds=50."),
]
TuneSeeds = Annotated[
    int | None, typer.Option(metavar="N", help="Seeds of each setting that --tune tries; default: 1.")
]
TuneValidation = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE", help="Share of its training samples that each client holds out for --tune; default: 0.2."
    ),
]
Tuner = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="How --tune searches: grid tries all values (default), optuna chooses some, also from a range such as "
        "train.lr=0.001..0.3:log.",
    ),
]
Trials = Annotated[
    int | None, typer.Option(metavar="N", help="Settings that optuna tries for each method and condition; default: 30.")
]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder of the runs; the next free one under runs/ without it. A comparison that lies there goes on.",
    ),
]
Resume = Annotated[Path | None, typer.Option(metavar="DIR", help="Go on with the comparison in this folder.")]
Jobs = Annotated[int | None, typer.Option(metavar="N", help="Runs at a time; default: one a core, where that pays.")]
Minutes = Annotated[
    float | None, typer.Option(metavar="N", help="Stop after N minutes, between rounds; --resume goes on.")
]
ShardOf = Annotated[
    str | None, typer.Option(metavar="I/N", help="Run only the I-th of N shares: for several machines.")
]
EngineName = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="Where runs are executed: local, ray (a Ray cluster), or ray=HOST:PORT (that one)."
    ),
]
Merge = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Copy the runs of the comparisons that are named as arguments into this folder."),
]
Tables = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE", help="Also write the table: .tex (booktabs), .md or .csv; any number of times."),
]
Wide = Annotated[bool, typer.Option("--wide", help="Print every figure, however wide the table gets.")]
