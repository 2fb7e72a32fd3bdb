"""Write the figures of benchmarks/results into docs/speed.md, and some of them into the README.

`python -m benchmarks._readme`
"""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import fill
from typing import Any

HERE = Path(__file__).parent
README, SPEED = HERE.parent / "README.md", HERE.parent / "docs" / "speed.md"
BEGIN, END = "<!-- figures: written by python -m benchmarks._readme -->", "<!-- end of figures -->"
SHOWN = (
    "engine",
    "profile",
    "gpu",
    "gpu_cifar10",
    "gpu_rounds",
    "gpu_steps",
    "scaling",
    "ray",
    "privacy",
    "sites",
    "report",
)
FIRST = {  # what the README shows of each
    "engine": (
        "`fedstrata run`: first round",
        "W2 tiny MLP, Flower",
        "W2 tiny MLP, pfl-research",
        "W1 CNN, the naive loop",
        "W1 CNN, Flower",
    ),
    "gpu": ("fashion-mnist, CNN tf32", "fashion-mnist, 14 methods", "fashion-mnist, Stratify batch"),
    "gpu_rounds": ("ResNet-18, 10 clients a round, bf16",),
    "gpu_cifar10": ("ResNet-18 GN bf16, crop and flip: the naive loop",),
    "scaling": ("100 selected of 1,000,000, memory", "a round, 1,000,000 against 1,000"),
    "privacy": ("prf at 100 x 20 against ckks-paper at 100 x 5, CPU",),
    "sites": ("exchange", "Stratify"),
    "report": ("inspect", "report"),
}
PREFACE = """# Speed

Written by `python -m benchmarks._readme` from `benchmarks/results/`. What is compared and how stands at the top of each
file of `benchmarks/`; `x` is how many times as long the other takes. A goal that was missed says so. Whether a
benchmark runs on your machine you see sooner with `--quick`, such as `python -m benchmarks engine --quick`: a small
size, for which no goal is judged. [gpu.md](gpu.md) says what was tried on a GPU, and what its figures do not have yet.
"""


def figures() -> str:
    """Return a table a benchmark, from what was measured last."""
    paths = [HERE / "results" / f"{name}.json" for name in SHOWN]
    return "\n\n".join(_table(json.loads(path.read_text())) for path in paths if path.exists())


def _table(kept: dict[str, Any]) -> str:
    machine, versions = kept["machine"], kept["versions"]
    where = machine.get("gpus", [f"{machine['cores']} cores of {machine['cpu']}"])[0]
    made = ", ".join(f"{name} {version}" for name, version in versions.items() if name not in ("python", "fedstrata"))
    said = f"`python -m benchmarks {kept['benchmark']}` on {where}, {kept['date'][:10]}, {made}:"
    rows = [f"| {r['name']} | {_value(r)} | {_goal(r)} |" for r in kept["rows"]]
    return "\n".join([fill(said, 120), "", "| | measured | goal |", "|---|---|---|", *rows])


def _value(row: dict[str, Any]) -> str:
    value = row["value"]
    return "-" if value is None else f"{value:{',.0f' if abs(value) >= 1000 else '.3g'}} {row['unit']}"


def _goal(row: dict[str, Any]) -> str:
    if row["goal"] is None:
        return ""
    return f"{row['goal']:g}" + {True: "", False: " (missed)", None: " (not measured)"}[row["met"]]


def first() -> str:
    """Return one table of the figures that matter most."""
    rows = []
    for name, shown in FIRST.items():
        path = HERE / "results" / f"{name}.json"
        for row in json.loads(path.read_text())["rows"] if path.exists() else ():
            if row["goal"] is not None and row["name"].startswith(shown):
                rows.append(f"| `{name}` | {row['name']} | {_value(row)} | {_goal(row)} |")
    return "\n".join(["| benchmark | | measured | goal |", "|---|---|---|---|", *rows])


def written(readme: str) -> str:
    """Return the README with the figures of now."""
    before, rest = readme.split(BEGIN)
    return f"{before}{BEGIN}\n\n{first()}\n\n{END}{rest.split(END)[1]}"


def page() -> str:
    """Return docs/speed.md."""
    return f"{PREFACE}\n{figures()}\n"


if __name__ == "__main__":
    README.write_text(written(README.read_text()))
    SPEED.write_text(page())
