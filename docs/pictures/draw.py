"""Draw a round and each of its stages: `python docs/pictures/draw.py` writes them beside this file.

Colours are labels, the same in every picture; grey lines and words are read on light and on dark ground.
"""

from __future__ import annotations

from pathlib import Path

LABELS = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee"]
INK, FAINT = "#808790", "#80879055"
WIDTH, HEIGHT = 640, 150


def word(x: float, y: float, text: str, size: int = 13, anchor: str = "middle") -> str:
    """Write a word."""
    return f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" fill="{INK}">{text}</text>'


def arrow(x1: float, y1: float, x2: float, y2: float, colour: str = INK, width: float = 2) -> str:
    """Draw an arrow."""
    ends = f'x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width}" marker-end="url(#tip)"/>'


def client(x: float, y: float, shares: list[int], chosen: bool = True) -> str:
    """Draw a client: a box with a bar for each label it holds."""
    fill = "".join(
        f'<rect x="{x - 16 + 6.5 * i}" y="{y + 14 - h}" width="5" height="{h}" fill="{LABELS[i]}"/>'
        for i, h in enumerate(shares)
        if h
    )
    frame = f'<rect x="{x - 20}" y="{y - 18}" width="40" height="36" rx="6" fill="none" stroke="{INK}"'
    return f'<g opacity="{1 if chosen else 0.3}">{frame} stroke-width="{2.5 if chosen else 1}"/>{fill}</g>'


def server(x: float, y: float) -> str:
    """Draw the server's model."""
    return f'<circle cx="{x}" cy="{y}" r="17" fill="none" stroke="{INK}" stroke-width="2.5"/>' + word(x, y + 5, "w")


SKEWED = [[26, 0, 0, 3, 0], [0, 24, 4, 0, 0], [0, 0, 26, 0, 0], [5, 0, 0, 22, 0], [0, 0, 3, 0, 25], [22, 8, 0, 0, 0]]


def schedule() -> str:
    """Draw what `schedule` is about."""
    held = "".join(client(60 + 60 * i, 45, shares) for i, shares in enumerate(SKEWED[:5]))
    order = [0, 3, 1, 4, 2, 1, 0, 2, 4, 3, 2, 0, 3, 1, 4]
    drawn = "".join(
        f'<rect x="{60 + 26 * i}" y="105" width="20" height="20" rx="4" fill="{LABELS[label]}"/>'
        for i, label in enumerate(order)
    )
    return held + arrow(180, 70, 180, 98) + drawn + arrow(460, 115, 560, 115) + server(585, 115)


def driver() -> str:
    """Draw what `driver` is about."""
    rounds = server(60, 75) + "".join(client(150, y, s) for y, s in zip((30, 75, 120), SKEWED, strict=False))
    rounds += "".join(arrow(80, 75, 124, y) for y in (34, 75, 116)) + word(105, 145, "rounds")
    chain = server(230, 75) + "".join(client(290 + 60 * i, 75, s) for i, s in enumerate(SKEWED[:3]))
    chain += arrow(248, 75, 266, 75) + arrow(312, 75, 326, 75) + arrow(372, 75, 386, 75) + word(340, 145, "chain")
    twice = server(490, 75) + "".join(
        client(580, y, s, i == 0) for i, (y, s) in enumerate(zip((30, 75, 120), SKEWED, strict=False))
    )
    twice += arrow(508, 66, 554, 34) + arrow(508, 60, 554, 22) + word(530, 145, "terraform")
    return rounds + chain + twice


def selector() -> str:
    """Draw what `selector` is about."""
    chosen = (0, 1, 4)
    own = "".join(client(120 + 80 * i, 110, shares, i in chosen) for i, shares in enumerate(SKEWED))
    return server(320, 28) + own + "".join(arrow(320, 48, 120 + 80 * i, 86) for i in chosen)


def sampler() -> str:
    """Draw what `sampler` is about."""
    biases = [2, 3, 4, 6, 7, 9, 11, 14, 18, 23, 29, 36, 44, 53, 63]
    bars = "".join(
        f'<rect x="{120 + 26 * i}" y="{115 - h}" width="18" height="{h}" rx="2" fill="{LABELS[0 if i < 10 else 1]}"/>'
        for i, h in enumerate(biases)
    )
    cut = f'<line x1="376" y1="30" x2="376" y2="125" stroke="{INK}" stroke-width="2" stroke-dasharray="5 4"/>'
    words = word(245, 142, "train now") + word(445, 142, "wait") + word(105, 100, "bias", anchor="end")
    return client(60, 60, SKEWED[5]) + bars + cut + words


