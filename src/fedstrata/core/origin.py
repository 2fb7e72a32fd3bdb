"""Where an experiment comes from, and what it may name here.

The local user's experiment may name any file and any class that Python finds, also in the folder the user works in. One
that another machine sent names parts that are registered here, or that somebody here allowed, and no file at all. Both
are decided before anything is imported or opened: there is one way from a name to a class (`registry.find`) and one
from a table to a part (`registry.build`), and both ask here.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, get_args, get_type_hints

from fedstrata.core.errors import RequestError

IS_PATH = "a path"  # the mark of types that name files and folders
_allowed: ContextVar[frozenset[str] | None] = ContextVar("allowed", default=None)  # None: the local user's own
_own_folder: list[str] = []  # where the local user's own parts may lie


@contextmanager
def from_elsewhere(allowed: Collection[str] = ()) -> Iterator[None]:
    """Read what another machine sent; `allowed` are import paths that it may name beside registered parts."""
    before = _allowed.set(frozenset(allowed))
    try:
        yield
    finally:
        _allowed.reset(before)


def check_import(path: str, registered: Collection[str], key: str) -> None:
    """Refuse an import path that only the local user may name; nothing is imported for that."""
    allowed = _allowed.get()
    if allowed is not None and path not in allowed and path not in registered:
        raise RequestError(
            f'{key} = "{path:.80}" is not allowed: another machine names registered parts only, and those that were '
            "allowed here (--allow-part)"
        )


def check_options(part: type, given: Mapping[str, Any], key: str) -> None:
    """Refuse options that name files, where another machine gives them."""
    if _allowed.get() is None:
        return
    for option in sorted(path_options(part) & set(given)):
        if names_file(part, option, given[option]):
            raise RequestError(f"{key}.{option} is a path, and no machine names files of another")


def names_file(part: type, option: str, value: Any) -> bool:
    """Say whether an option of a part that is a path names another one than the part itself would."""
    return value is not None and value != getattr(part, option, None)


def path_options(part: type) -> set[str]:
    """Return the options of a part that name files or folders, by their types."""
    return {name for name, hint in get_type_hints(part, include_extras=True).items() if is_path(hint)}


def is_path(hint: Any) -> bool:
    """Say whether a type names files or folders: `LocalPath`, a `pathlib` path, or anything that may hold one."""
    if isinstance(hint, type) and issubclass(hint, Path):
        return True
    return IS_PATH in getattr(hint, "__metadata__", ()) or any(map(is_path, get_args(hint)))


def find_own_parts_in(folder: str | Path) -> None:
    """Let parts that the local user names by import path lie in a folder; it is searched last, and only then."""
    _own_folder[:] = [str(Path(folder).absolute())]


def search_own_folder() -> None:
    """Search the folder of the user's own parts from now on, after everything that is installed."""
    sys.path.extend(folder for folder in _own_folder if folder not in sys.path)


def where_modules_lie() -> str:
    """Say where a module that was not found is looked for, for errors; another machine learns no folder of ours."""
    if _allowed.get() is not None or not _own_folder:
        return "it is looked for in sys.path: lay it beside the script, or add its folder to PYTHONPATH"
    return (
        f"it is looked for in what is installed, in PYTHONPATH, and in {_own_folder[0]}, where the command was called: "
        "call it from the folder of the module, or add that folder to PYTHONPATH"
    )
