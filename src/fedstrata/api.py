"""The public names of fedstrata: what a user of the library, or the author of a part, imports.

`import fedstrata` gives all of them, each loaded when it is first used: `fedstrata.train`, `fedstrata.Selector`.
Everything else is free to move.
"""

from __future__ import annotations

from fedstrata.config.experiment import Experiment
from fedstrata.core import options
from fedstrata.core.client_context import Batch, Buffers, ClientContext, Done
from fedstrata.core.client_info import ClientInfo
from fedstrata.core.client_parts import Client, Correction, LocalPart, LRSchedule, Optimizer, Order
from fedstrata.core.engine import Engine
from fedstrata.core.errors import FedstrataError, PartError, RequestError
from fedstrata.core.flat_model import FlatModel, ParameterSpace
from fedstrata.core.inputs import Inputs
from fedstrata.core.messages import Report, Slot, Sums, Task, Tensors
from fedstrata.core.metric import Metric
from fedstrata.core.options import BelowOne, Count, Fraction, LocalPath, NonNegative, Positive
from fedstrata.core.part import Part
from fedstrata.core.plan import Plan
from fedstrata.core.registry import make_part
from fedstrata.core.rng import Streams
from fedstrata.core.sampler import Sampler
from fedstrata.core.server_parts import Arrived, Combiner, Driver, Schedule, Selector, ServerStep
from fedstrata.core.steps import Ask, Choice, Outcome, Scores, Select, Step, Steps, View
from fedstrata.data.drift import Drift, Stream
from fedstrata.data.federation import Federation
from fedstrata.data.noise import Noise
from fedstrata.data.partitions.base import Deal, Labelled, Partition
from fedstrata.data.partitions.dirichlet import DirichletClass
from fedstrata.data.partitions.iid import Iid
from fedstrata.data.preprocessing import Column, Preprocessing
from fedstrata.data.sets.base import Arrays, DataSet
from fedstrata.engines.local.start import LocalEngineOptions
from fedstrata.inspection import Inspection, inspect
from fedstrata.methods.recipes import Recipe
from fedstrata.methods.schedules.stratified import Stratified
from fedstrata.methods.situation import Situation, StageChoice
from fedstrata.models.architecture import Architecture
from fedstrata.privacy.accounting import Accountant, FixedSize
from fedstrata.report.run_data import RunData
from fedstrata.runs.compare import Comparison, compare
from fedstrata.runs.folder import Run
from fedstrata.runs.journal import STOP
from fedstrata.runs.replay import Record, Replay, replay
from fedstrata.runs.trace import Followed, client_updates, follow
from fedstrata.runs.trackers.base import TrackedRun, Tracker
from fedstrata.runs.training import resume, train
from fedstrata.testing import (
    check_combiner,
    check_correction,
    check_dataset,
    check_driver,
    check_engine,
    check_lr_schedule,
    check_metric,
    check_model,
    check_noise,
    check_partition,
    check_recipe,
    check_sampler,
    check_schedule,
    check_selector,
    check_server_step,
    check_tracker,
)

__all__ = [
    "STOP",
    "Accountant",
    "Architecture",
    "Arrays",
    "Arrived",
    "Ask",
    "Batch",
    "BelowOne",
    "Buffers",
    "Choice",
    "Client",
    "ClientContext",
    "ClientInfo",
    "Column",
    "Combiner",
    "Comparison",
    "Correction",
    "Count",
    "DataSet",
    "Deal",
    "DirichletClass",
    "Done",
    "Drift",
    "Driver",
    "Engine",
    "Experiment",
    "Federation",
    "FedstrataError",
    "FixedSize",
    "FlatModel",
    "Followed",
    "Fraction",
    "Iid",
    "Inputs",
    "Inspection",
    "LRSchedule",
    "Labelled",
    "LocalEngineOptions",
    "LocalPart",
    "LocalPath",
    "Metric",
    "Noise",
    "NonNegative",
    "Optimizer",
    "Order",
    "Outcome",
    "ParameterSpace",
    "Part",
    "PartError",
    "Partition",
    "Plan",
    "Positive",
    "Preprocessing",
    "Recipe",
    "Record",
    "Replay",
    "Report",
    "RequestError",
    "Run",
    "RunData",
    "Sampler",
    "Schedule",
    "Scores",
    "Select",
    "Selector",
    "ServerStep",
    "Situation",
    "Slot",
    "StageChoice",
    "Step",
    "Steps",
    "Stratified",
    "Stream",
    "Streams",
    "Sums",
    "Task",
    "Tensors",
    "TrackedRun",
    "Tracker",
    "View",
    "check_combiner",
    "check_correction",
    "check_dataset",
    "check_driver",
    "check_engine",
    "check_lr_schedule",
    "check_metric",
    "check_model",
    "check_noise",
    "check_partition",
    "check_recipe",
    "check_sampler",
    "check_schedule",
    "check_selector",
    "check_server_step",
    "check_tracker",
    "client_updates",
    "compare",
    "follow",
    "inspect",
    "make_part",
    "options",
    "replay",
    "resume",
    "train",
]
