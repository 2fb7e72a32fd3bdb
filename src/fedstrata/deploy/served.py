"""What sites may ask a server for beside Flower's messages, in words that both ends know.

    GET /health                          whether it is up
    GET /fedstrata-models                what there is: finished runs in which the site took part
    GET /fedstrata-models/RUN/FILE       a model's file

How sites are doing they say elsewhere (`site_reports.py`).
"""

from __future__ import annotations

from urllib.parse import quote

HEALTH = "/health"
ANNOUNCED = "fedstrata-run-begins"  # the header of an answer by which the server says that a run was submitted
MODELS = "/fedstrata-models"
FILES = ("model.safetensors", "best.safetensors")  # the last model, and the best one
PIECE = 1 << 20  # bytes of one that are sent at once
HASH = "fedstrata-sha256"  # the header with a file's


def path_of(run: str, file: str) -> str:
    """Return where a model's file is."""
    return f"{MODELS}/{quote(run)}/{file}"
