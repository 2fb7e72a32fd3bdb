"""What publishers and package registries give, in small: a server on this machine, and archives to put there."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import numpy as np


class Server(ThreadingHTTPServer):
    """Gives `files` by path, notes who was `asked`, promises some bytes too many, and keeps `silent` paths waiting."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.silent: set[str] = set()
        self.promised = 0
        self.over = Event()
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Answer(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        if self.path in self.server.silent:
            self.server.over.wait(60)
            return
        body = self.server.files.get(self.path)
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Length", str(len(body or b"") + self.server.promised))
        self.send_header("Content-Type", "text/html" if self.path.endswith("/") else "application/octet-stream")
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[Server]:
    with Server() as running:
        thread = Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield running
        finally:
            running.over.set()
            running.shutdown()
            thread.join()


def covtype_table(rows: int = 40) -> bytes:
    rng = np.random.default_rng(0)
    lines = [
        [*rng.integers(0, 99, 10), *np.eye(4, dtype=int)[0], *np.eye(40, dtype=int)[i % 40], 1 + i % 7]
        for i in range(rows)
    ]
    return "".join(",".join(map(str, line)) + "\n" for line in lines).encode()


def covtype(rows: int = 40) -> bytes:
    return gzip.compress(covtype_table(rows))


def wheel(name: str, version: str, files: Mapping[str, bytes]) -> bytes:
    """Make a wheel that pip takes for one."""
    info = f"{name}-{version}.dist-info"
    about = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp37-cp37m-manylinux1_x86_64\n",
        f"{info}/RECORD": b"",
    }
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for path, content in {**files, **about}.items():
            archive.writestr(path, content)
    return packed.getvalue()


def tarball(files: Mapping[str, bytes], compression: str = "gz") -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=f"w:{compression}") as archive:
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def debian(members: Mapping[str, bytes]) -> bytes:
    """Make a Debian package, an ar archive: `debian-binary`, `control.tar.gz`, `data.tar.xz`."""
    packed = b"!<arch>\n"
    for name, content in members.items():
        packed += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode() + content
        packed += b"\n" * (len(content) % 2)
    return packed


def left_behind(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()) if folder.exists() else []
