"""Optimizers: how weights follow a gradient, at the client or, with global batches, at the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from torch import Tensor

from fedstrata.core.client_context import Buffers, ClientContext, Done
from fedstrata.core.flat_model import ParameterSpace
from fedstrata.core.local_part import LocalPart
from fedstrata.core.messages import Slot, Tensors


class Optimizer(LocalPart):
    """How weights follow a gradient: `step` and, if it remembers, `declare_memory` are all there is to write.

    `check_correction(part, optimizer=True)` checks it.

    Attributes
    ----------
    state
        What it remembers between steps is forgotten at the end of a client update ("fresh"), stays with the client
        ("kept"), or travels with the model ("carried"). Memory that came with the model always goes back with it.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import fedstrata
    >>> @dataclass(frozen=True)
    ... class Signs(fedstrata.Optimizer):
    ...     '''Every weight moves by the step size, against the sign of its gradient.'''
    ...
    ...     def step(self, own, w, g, rate):
    ...         w.sub_(g.sign_().mul_(rate))
    >>> run = fedstrata.train(overrides={"train.optimizer": Signs(), "train.lr": 0.01, "train.rounds": 1})
    >>> run.summary["rounds"]
    1
    """

    state: Literal["fresh", "kept", "carried"] = "fresh"

    def declare_memory(self, space: ParameterSpace) -> Mapping[str, Slot]:
        """Declare what is remembered between steps; zeros before the first.

        Parameters
        ----------
        space
            Layout of the model.

        Returns
        -------
        Mapping
            Slots by name.
        """
        return {}

    def step(self, own: Tensors, w: Tensor, g: Tensor, rate: Tensor) -> None:
        """Move the weights, in place.

        Parameters
        ----------
        own
            The declared memory, to be changed in place.
        w
            Weights, flat.
        g
            Their gradient; it may be used up.
        rate
            Step size.
        """
        raise NotImplementedError

    def declare_slots(self, space: ParameterSpace) -> Mapping[str, Slot]:
        """Hold the memory."""
        return self.declare_memory(space)

    def declare_client_state(self, space: ParameterSpace) -> Mapping[str, Slot]:
        """Keep it at the client, if asked for."""
        return self.declare_memory(space) if self.state == "kept" else {}

    def declare_aggregated(self, space: ParameterSpace) -> Mapping[str, Slot]:
        """Send it on, if asked for."""
        return self.declare_memory(space) if self.state == "carried" else {}

    def fill(self, own: Tensors, buf: Buffers, context: ClientContext) -> None:
        """Start from what came with the model, from what was kept, or at rest."""
        for name, slot in own.items():
            before = context.down.get(name, context.client_state.get(name) if self.state == "kept" else None)
            if before is None:
                slot.zero_()
            else:
                slot.copy_(before)

    def edit_gradient(self, own: Tensors, buf: Buffers, rate: Tensor) -> None:
        """Move the trainer's weights."""
        self.step(own, buf.w, buf.g, rate)

    def finish(self, own: Tensors, buf: Buffers, context: ClientContext) -> Done:
        """Give the memory to whom it belongs."""
        return Done(
            aggregated={name: slot for name, slot in own.items() if name in context.down or self.state == "carried"},
            client_state=own if self.state == "kept" else {},
        )
