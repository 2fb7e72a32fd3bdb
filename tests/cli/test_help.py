"""Help: of every command, whole, and as it was written."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import typer
from typer.core import TyperArgument, TyperOption

from fedstrata.cli import app


def all_commands() -> Iterator[tuple[str, ...]]:
    waiting = [((), typer.main.get_command(app))]
    while waiting:
        path, command = waiting.pop()
        yield path
        waiting += [((*path, name), inside) for name, inside in getattr(command, "commands", {}).items()]


@pytest.mark.parametrize("command", sorted(all_commands()), ids=" ".join)
def test_help_is_whole_and_has_no_marks_of_a_renderer(cli, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = cli(*command, "--help")
    assert code == 0
    assert "\\[" not in out
    assert "..." not in out.partition("\nCommands:")[2], "the first sentence of a command must fit into its line"


def test_every_argument_says_what_it_is(cli):
    found = 0
    for path in all_commands():
        command = typer.main.get_command(app)
        for name in path:
            command = command.commands[name]
        arguments = [own for own in command.params if isinstance(own, TyperArgument)]
        assert [own.name for own in arguments if not own.help] == [], path
        found += len(arguments)
    assert found > 20


def test_every_option_says_its_default_in_words_and_whether_it_may_come_again(cli):
    for path in all_commands():
        command = typer.main.get_command(app)
        for name in path:
            command = command.commands[name]
        for option in (own for own in command.params if isinstance(own, TyperOption)):
            assert option.help, (path, option.name)
            assert not re.search(r"; [\d.]+$", option.help.rstrip(".")), (path, option.help)
            assert not option.multiple or "any number of times" in option.help, (path, option.help)
        assert "INTEGER" not in cli(*path, "--help")[1], path


@pytest.mark.parametrize("words", [("rn",), ("reproduce", "rum")], ids=" ".join)
def test_what_was_probably_meant_is_said_once(cli, words):
    code, _, err = cli(*words)
    assert code == 2
    assert err.count("Did you mean 'run'?") == 1