def corrections() -> str:
    """Draw what `corrections` is about."""
    free = '<path d="M 90 110 C 200 20, 300 20, 430 30" fill="none" stroke="{}" stroke-width="2.5"/>'
    held = '<path d="M 90 110 C 200 50, 300 60, 400 85" fill="none" stroke="{}" stroke-width="2.5"/>'
    pull = "".join(arrow(x, y, x - 6, y + 26, FAINT) for x, y in ((200, 55), (270, 37), (340, 31)))
    own = client(470, 30, SKEWED[0]) + word(470, 140, "what all would learn") + server(90, 110)
    goal = f'<circle cx="470" cy="110" r="7" fill="{LABELS[2]}"/>'
    return free.format(LABELS[0]) + held.format(LABELS[2]) + pull + own + goal


def combiner() -> str:
    """Draw what `combiner` is about."""
    parts = [(30, 5, 0), (60, 2, 1), (90, 4, 2), (120, 2, 4)]
    lines = "".join(arrow(130, y, 330, 75, LABELS[label], width) for y, width, label in parts)
    own = "".join(f'<circle cx="115" cy="{y}" r="9" fill="{LABELS[label]}"/>' for y, _, label in parts)
    return (
        own
        + word(60, 80, "clients")
        + lines
        + arrow(370, 75, 520, 75, INK, 6)
        + word(350, 80, "+", 24)
        + word(445, 60, "one update")
    )


def server_step() -> str:
    """Draw what `server_step` is about."""
    path = "".join(arrow(x, y, x + 90, y - 18, FAINT, 3) for x, y in ((120, 125), (215, 105)))
    words = word(160, 145, "rounds before") + word(470, 100, "update of this round") + word(560, 25, "new model")
    return path + server(330, 85) + arrow(350, 85, 440, 85, LABELS[0], 3) + arrow(349, 78, 500, 40, INK, 4) + words


def a_round() -> str:
    """Draw one round with all its stages, and which paper repairs which."""
    stages = [  # where, its key, the question, the paper, its colour
        (75, 40, "schedule", "which labels next?", "Stratify", LABELS[0]),
        (205, 40, "selector", "which clients?", "FLIPS", LABELS[1]),
        (205, 150, "sampler", "which samples first?", "FedBSS", LABELS[2]),
        (435, 150, "corrections", "who is held back?", "FedPBS", LABELS[3]),
        (435, 40, "driver", "who trains again?", "Terraform", LABELS[4]),
        (565, 40, "combiner", "updates become one", "then server_step", FAINT),
    ]
    boxes = "".join(
        f'<rect x="{x - 57}" y="{y - 32}" width="114" height="64" rx="8" fill="none" stroke="{c}" stroke-width="2.5"/>'
        + word(x, y - 11, key, 13)
        + word(x, y + 6, question, 11)
        + word(x, y + 24, paper, 13)
        for x, y, key, question, paper, c in stages
    )
    own = "".join(client(292 + 56 * (i % 2), 118 + 44 * (i // 2), SKEWED[i], i in (0, 1, 3)) for i in range(4))
    way = [(132, 40, 146, 40), (205, 72, 205, 116), (435, 118, 435, 74), (492, 40, 506, 40)]
    again = f'<path d="M 378 40 L 266 40" fill="none" stroke="{INK}" stroke-width="2" stroke-dasharray="5 4"/>'
    home = f'<path d="M 565 72 L 565 212 L 75 212 L 75 76" fill="none" stroke="{INK}" stroke-width="2"/>'
    tips = arrow(270, 40, 264, 40) + arrow(75, 80, 75, 74)
    words = word(320, 32, "the hard ones", 11) + word(320, 206, "the next round's model", 11)
    return boxes + own + "".join(arrow(*ends) for ends in way) + again + home + tips + words


STAGES = {
    schedule: "Labels are drawn evenly, wherever they lie.",
    driver: "Side by side, from hand to hand, or the hard ones twice.",
    selector: "A few train, chosen so that the round sees all labels.",
    sampler: "Samples by their bias: the plain ones first, the others later.",
    corrections: "A client's steps lead away from the others' model; a correction pulls back.",
    combiner: "Updates become one.",
    server_step: "How far the model moves, and what it remembers.",
}


def picture(stage: str, drawing: str, says: str, height: int = HEIGHT) -> str:
    """Return a whole file."""
    tip = (
        f'<marker id="tip" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" markerHeight="7" '
        f'orient="auto" markerUnits="userSpaceOnUse"><path d="M0 0 L8 4 L0 8 z" fill="{INK}"/></marker>'
    )
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    begin = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" role="img">'
    return f"{begin}<title>{stage}: {says}</title><defs>{tip}</defs>{drawing}</svg>\n"


def pictures() -> dict[str, str]:
    """Return all, by the name of their file."""
    whole = picture("A round", a_round(), "stages, and the paper that repairs each", 222)
    return {f"{s.__name__}.svg": picture(s.__name__, s(), says) for s, says in STAGES.items()} | {"round.svg": whole}


if __name__ == "__main__":
    for name, text in pictures().items():
        Path(__file__).with_name(name).write_text(text, encoding="utf-8")
