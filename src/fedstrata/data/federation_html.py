"""A federation as notebooks show it: who holds how many samples of which label."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedstrata.core import html

if TYPE_CHECKING:
    from fedstrata.data.federation import Federation

CLIENTS, LABELS = 10, 20  # most that are listed


def federation_html(federation: Federation) -> str:
    """Return what is known of all, and the label counts of the first clients."""
    counts, labels = federation.counts[:CLIENTS, :LABELS], federation.classes[:LABELS]
    lines = [[client, int(federation.counts[client].sum()), *row] for client, row in enumerate(counts.tolist())]
    left = [f"{len(federation) - CLIENTS} more clients"] if len(federation) > CLIENTS else []
    left += [f"{len(federation.classes) - LABELS} more labels"] if len(federation.classes) > LABELS else []
    known = {
        "clients": len(federation),
        "training samples": federation.samples,
        "test samples": federation.tests,
        "labels": len(federation.classes),
        "shape of a sample": tuple(federation.trial().shape[1:]),
    }
    listed = html.table(["client", "samples", *map(str, labels)], lines)
    return f"{html.title(federation.name)}{html.facts(known)}{listed}{html.notes([*left, *federation.notes])}"
