"""What a part may do inside one client update: hooks around the local step. Corrections have no others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from fedstrata.core.client_context import Batch, Buffers, ClientContext, Done
from fedstrata.core.flat_model import ParameterSpace
from fedstrata.core.messages import Slot, Tensors
from fedstrata.core.part import Part


class LocalPart(Part):
    """A correction, a meter or a local optimizer. Override what you need; `own` holds the slots you declared.

    `edit_logits`, `add_loss`, `observe` and `edit_gradient` run inside the local step, which may be captured: no host
    read (`float`, `.item()`, boolean masks), no data-dependent shape, the same operations whatever the client.
    `edit_logits` and `add_loss` are pure; writing is for `observe` and `edit_gradient`. `check_correction` checks all
    this.

    Attributes
    ----------
    opens_tensors
        True: `finish` gives `open_tensors`, which is refused under masked aggregation.

    Examples
    --------
    A meter, which a part at the server asks for in `meters`:

    >>> from dataclasses import dataclass
    >>> import torch
    >>> import fedstrata
    >>> from fedstrata import Done, LocalPart, Selector, Slot
    >>> @dataclass(frozen=True)
    ... class LargestLoss(LocalPart):
    ...     '''Reports the largest loss of a sample.'''
    ...
    ...     def declare_slots(self, space):
    ...         return {"most": Slot()}
    ...
    ...     def fill(self, own, buf, context):
    ...         own["most"].zero_()
    ...
    ...     def observe(self, own, buf, batch):
    ...         own["most"].copy_(torch.maximum(own["most"], (batch.each * batch.weight.sign()).max()))
    ...
    ...     def finish(self, own, buf, context):
    ...         return Done(metrics={"largest_loss": own["most"].clone()})
    >>> @dataclass(frozen=True)
    ... class FirstOnes(Selector):
    ...     '''The first clients train, and say how large their losses are.'''
    ...
    ...     def meters(self, others):
    ...         return (LargestLoss(),)
    ...
    ...     def select(self, state, view):
    ...         return view.eligible[: view.k].tolist()
    >>> run = fedstrata.train(overrides={"method.selector": FirstOnes(), "train.rounds": 1})
    >>> step = run.events()[-1]["steps"][0]
    >>> sorted(step["metrics"]["0"])
    ['largest_loss']
    """

    opens_tensors: ClassVar[bool] = False

    def declare_slots(self, space: ParameterSpace) -> Mapping[str, Slot]:
        """Declare static buffers: what differs between clients goes into them.

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

    def declare_aggregated(self, space: ParameterSpace) -> Mapping[str, Slot]:
        """Declare what `finish` adds to the summed half of the report.

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

    def declare_client_state(self, space: ParameterSpace) -> Mapping[str, Slot]:
        """Declare what stays with the client between client updates; zeros before the first.

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

    def fill(self, own: Tensors, buf: Buffers, context: ClientContext) -> None:
        """Write this client update's values into the slots, on the host.

        Parameters
        ----------
        own
            The declared slots, with what the client before left in them.
        buf
            Buffers of the local step; `buf.w0` is the received model.
        context
            The client and its task.
        """

    def edit_logits(self, own: Tensors, buf: Buffers, logits: Tensor) -> Tensor:
        """Change the logits before the loss.

        Parameters
        ----------
        own, buf
            As in `fill`.
        logits
            Of the batch.

        Returns
        -------
        Tensor
            New logits; the old ones are not changed in place.
        """
        return logits

    def add_loss(self, own: Tensors, buf: Buffers, batch: Batch) -> Tensor | None:
        """Add a term to the loss.

        Parameters
        ----------
        own, buf
            As in `fill`.
        batch
            Padded samples have weight 0.

        Returns
        -------
        Tensor or None
            The term, one number.
        """
        return None

    def observe(self, own: Tensors, buf: Buffers, batch: Batch) -> None:
        """Accumulate into own slots after the backward pass.

        Parameters
        ----------
        own, buf, batch
            As in `add_loss`.
        """

    def edit_gradient(self, own: Tensors, buf: Buffers, rate: Tensor) -> None:
        """Edit the gradient `buf.g` in place; an optimizer moves `buf.w`.

        Parameters
        ----------
        own, buf
            As in `fill`.
        rate
            Step size.
        """

    def finish(self, own: Tensors, buf: Buffers, context: ClientContext) -> Done:
        """Report after the last step, without a host read.

        Parameters
        ----------
        own, buf, context
            As in `fill`; `buf.w - buf.w0` is the update.

        Returns
        -------
        Done
            With copies: the buffers serve the next client.
        """
        return Done()


class Correction(LocalPart):
    """How the local step is held back; or a meter, which only looks on.

    Several corrections work in one plan, in the order of their list.

    Write the hooks of `LocalPart` that it needs; for a server half, derive from `ServerStep` as well.
    `check_correction` checks it.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import fedstrata
    >>> @dataclass(frozen=True)
    ... class Tether(fedstrata.Correction):
    ...     '''Weights are drawn back to the received model.'''
    ...
    ...     strength: fedstrata.options.NonNegative = 0.1
    ...
    ...     def edit_gradient(self, own, buf, rate):
    ...         buf.g.add_(buf.w - buf.w0, alpha=self.strength)
    >>> run = fedstrata.train(overrides={"method.corrections": [Tether(0.5)], "train.rounds": 1})
    >>> run.summary["rounds"]
    1
    """
