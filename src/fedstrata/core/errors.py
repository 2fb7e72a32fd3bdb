"""Errors a user can act on. The command line turns each into a message and an exit code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches


class FedstrataError(Exception):
    """The run failed; exit code 1.

    Attributes
    ----------
    exit_code
        What the command line ends with.
    """

    exit_code = 1


class RequestError(FedstrataError):
    """The request was wrong: bad experiment, bad data, bad folder; exit code 2.

    The message names the key, the value and what is allowed.

    Examples
    --------
    >>> import fedstrata
    >>> try:
    ...     fedstrata.train(overrides={"train.rounds": 0})
    ... except fedstrata.RequestError as error:
    ...     print(error)
    train.rounds = 0 is not valid; allowed: a number >= 1
    """

    exit_code = 2


class DamagedError(RequestError):
    """A file is not what it should be; one that was downloaded must not be trusted again."""


class PartError(FedstrataError, ValueError):
    """A part broke its contract: the message names the part, what it gave, and what is allowed.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import fedstrata
    >>> @dataclass(frozen=True)
    ... class Nobody(fedstrata.Selector):
    ...     '''Chooses a client that is not there.'''
    ...
    ...     def select(self, state, view):
    ...         return [99]
    >>> fedstrata.train(overrides={"method.selector": Nobody(), "train.rounds": 1})
    Traceback (most recent call last):
    ...
    fedstrata.core.errors.PartError: Nobody: `select` chose client 99; there are 0 to 19
    """


class UnknownFieldError(PartError, AttributeError):
    """A part reads a field that is not there."""


class UnsummableError(FedstrataError):
    """What clients sent cannot be summed, because too few of them are left; the run goes on without it.

    Attributes
    ----------
    event
        The kind of event that it is.
    """

    event = "dropped"


class PoisonedSumError(UnsummableError):
    """A sum that nobody can look into is longer than honest clients make it; the run goes on without it."""

    event = "poisoned_sum"


class ClientError(FedstrataError):
    """A part raised while it worked for one client."""

    def __init__(self, client: int, trace: str):
        super().__init__(f"client {client} failed:\n{trace}")
        self.client = client


def unknown_name(what: str, name: str, known: Iterable[str]) -> RequestError:
    """Refuse a name that is not in a table, and say which one was probably meant."""
    names = sorted(known)
    return RequestError(f'{what} = "{name}" is unknown{near(name, names)}; allowed: {", ".join(names)}')


def no_figure(name: str, there: Iterable[str]) -> RequestError:
    """Refuse a figure that no round has, and say which ones there are."""
    names = sorted(there)
    return RequestError(f'no round has "{name}"{near(name, names)}; there are {", ".join(names)}')


def near(name: str, names: Sequence[str]) -> str:
    """Say which of some names was probably meant; nothing where none is like it."""
    found = get_close_matches(name, names, n=1, cutoff=0.5)
    return f' (did you mean "{found[0]}"?)' if found else ""
