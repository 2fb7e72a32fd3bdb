"""A server is asked for a path, or told something: single requests, over TLS where it has an authority."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

LONGEST = 1 << 16  # bytes of an answer


def ask(address: str, path: str, authority: Path | None, seconds: float = 5.0) -> int:
    """Ask a server for a path and give the status; OSError where there is no answer, as of another certificate."""
    return tell(address, path, authority, None, seconds)[0]


def tell(address: str, path: str, authority: Path | None, body: bytes | None, seconds: float) -> tuple[int, str]:
    """Send a server something, or just ask; give the status and what it says."""
    trust = None if authority is None else ssl.create_default_context(cafile=str(authority))
    handlers: list[Any] = [urllib.request.ProxyHandler({})]
    if trust is not None:
        handlers.append(urllib.request.HTTPSHandler(context=trust))
    request = urllib.request.Request(f"{'http' if trust is None else 'https'}://{address}{path}", body)
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=seconds) as answer:
            return int(answer.status), answer.read(LONGEST).decode(errors="replace")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(LONGEST).decode(errors="replace")
