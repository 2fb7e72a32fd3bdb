"""What can be completed: keys of an experiment, names of parts and tables. A shell asks at every TAB.

To collect them takes an import of torch, which is too slow for a shell; so they are kept in the data folder until the
package, or what is installed beside it, changes.
"""

from __future__ import annotations

import json
import os
import sysconfig
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedstrata import __version__
from fedstrata.core.storage.files import write_atomically

PLACES = {  # keys whose value is a part, and its kind
    "data.name": "datasets",
    "data.partition": "partitions",
    "data.noise": "noises",
    "model.name": "models",
    "method.name": "methods",
    "method.schedule": "schedules",
    "method.driver": "drivers",
    "method.selector": "selectors",
    "method.sampler": "samplers",
    "method.corrections": "corrections",
    "method.combiner": "combiners",
    "method.server_step": "server_steps",
    "train.optimizer": "optimizers",
    "train.lr_schedule": "lr_schedules",
    "train.evaluate.metrics": "metrics",
    "engine.kind": "engines",
    "track": "trackers",
}


def known_words() -> dict[str, Any]:
    """Return `parts` by kind, `keys` of an experiment with the values they may have, and `tables` of papers."""
    home = Path(os.environ.get("FEDSTRATA_DATA", "~/.cache/fedstrata")).expanduser()
    state, kept = _state(), home / "completion.json"
    with suppress(OSError, ValueError, TypeError, KeyError):  # not there yet, or not ours: it is made anew
        found: dict[str, Any] = json.loads(kept.read_text())
        if found["state"] == state:
            return found
    words = {"state": state, **_collect()}
    with suppress(OSError):  # a home that cannot be written only makes the next TAB as slow
        home.mkdir(parents=True, exist_ok=True)
        write_atomically(kept, json.dumps(words).encode())
    return words


def _state() -> list[Any]:
    package = Path(__file__).parents[1]
    newest = max(path.stat().st_mtime for path in package.rglob("*.py"))
    return [__version__, str(package), newest, Path(sysconfig.get_path("purelib")).stat().st_mtime]


def _collect() -> dict[str, Any]:
    from typing import Literal, get_args, get_origin

    from fedstrata.config.experiment import Experiment
    from fedstrata.config.sections import Section
    from fedstrata.core import registry
    from fedstrata.reproduce.table import all_tables

    keys: dict[str, list[str]] = {}

    def walk(section: type[Section], prefix: str) -> None:
        for name, field in section.model_fields.items():
            hints = (field.annotation, *get_args(field.annotation))
            inner = [kind for kind in hints if isinstance(kind, type) and issubclass(kind, Section)]
            for kind in inner:
                walk(kind, f"{prefix}{name}.")
            if not inner and name not in ("fingerprint", "chosen"):
                choices = [str(word) for hint in hints if get_origin(hint) is Literal for word in get_args(hint)]
                keys[f"{prefix}{name}"] = ["true", "false"] if bool in hints else choices

    walk(Experiment, "")
    parts = {kind: sorted(registry.names(kind)) for kind in registry.STAGES}
    keys |= {key: parts[kind] for key, kind in PLACES.items()}
    return {"parts": parts, "keys": keys, "tables": sorted(all_tables())}
