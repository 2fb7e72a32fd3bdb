"""The cluster: found at an address, or started on this machine for one run and ended with it."""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from math import inf
from typing import Any

from fedstrata.core.errors import FedstrataError, RequestError
from fedstrata.core.machine.threads import cores

MEGABYTE = 2**20
LOCAL, RUNNING = "local", "auto"  # addresses: of a cluster that is started here, and of one that runs here
ADDRESS = r"[\w.-]+:\d{1,5}|\[[0-9A-Fa-f:.]+\]:\d{1,5}"  # host:port, or an IPv6 address in brackets
NOISE = r"\x1b\[\d+m|(?<=actor) [0-9a-f]{32}"  # colours, and names that tell nobody anything
STARTS = 3  # tries to start a cluster: on a busy machine, nodes are late


@dataclass(frozen=True)
class ClusterNode:
    """A machine of the cluster that is there."""

    name: str  # as Ray knows it
    address: str
    cpus: float
    gpus: float
    free_cpus: float = inf  # that nobody takes, as far as Ray knows
    free_gpus: float = inf


def load_ray() -> Any:
    """Import Ray; say what to install where it is not there."""
    try:
        return import_module("ray")
    except ImportError as error:
        wanted = 'a cluster needs Ray, which is not installed; use pip install "fedstrata[ray]"'
        raise RequestError(f"{wanted} ({error})") from None


class Cluster:
    """A connection to Ray. What this process was connected to before stays connected when it is closed."""

    def __init__(self, address: str = LOCAL, object_store: int | None = None):
        _check_address(address)
        self.ray = load_ray()
        self._own = not self.ray.is_initialized()
        if self._own:
            self._connect(address, object_store)
        elif address not in (LOCAL, RUNNING, self.address):
            raise RequestError(f'engine.address = "{address}", but this process is connected to {self.address} already')

    @property
    def address(self) -> str:
        """Return where the cluster is."""
        return str(self.ray.get_runtime_context().gcs_address)

    def _connect(self, address: str, object_store: int | None) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody is told what is trained here
        asked: dict[str, Any] = {"address": address, "log_to_driver": False, "configure_logging": False}
        if address == LOCAL:
            asked |= {"num_cpus": cores(), "include_dashboard": False}
            if object_store is not None:
                asked["object_store_memory"] = object_store * MEGABYTE
        _quieten()
        for left in reversed(range(STARTS if address == LOCAL else 1)):
            try:
                with _same_signals():
                    self.ray.init(logging_level=logging.ERROR, **asked)
                return
            except Exception as error:  # where a node is not up in time, Ray raises just that
                self.ray.shutdown()
                self._refuse(address, error, left)

    def _refuse(self, address: str, error: Exception, left: int) -> None:
        """Say why there is no cluster, unless another try is left."""
        why = say_why(error)
        if address != LOCAL:
            raise RequestError(
                f'engine.address = "{address}": no cluster answers ({why}); start one with ray start --head, leave '
                "engine.address out for one on this machine, or, where there is one that asks for a token, set "
                "RAY_AUTH_MODE=token and bring its token"
            ) from None
        if not left:
            raise FedstrataError(f"no cluster can be started on this machine: {why}") from None

    def nodes(self) -> list[ClusterNode]:
        """Return the machines that are there, and what is free of each: by what they said a moment ago."""
        free = import_module("ray._private.state").available_resources_per_node()  # Ray has no other way to ask by node
        found = []
        for node in self.ray.nodes():
            if node["Alive"]:
                has = node["Resources"]
                left = free.get(node["NodeID"], has)  # one that has just come has not said
                shares = [of.get(kind, 0.0) for of in (has, left) for kind in ("CPU", "GPU")]
                found.append(ClusterNode(node["NodeID"], node["NodeManagerAddress"], *shares))
        return found

    def at(self, node: str | None = None) -> Any:
        """Return what has a process started on a node, this one if none is named, and nowhere else."""
        strategy = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        return strategy(node or self.ray.get_runtime_context().get_node_id(), soft=False)

    @contextmanager
    def storing(self) -> Iterator[None]:
        """Say what to do where the object store, and the disk behind it, are full."""
        errors = self.ray.exceptions
        try:
            yield
        except (errors.ObjectStoreFullError, errors.OutOfDiskError) as error:
            raise FedstrataError(
                f"Ray's object store is full, and so is the disk it spills to ({say_why(error)}); start nodes with a "
                "larger --object-store-memory, set engine.object_store for a cluster on this machine, or share samples "
                "by path with engine.shared_folder. The last checkpoint is safe"
            ) from None

    def close(self) -> None:
        """Leave the cluster; one that was started for this run ends."""
        if self._own and self.ray.is_initialized():
            with _same_signals():
                self.ray.shutdown()


def say_why(error: Exception) -> str:
    """Say in one line what went wrong: Ray's errors begin with a heading, and end with the cause."""
    lines = [line.strip() for line in re.sub(NOISE, "", str(error)).splitlines() if line.strip()]
    named = [line for line in lines if "Error: " in line and "Traceback" not in line]
    return (named[-1] if named else lines[0] if lines else type(error).__name__)[:300]


def _check_address(address: str) -> None:
    """Refuse what is no address, before anybody waits for an answer from it."""
    if address.startswith("ray://"):
        raise RequestError(
            f'engine.address = "{address}": Ray Client maps no memory, and cannot carry models; '
            'run on a machine of the cluster, with "auto" or host:port, or send the run there with ray job submit'
        )
    if address not in (LOCAL, RUNNING) and not re.fullmatch(ADDRESS, address):
        raise RequestError(f'engine.address = "{address}" is no address; allowed: "local", "auto", or "host:port"')


def _quieten() -> None:
    """Let what Ray says of lost processes go to the log `ray.errors`: it prints pages of it on the standard output.

    That belongs to results, and what matters of it is an event of the run. Ray has no setting for this.
    """
    logging.getLogger("ray").setLevel(logging.ERROR)
    inside: Any = import_module("ray._private.worker")
    if hasattr(inside, "print_to_stdstream"):
        inside.print_to_stdstream = lambda data, **_: logging.getLogger("ray.errors").info("%s", data.get("lines"))


@contextmanager
def _same_signals() -> Iterator[None]:
    """Leave signals to whoever handled them before: Ray takes SIGTERM for itself."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            with suppress(TypeError):  # one that was not set from Python
                signal.signal(number, handler)
