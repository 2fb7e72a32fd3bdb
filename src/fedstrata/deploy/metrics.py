"""Figures of a server or a site for Prometheus, as OpenMetrics: read from what lies on the disk when somebody asks.

They are served on a port of their own, on loopback unless told otherwise, without keys: nothing but sums and names of
sites leaves by it, no sample, label or model.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedstrata import __version__
from fedstrata.core.errors import RequestError
from fedstrata.deploy import keys
from fedstrata.deploy.processes import everybody, family
from fedstrata.deploy.state import join_address

LOOPBACK = "127.0.0.1"

Read = Callable[[], Iterator["MetricFamily"]]


class MetricFamily:
    """One family of figures: a name, what it means, and values by labels."""

    def __init__(self, name: str, meaning: str, kind: str = "gauge", labels: tuple[str, ...] = ()):
        self.name, self.meaning, self.kind, self.labels = name, meaning, kind, labels
        self.values: list[tuple[tuple[str, ...], float]] = []

    def add(self, value: float, *labels: str) -> MetricFamily:
        """Add a value."""
        self.values.append((labels, float(value)))
        return self


def serve_metrics(read: Read, port: int, host: str = LOOPBACK) -> Callable[[], None]:
    """Answer with figures on a port, from a thread; give what ends it."""
    if find_spec("prometheus_client") is None:
        raise RequestError('--metrics-port needs prometheus-client: pip install "fedstrata[metrics]"')
    library = import_module("prometheus_client")
    core = import_module("prometheus_client.core")
    kinds = {"gauge": core.GaugeMetricFamily, "counter": core.CounterMetricFamily}

    class Collector:
        def collect(self) -> Iterator[Any]:
            for figure in read():
                told = kinds[figure.kind](figure.name, figure.meaning, labels=figure.labels)
                for labels, value in figure.values:
                    told.add_metric(list(labels), value)
                yield told

    registry = library.CollectorRegistry(auto_describe=False)
    registry.register(Collector())
    try:
        server, thread = library.start_http_server(port, host, registry)
    except OSError as error:
        raise RequestError(
            f"--metrics-port {port} cannot be used on {join_address(host, port)}: {error.strerror or error}"
        ) from None

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return end


def of_processes(folder: Path) -> Iterator[MetricFamily]:
    """Return what the processes of this command use, and the room on the disk of its state."""
    yield MetricFamily("fedstrata_build", "Version.", labels=("version",)).add(1, __version__)
    memory = MetricFamily("fedstrata_memory_bytes", "Resident memory of a server's or site's processes, all together.")
    seconds = MetricFamily("fedstrata_cpu_seconds", "Processor time of those that run now.", "counter")
    count = MetricFamily("fedstrata_processes", "How many they are.")
    there = everybody()
    own = [pid for pid, _ in family([(os.getpid(), there[os.getpid()][1])])] if os.getpid() in there else []
    used = [figures for pid in own if (figures := _used(pid)) is not None]
    yield memory.add(sum(size for size, _ in used))
    yield seconds.add(sum(spent for _, spent in used))
    yield count.add(len(used))
    yield MetricFamily("fedstrata_disk_free_bytes", "Room on the disk of the state.").add(
        shutil.disk_usage(folder).free
    )


def of_certificates(folder: Path | None) -> MetricFamily:
    """Return when the certificates beside the keys end; what cannot be read is said elsewhere."""
    ends = MetricFamily(
        "fedstrata_certificate_end_timestamp_seconds", "When a certificate ends.", labels=("certificate",)
    )
    with suppress(OSError, ValueError):
        for name, end in ({} if folder is None else keys.ends(folder)).items():
            ends.add(end.timestamp(), name.removesuffix(".crt"))
    return ends


def _used(pid: int) -> tuple[float, float] | None:
    """Return bytes and seconds; None where the system does not tell, or the process is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    return pages * os.sysconf("SC_PAGE_SIZE"), (int(fields[11]) + int(fields[12])) / ticks
