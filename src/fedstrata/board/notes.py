"""What people say of a run: a note and tags, in a file beside the run, which training never reads."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedstrata.core.errors import RequestError
from fedstrata.core.plain_text import plain_text
from fedstrata.core.storage.files import write_atomically

FILE = "notes.json"
LONGEST, MOST_TAGS, LONGEST_TAG = 10_000, 20, 40  # characters of a note; tags; characters of one


@dataclass(frozen=True)
class Notes:
    """A note, and words to find a run by."""

    note: str = ""
    tags: tuple[str, ...] = ()

    @classmethod
    def of(cls, told: Any) -> Notes:
        """Read what a browser sent or a file holds; anything else than a note and tags is refused."""
        note, tags = (told.get("note", ""), told.get("tags", [])) if isinstance(told, dict) else (None, None)
        if not isinstance(note, str) or not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
            raise RequestError("notes are {note: text, tags: [words]}")
        named = tuple(dict.fromkeys(word for tag in tags if (word := plain_text(tag.strip()))))
        if len(note) > LONGEST or len(named) > MOST_TAGS or any(len(tag) > LONGEST_TAG for tag in named):
            limits = f"{LONGEST} characters, {MOST_TAGS} tags of {LONGEST_TAG} characters"
            raise RequestError(f"a note is too long, or has too many tags; allowed: {limits}")
        return cls("\n".join(plain_text(line, LONGEST) for line in note.splitlines()), named)


def read_notes(folder: Path) -> Notes:
    """Return what is said of a run; nothing where there is no such file, or one that cannot be read."""
    try:
        return Notes.of(json.loads((folder / FILE).read_text()))
    except (OSError, ValueError, RecursionError, RequestError):
        return Notes()


def write_notes(folder: Path, notes: Notes) -> None:
    """Keep what is said of a run beside it."""
    write_atomically(folder / FILE, json.dumps(asdict(notes), ensure_ascii=False, indent=1).encode())
