"""Word of a run that failed: its server side leaves it in the run folder, and who follows the run there finds it."""

from __future__ import annotations

import json
import traceback
from pathlib import Path

from fedstrata.core.errors import FedstrataError, RequestError
from fedstrata.core.storage.files import write_atomically
from fedstrata.remote.server.orders import StoppedError

FAILED = "failed.json"


def write_failure(out: Path, error: Exception) -> None:
    """Leave word of what went wrong; it is there whole or not at all."""
    known = isinstance(error, FedstrataError)
    told = {
        "error": type(error).__name__,
        "message": str(error),
        "exit_code": error.exit_code if isinstance(error, FedstrataError) else 1,
        "trace": None if known else "".join(traceback.format_exception(error)),
    }
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / FAILED, (json.dumps(told, indent=2) + "\n").encode())


def read_failure(out: Path) -> FedstrataError | None:
    """Return what went wrong, as an error to raise; None where nothing did."""
    path = out / FAILED
    if not path.exists():
        return None
    try:
        told = json.loads(path.read_text())
        why, code, traced = str(told["message"]), int(told["exit_code"]), bool(told.get("trace"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return FedstrataError(f"the run failed, and {path} cannot be read")
    why = f"the run failed with {told['error']}: {why}; {path} says where" if traced else why
    return RequestError(why) if code == RequestError.exit_code else FedstrataError(why)


def was_stopped(out: Path) -> bool:
    """Say whether it was an operator's word with which a run ended, and nothing that went wrong."""
    try:
        return bool(json.loads((out / FAILED).read_text())["error"] == StoppedError.__name__)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def forget_failure(out: Path) -> None:
    """Take away what an earlier try left."""
    (out / FAILED).unlink(missing_ok=True)
