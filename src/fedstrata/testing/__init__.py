"""Conformance suites: run them on parts of your own, as this project runs them on every part it has."""

from fedstrata.testing.conformance import (
    check_combiner,
    check_driver,
    check_model,
    check_partition,
    check_sampler,
    check_schedule,
    check_selector,
    check_server_step,
)
from fedstrata.testing.local_part import check_local_part
from fedstrata.testing.sites import WireEngine
from fedstrata.testing.tiny import tiny_federation

__all__ = [
    "WireEngine",
    "check_combiner",
    "check_driver",
    "check_local_part",
    "check_model",
    "check_partition",
    "check_sampler",
    "check_schedule",
    "check_selector",
    "check_server_step",
    "tiny_federation",
]
