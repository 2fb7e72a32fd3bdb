"""What any part at the server may ask of the clients, and read of what they tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar

from fedstrata.core.client_context import Program
from fedstrata.core.local_part import LocalPart
from fedstrata.core.part import Part


class ServerSide(Part):
    """What a part of the server may ask of the clients.

    Attributes
    ----------
    programs
        What clients do for steps of other kinds than "train", by `Step.kind`: functions from `ClientContext` to `Done`.
    individual
        True: the part sees whole updates, one by one, and is refused under masked aggregation.
    """

    programs: ClassVar[Mapping[str, Program]] = MappingProxyType({})
    individual: ClassVar[bool] = False

    def metrics_read(self, kind: str) -> tuple[str, ...]:
        """Name the numbers that this part reads in the `metrics` of every report; a report without one does not count.

        A site may leave out what it likes: what is not named here may be missing, or be no number.

        Parameters
        ----------
        kind
            Of the step, such as "train".

        Returns
        -------
        tuple of str
        """
        return ()

    @property
    def reads(self) -> str | None:
        """Say in words what this part learns of single clients from their reports; None: nothing."""
        return "every client's whole update" if self.individual else None

    @property
    def reads_envelope(self) -> bool:
        """Whether this part reads `loss` or `update_norm` of single reports: else masked sums hide them."""
        return False

    @property
    def needs(self) -> frozenset[str]:
        """What this part reads of the client info: "sizes", "labels", "totals", "counts", "speeds", "proxy"."""
        return frozenset()

    def meters(self, others: Sequence[LocalPart]) -> Sequence[LocalPart]:
        """Return local parts that this part wants at the clients, to report what it reads.

        Parameters
        ----------
        others
            Corrections and the optimizer, for meters that depend on them.

        Returns
        -------
        sequence of LocalPart
        """
        return ()
