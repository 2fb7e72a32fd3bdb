"""What Flower hands to our app as plain values: the configuration of a run, and that of a site's node.

Every key stands here once: who submits a run or starts a site writes it, and the app reads it. It is imported for every
message: no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self, get_type_hints

from fedstrata.core.errors import RequestError


def _path(value: object) -> Path | None:
    return Path(value) if isinstance(value, str) and Path(value).is_absolute() else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _seconds(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 else None


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


class Reader(NamedTuple):
    """How a value is read, and what is allowed."""

    read: Callable[[object], Any]  # gives None for what is not
    allowed: str


FullPath = Annotated[Path, Reader(_path, "an absolute path")]
Count = Annotated[int, Reader(_count, "a whole number > 0")]
Seconds = Annotated[float, Reader(_seconds, "seconds, a number >= 0")]
Flag = Annotated[bool, Reader(_flag, "true or false")]
Address = Annotated[str, Reader(_text, "HOST:PORT")]
Word = Annotated[str, Reader(_text, "text")]
FileName = Annotated[str, Reader(_text, "a path")]


@dataclass(frozen=True)
class RunConfig:
    """What differs from one run to the next: paths on the server's machine, and how sites are waited for."""

    experiment: FullPath  # the resolved experiment file
    out: FullPath  # the run folder
    sites: Count  # how many to wait for
    resume: Flag = False  # whether to go on in `out`
    wait: Seconds = 600.0  # for the sites to come
    deadline: Seconds = 0.0  # for each exchange; 0: no limit
    stream: Address = ""  # where sites find a stream; empty: everything goes by messages
    listen: Address = ""  # what the stream binds, where that is another address
    fine: Flag = False  # whether messages would not do where not all sites come onto the stream
    keys: FileName = ""  # the server's own folder, for masked sums and sealed chains; empty: insecure
    nodes: FileName = ""  # says which site's key each node has; empty: insecure
    met: FileName = ""  # for what nodes say of themselves
    news: FileName = ""  # for what happens before there is a run folder
    server: FileName = ""  # where the server keeps its things: what operators say, how sites are doing
    ticket: Word = ""  # by which operators know the run
    turn: FileName = ""  # locked while the run goes on, also without the command that asked for it
    folder: FileName = ""  # where the run was asked for: relative paths and parts of one's own are found from there

    @classmethod
    def of(cls, config: Mapping[str, object]) -> Self:
        """Read what Flower hands over, and check it."""
        kinds, given = get_type_hints(cls, include_extras=True), dict[str, Any]()
        for key in fields(cls):
            read, allowed = kinds[key.name].__metadata__[0]
            value = read(config[key.name]) if key.name in config else None
            if value is None and (key.name in config or key.default is MISSING):
                said = config.get(key.name)
                raise RequestError(f"run config {key.name} = {said!r} is not valid; allowed: {allowed}")
            given |= {} if value is None else {key.name: value}
        return cls(**given)

    def dump(self) -> dict[str, Any]:
        """Return the values that Flower takes."""
        return {name: str(value) if isinstance(value, Path) else value for name, value in vars(self).items()}


def out_of(config: Mapping[str, object]) -> Path | None:
    """Return the run folder, as far as it can be read: what is wrong with the rest is written there."""
    return _path(config.get("out"))


# What stands in the app itself: Flower takes only keys that are there, with values of the same type.
BLANK: dict[str, Any] = {**RunConfig(Path(), Path(), 1).dump(), "experiment": "", "out": ""}


@dataclass(frozen=True)
class NodeConfig:
    """What a site's node knows: its name, and where its process answers."""

    socket: str
    site: str

    @classmethod
    def of(cls, config: Mapping[str, object]) -> Self:
        """Read what Flower hands over, and check it."""
        for key in fields(cls):
            value = config.get(key.name)
            if not isinstance(value, str) or not value:
                raise RequestError(
                    f"node config {key.name} = {value!r} is not valid; allowed: text; start sites with `deploy client`"
                )
        return cls(**{key.name: str(config[key.name]) for key in fields(cls)})

    def option(self) -> str:
        """Return the value of Flower's --node-config."""
        return f"site='{self.site}' socket='{self.socket}'"
