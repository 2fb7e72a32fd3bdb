"""Text beside a name: in a terminal broken between words and kept beside it; in a pipe, one line each."""

from __future__ import annotations

import shutil
import sys
from textwrap import fill


def beside(head: str, said: str) -> str:
    """Write what is said beside a head, and its further lines below its first."""
    if not sys.stdout.isatty():
        return f"{head}{said}"
    width = max(shutil.get_terminal_size().columns, len(head) + 20)
    later = " " * len(head)
    return fill(said, width, initial_indent=head, subsequent_indent=later, break_on_hyphens=False)
