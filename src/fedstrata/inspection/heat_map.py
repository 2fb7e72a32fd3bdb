"""The label matrix made small enough to look at: clients in an order that shows structure, many of them in a row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedstrata.data.label_table import LabelTable


@dataclass(frozen=True)
class HeatMap:
    """Shares of labels by row and column, each in 0 to 1."""

    shares: np.ndarray  # [rows, columns]; of a row that stands for several clients, their mean
    rows: list[str]  # names
    columns: list[str]
    clients: int  # of which a row stands for about so many: 1 where all are shown

    @property
    def title(self) -> str:
        """Say what is shown."""
        many = "a row a client" if self.clients == 1 else f"about {self.clients} similar clients a row"
        return f"share of each label, {many}"


def heat_map(table: LabelTable, rows: int, columns: int) -> HeatMap:
    """Show a table in at most so many rows and columns.

    Where all clients fit, they stand in their own order. Where not, they are sorted by the label that they hold most
    of, and the more of it the earlier; equally many neighbours make a row. Labels that do not fit are added up.
    """
    shares, names = table.shares, list(table.clients)
    if len(table) > rows:
        order = np.lexsort((-shares.max(1), shares.argmax(1)))
        parts = np.array_split(order, rows)
        shares = np.stack([table.shares[part].mean(0) for part in parts])
        names = [
            f"{len(part)} with most {table.labels[int(row.argmax())]}" for part, row in zip(parts, shares, strict=True)
        ]
    labels = [str(label) for label in table.labels]
    if len(labels) > columns:
        cuts = np.array_split(np.arange(len(labels)), columns)
        shares = np.stack([shares[:, cut].sum(1) for cut in cuts], 1)
        labels = [labels[cut[0]] if len(cut) == 1 else f"{labels[cut[0]]}..{labels[cut[-1]]}" for cut in cuts]
    return HeatMap(shares, names, labels, 1 if len(table) <= rows else round(len(table) / rows))
