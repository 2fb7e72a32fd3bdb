"""What a shell offers at TAB: functions from what is typed to what may stand there.

`fedstrata --install-completion` sets bash, zsh and fish up.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

from fedstrata.cli.words import known_words

ASKED = "_FEDSTRATA_COMPLETE"  # set where a shell asks, and not a user


def kinds(incomplete: str) -> list[str]:
    """Offer kinds of parts."""
    return _beginning(incomplete, known_words()["parts"])


def parts(kind: str) -> Callable[[str], list[str]]:
    """Offer parts of a kind."""

    def offer(incomplete: str) -> list[str]:
        return _beginning(incomplete, known_words()["parts"][kind])

    return offer


def tables(incomplete: str) -> list[str]:
    """Offer tables of the papers."""
    return _beginning(incomplete, known_words()["tables"])


def methods(incomplete: str) -> list[str]:
    """Offer methods, one after another with commas between them."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _beginning(last, known_words()["parts"]["methods"])]


def settings(incomplete: str) -> list[str]:
    """Offer keys of an experiment, and after `=` what they may be: names of parts, choices."""
    keys = known_words()["keys"]
    key, equals, value = incomplete.partition("=")
    found = [key] if equals and key in keys else _beginning(key, keys)
    if len(found) == 1 and keys[found[0]]:  # with its values at once: shells put a space after what is the only one
        return [f"{found[0]}={name}" for name in _beginning(value, keys[found[0]])]
    return [f"{name}=" for name in found] if not equals else []


def run_folders(incomplete: str) -> list[str]:
    """Offer folders that hold a run or a comparison, here and under runs/, and folders that are being typed."""
    typed = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    found = {str(path.parent) for at in (Path("runs"), typed) for path in _held(at)}
    return _beginning(incomplete, found) or [f"{path}/" for path in _folders(typed) if str(path).startswith(incomplete)]


def _held(place: Path) -> list[Path]:
    """Return what says that a folder holds a run or a comparison."""
    names = ("experiment.toml", "comparison.json")
    return [path for depth in ("*", "*/*") for name in names for path in place.glob(f"{depth}/{name}")]


def _folders(place: Path) -> list[Path]:
    return sorted(path for path in place.iterdir() if path.is_dir()) if place.is_dir() else []


def _beginning(incomplete: str, words: object) -> list[str]:
    return sorted(word for word in words if word.startswith(incomplete))  # type: ignore[attr-defined]


# ---- bash, which takes `key=value` for three words -----------------------------------------------------------------


@contextmanager
def answering_bash(around: MutableMapping[str, str]) -> Iterator[None]:
    """Where bash asks, put `key=value` together again; bash replaces only what comes after the last `=`."""
    if around.get(ASKED) != "complete_bash":
        yield
        return
    words = _join(around.get("COMP_WORDS", ""), int(around.get("COMP_CWORD", "0")))
    around["COMP_WORDS"], around["COMP_CWORD"] = "\n".join(words), str(len(words) - 1)
    answer = io.StringIO()
    try:
        with redirect_stdout(answer):
            yield
    finally:
        known = words[-1].removeprefix(f"{words[-1].partition('=')[0]}=") if words[-1][:1] == "-" else words[-1]
        for line in answer.getvalue().splitlines():
            print(line[known.rfind("=") + 1 :])


def _join(typed: str, at: int) -> list[str]:
    words, joined = typed.split("\n" if "\n" in typed else " "), [""]
    for place, word in enumerate(words[: at + 1]):
        glued = place > 0 and "=" in (word, words[place - 1])
        joined[-1:] = [joined[-1] + word] if glued else [*joined[-1:], word]
    return joined[1:]
