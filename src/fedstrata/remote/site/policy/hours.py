"""Working hours of a site: `mon-fri 20:00-06:00`, `22:00-06:00` on every day, `sat-sun` all day; in its own time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
FORM = re.compile(r"(?:([a-z]{3})(?:-([a-z]{3}))?)?\s*(?:([0-9]{2}):([0-9]{2})-([0-9]{2}):([0-9]{2}))?")
DAY = 24 * 60  # minutes


@dataclass(frozen=True)
class Hours:
    """A span of time on some days of the week; one that ends before it begins goes on into the next day."""

    days: frozenset[int]
    begin: int = 0  # minutes of the day
    end: int = DAY

    @classmethod
    def read(cls, text: str) -> Hours:
        """Read it; a ValueError says what is allowed."""
        match = FORM.fullmatch(text.strip().lower())
        first, last, *clock = match.groups() if match is not None else (None, None)
        begin, end = (
            (int(clock[0]) * 60 + int(clock[1]), int(clock[2]) * 60 + int(clock[3]))
            if clock and clock[0] is not None
            else (0, DAY)
        )
        known = all(day is None or day in DAYS for day in (first, last))
        if match is None or not text.strip() or not known or begin == end or begin >= DAY or end > DAY:
            raise ValueError('days, a time or both, such as "mon-fri 20:00-06:00", "22:00-06:00" or "sat-sun"')
        if any(minute is not None and int(minute) > 59 for minute in clock[1::2]):
            raise ValueError("times from 00:00 to 24:00")
        if first is None:
            return cls(frozenset(range(7)), begin, end)
        start, stop = DAYS.index(first), DAYS.index(last or first)
        return cls(frozenset((start + i) % 7 for i in range((stop - start) % 7 + 1)), begin, end)

    def holds(self, at: datetime) -> bool:
        """Say whether a moment is within."""
        day, minute = at.weekday(), at.hour * 60 + at.minute
        if self.begin < self.end:
            return day in self.days and self.begin <= minute < self.end
        return (day in self.days and minute >= self.begin) or ((day - 1) % 7 in self.days and minute < self.end)
