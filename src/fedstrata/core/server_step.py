"""Server steps: how the combined update moves the model."""

from __future__ import annotations

from typing import Any

from fedstrata.core.flat_model import FlatModel
from fedstrata.core.messages import Sums, Tensors
from fedstrata.core.server_side import ServerSide
from fedstrata.core.steps import View


class ServerStep(ServerSide):
    """A server step, or the server half of a correction.

    The proposal starts as model + combined update; each server step in turn may change it. Write `step`; `init` if it
    remembers. `check_server_step` checks it. A correction with a server half derives from `Correction` and from this.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import fedstrata
    >>> @dataclass(frozen=True)
    ... class HalfStep(fedstrata.ServerStep):
    ...     '''The model goes a part of the way.'''
    ...
    ...     share: fedstrata.options.Fraction = 0.5
    ...
    ...     def step(self, state, view, model, proposal, sums):
    ...         params = model.params + self.share * (proposal.params - model.params)
    ...         return fedstrata.FlatModel(params, proposal.buffers)
    >>> run = fedstrata.train(overrides={"method.server_step": HalfStep(0.2), "train.rounds": 1})
    """

    def init(self, view: View, model: FlatModel) -> Any:
        """Make the state, as in `Selector.init`.

        Parameters
        ----------
        view
            Of the first round.
        model
            The first one.

        Returns
        -------
        Any
            What lives through the run, or None.
        """
        return None

    def broadcast(self, state: Any) -> Tensors:
        """Return what travels with the model.

        Parameters
        ----------
        state
            What `init` made.

        Returns
        -------
        Mapping
            Tensors by name; the client half of the part finds them in `context.down`.
        """
        return {}

    def lend(self, state: Any) -> Tensors:
        """Return what a worker needs that executes many steps as one, this part's among them; it is not a message.

        Parameters
        ----------
        state
            What `init` made.

        Returns
        -------
        Mapping
            Tensors by name; by default the broadcast.
        """
        return self.broadcast(state)

    def step(self, state: Any, view: View, model: FlatModel, proposal: FlatModel, sums: Sums) -> FlatModel:
        """Return the next proposal.

        Parameters
        ----------
        state
            What `init` made.
        view
            The round.
        model
            The one that was sent.
        proposal
            The next one so far.
        sums
            Of what clients sent; names that the part declared at clients are its own.

        Returns
        -------
        FlatModel
            A new one, or the proposal as it is.
        """
        return proposal

    def model_to_evaluate(self, state: Any, model: FlatModel) -> FlatModel:
        """Return the model to evaluate, where that is not the one to train on.

        Parameters
        ----------
        state
            What `init` made.
        model
            The one to train on.

        Returns
        -------
        FlatModel
        """
        return model
