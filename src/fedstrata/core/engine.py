"""What the round loop, and what protects updates on their way, ask of an engine: where client updates happen."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from fedstrata.core.contract import broken, describe
from fedstrata.core.messages import Report, Sums, Tag, Task, Tensors
from fedstrata.core.steps import Step

ClientStates = Mapping[int, tuple[Tag, Tensors]]  # by client: its state, and the step whose report it came with
SumTensors = Callable[[Mapping[int, Tensor]], Tensor]  # what participants bring, in their order -> its sum
AllReduceSum = Callable[[Sequence[Task]], SumTensors]  # how the participants of a step add up


class Engine(Protocol):
    """Where client updates happen: workers on this machine, or real sites.

    Attributes
    ----------
    device
        Where models are evaluated.
    can_fuse
        Whether it can execute `FusedSteps`: all clients' samples lie in one place.
    all_reduce_sum
        How clients that meet in the middle of a step add up; None: in the open.
    """

    device: str
    can_fuse: bool
    all_reduce_sum: AllReduceSum | None

    def ask(self, step: Step, tasks: Sequence[Task]) -> list[Report]:
        """Run the tasks of a step.

        Parameters
        ----------
        step
            What is executed.
        tasks
            One for every client that is asked.

        Returns
        -------
        list of Report
            The open half of every report that came back, in task order.
        """

    def collect(self, weights: Mapping[int, float]) -> Sums:
        """Sum what the last step's clients sent: the only road to `Report.aggregated`.

        Parameters
        ----------
        weights
            Of each client, in the order in which to add.

        Returns
        -------
        Sums

        Raises
        ------
        UnsummableError
            If too few clients are left to sum what they sent; the run goes on without it.
        """

    def each(self) -> Mapping[int, Report]:
        """Return the last step's reports whole.

        Returns
        -------
        Mapping
            By client.
        """

    def overhead_bytes(self) -> tuple[int, int]:
        """Return what the last step's sum took beside what its messages declare.

        Returns
        -------
        tuple of int
            Bytes up and down.
        """

    def settle(self, accepted: Collection[int], tag: Tag) -> None:
        """Commit the state of the clients whose report counted; forget the others' new state.

        Parameters
        ----------
        accepted
            Clients whose report counted.
        tag
            (round, step) of the report.
        """

    def client_states(self) -> ClientStates:
        """Return the state of every client that has any, for the checkpoint.

        Returns
        -------
        Mapping
            By client: the tag of the report that its state came with, and the tensors.
        """

    def restore(self, client_states: ClientStates) -> None:
        """Take client state back from a checkpoint.

        Parameters
        ----------
        client_states
            As `client_states` gave them.
        """

    def close(self) -> None:
        """End workers and free memory."""


def expect_engine(part: object, engine: Any) -> Any:
    """Return what an engine's `start` gave if it can do all that an engine must."""
    wanted = [*Engine.__annotations__, *(name for name in vars(Engine) if not name.startswith("_"))]
    if lacking := [name for name in dict.fromkeys(wanted) if not hasattr(engine, name)]:
        raise broken(part, "start", f"gave {describe(engine)}, without {', '.join(lacking)}; allowed: an Engine")
    return engine
