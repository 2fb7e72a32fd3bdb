"""Run a job: `python -m benchmarks.peers NAME JOB`, in the environment of that peer."""

from __future__ import annotations

import sys
from importlib import import_module

from benchmarks.peers.job import Job, Stopwatch

watch = Stopwatch(Job.read(sys.argv[2]))
import_module(f"benchmarks.peers.{sys.argv[1]}").run(watch.job, watch)
watch.tell()
