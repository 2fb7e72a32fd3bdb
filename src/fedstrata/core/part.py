"""What every part of a plan has in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from fedstrata.core.plan import Plan


class Part:
    """One swappable piece of a stage: a frozen dataclass of options, without state.

    The first line of the class docstring is what `fedstrata list` shows. State that lives through a run is made by
    `init` and handed back to every call. An `abstractmethod` is what a part must write: `part_class.py` looks for it.

    Attributes
    ----------
    paper
        Where the idea is from.
    """

    paper: ClassVar[str] = ""

    @property
    def plans_ahead(self) -> bool:
        """Whether what it does in a round depends on how many rounds there will be: such a run cannot be extended."""
        return False

    def conflicts(self, plan: Plan) -> str | None:
        """Say why this part cannot work in a plan; a run with it is refused before the first round.

        Parameters
        ----------
        plan
            Every stage of the run.

        Returns
        -------
        str or None
            The reason in words, such as "it needs sgd without momentum"; None: it fits.
        """
        return None
