"""The figures of a site: what left it, and whether its process is there."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from fedstrata.deploy.metrics import MetricFamily, of_certificates, of_processes


class SiteFigures:
    """The figures of a site: what left it, from its audit log, and whether its process is there."""

    def __init__(self, folder: Path, awake: Callable[[], bool], certificates: Path | None = None):
        self._folder, self._awake, self._certificates, self._at = folder, awake, certificates, 0
        self._replies: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._bytes, self._latest = 0, 0.0

    def __call__(self) -> Iterator[MetricFamily]:
        """Read them."""
        yield from of_processes(self._folder)
        yield of_certificates(self._certificates)
        self._read()
        awake = MetricFamily("fedstrata_site_awake", "Whether the process that holds the data is there.")
        yield awake.add(self._awake())
        replies = MetricFamily("fedstrata_site_replies", "Replies that left the site.", "counter", ("kind",))
        refused = MetricFamily("fedstrata_site_refusals", "Requests that it refused.", "counter", ("kind",))
        for figure, counted in ((replies, self._replies), (refused, self._refused)):
            for kind, count in sorted(counted.items()):
                figure.add(count, kind)
            yield figure
        yield MetricFamily("fedstrata_site_reply_bytes", "Bytes of all replies.", "counter").add(self._bytes)
        since = time.time() - self._latest if self._latest else float("nan")
        yield MetricFamily("fedstrata_site_idle_seconds", "Since the last reply.").add(since)

    def _read(self) -> None:
        path = self._folder / "audit.jsonl"
        if not path.exists():
            return
        if path.stat().st_size < self._at:
            self._at = self._bytes = 0
            self._replies, self._refused = Counter(), Counter()
        self._latest = path.stat().st_mtime
        with path.open("rb") as file:
            file.seek(self._at)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._at += len(line)
                try:
                    told = json.loads(line)
                    kind, size = str(told["kind"]), int(told["bytes"])
                except (ValueError, KeyError, TypeError):
                    continue
                (self._refused if "refused" in told else self._replies)[kind] += 1
                self._bytes += size
