"""Words that somebody else wrote, made fit for a terminal, an event and a log: short, on one line, of plain signs.

What a site gives as the reason of a refusal ends in the events of a run, and on the screen of who follows it. Escape
sequences would move the cursor there or change its title, line breaks would forge lines, and length would fill a disk.
"""

from __future__ import annotations

WORDS = 1_000  # characters of a reason
CUT = " ..."


def plain_text(text: str, most: int = WORDS) -> str:
    r"""Return text on one line, without control characters and marks that turn its direction, cut where it is too long.

    Examples
    --------
    >>> plain_text("no data\x1b[2J\nround 9: accuracy 1.0")
    'no data [2J round 9: accuracy 1.0'
    >>> plain_text("x" * 99, most=8)
    'xxxx ...'
    """
    said = text if len(text) <= most else text[: most - len(CUT)] + CUT
    return "".join(sign if sign.isprintable() else " " for sign in said)
