"""`fedstrata new`: a folder to begin with."""

from __future__ import annotations

import json
import shlex
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from fedstrata.cli.options import AsJson
from fedstrata.core.errors import RequestError

FILES = {  # what is written, and after which template
    "experiment.toml": "experiment.toml",
    "my_parts.py": "my_parts.txt",
    "test_my_parts.py": "test_my_parts.txt",
    ".gitignore": "gitignore.txt",
}


def new(
    folder: Annotated[Path, typer.Argument(metavar="NAME", help="The folder to make.")],
    as_json: AsJson = False,
) -> None:
    """Create a new experiment. The folder has a commented experiment, a part and its test; all run as is."""
    name = folder.resolve().name
    if folder.is_file():
        raise RequestError(f"{folder} is a file; name a folder that is not there")
    if folder.is_dir() and any(folder.iterdir()):
        raise RequestError(f"{folder} is not empty; name a folder that is not there")
    if not name.isprintable() or len(name) > 100:
        raise RequestError(f"{name!r} cannot be the name of an experiment; allowed: 1 to 100 printable characters")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for written, template in FILES.items():
            text = files("fedstrata.cli").joinpath("template", template).read_text(encoding="utf-8")
            (folder / written).write_text(text.replace('"@NAME@"', json.dumps(name)), encoding="utf-8")
    except OSError as error:
        raise RequestError(f"{folder} cannot be written: {error}") from None
    if as_json:
        print(json.dumps({"folder": str(folder), "files": list(FILES)}))
        return
    print(f"{folder}: {', '.join(FILES)}")
    print(f"next:  cd {shlex.quote(str(folder))}")
    print("       fedstrata run experiment.toml")
    print("       python test_my_parts.py")
