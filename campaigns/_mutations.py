"""What becomes of a sound file or message: bits flip, pieces are missing or come twice, values cannot be."""

from __future__ import annotations

import json
from copy import deepcopy
from random import Random
from typing import Any

ODD: list[Any] = [
    None, True, 0, -1, 1 << 70, 10**400, 1e308, float("nan"), float("inf"), "", "x" * 5000, "\x1b[2J", "\x00", "../..",
    "\ud800", [], {}, [[]], [None], [0] * 1000, {"a": {"b": {}}}, "1", [1, "a"], -0.5,
]  # fmt: skip
TOKENS = [b"[" * 2000, b"{" * 500, b'"', b"\x00" * 9, b"\xff\xfe", b"9" * 5000, b"1e999", b"NaN", b"\n", b"null", b"="]


def mutate_bytes(data: bytes, rng: Random) -> bytes:
    """Change bytes in one to four places."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at, end = sorted(rng.randrange(len(changed) + 1) for _ in range(2))
        match rng.randrange(6):
            case 0 if changed:
                changed[at % len(changed)] ^= 1 << rng.randrange(8)
            case 1:
                del changed[at : min(end, at + rng.randint(1, 64))]
            case 2:
                changed[at:at] = rng.choice(TOKENS)
            case 3:
                changed[at:at] = changed[at : at + rng.randint(1, 200)]
            case 4:
                changed[at : at + 8] = rng.randbytes(8)
            case _:
                del changed[at:]
    return bytes(changed)


def mutate_json(data: bytes, rng: Random) -> bytes:
    """Put an odd value in some place of a table, take one away, or change bytes."""
    if rng.random() < 0.3:
        return mutate_bytes(data, rng)
    table = json.loads(data)
    for _ in range(rng.randint(1, 3)):
        at: Any = table
        while isinstance(at, dict | list) and at:
            key = rng.choice(list(at)) if isinstance(at, dict) else rng.randrange(len(at))
            if not isinstance(at[key], dict | list) or not at[key] or rng.random() < 0.4:
                if rng.random() < 0.15:
                    del at[key]
                else:
                    at[key] = deepcopy(rng.choice(ODD))
                break
            at = at[key]
    return json.dumps(table).encode()
