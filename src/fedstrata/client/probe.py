"""What a client can find out about its own samples with the model it received, without training on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy, one_hot

from fedstrata.client.network import Network
from fedstrata.core.client_context import Buffers, Of, ProbeWork, SampleScores
from fedstrata.core.client_parts import Client
from fedstrata.core.flat_model import ParameterSpace, Segment
from fedstrata.core.inputs import Inputs

CHUNK = 1024  # samples in one evaluation pass
SAME = 1e-12  # what is left of equal gradients after rounding, as a share of their squares
GRADIENTS = 2**24  # numbers of single samples' gradients that are held at a time


class Probe:
    """One client and the received model, in eval mode. What was seen once is not computed again."""

    def __init__(
        self, network: Network, space: ParameterSpace, inputs: Inputs, buf: Buffers, client: Client, work: ProbeWork
    ):
        self._network, self._space, self._inputs, self._buf, self._client = network, space, inputs, buf, client
        self._all: SampleScores | None = None
        self._variances: dict[tuple[Of, bytes], float] = {}
        self._work = work

    def score_samples(self, positions: np.ndarray | None = None) -> SampleScores:
        """Return losses and probabilities of some samples, or of all."""
        if self._all is None:
            seen = self._score_samples(positions)
            if positions is not None:
                return seen
            self._all = seen
        return self._all if positions is None else SampleScores(*(values[positions] for values in self._all))

    def _score_samples(self, positions: np.ndarray | None) -> SampleScores:
        losses, probabilities = [], []
        for x, y in self._samples(positions, CHUNK):
            logits = evaluate_at(self._network, self._space, self._buf.w0, self._buf.b0, x)[1]
            losses.append(cross_entropy(logits, y, reduction="none"))
            probabilities.append(logits.softmax(1))
        return SampleScores(torch.cat(losses).cpu().numpy(), torch.cat(probabilities).cpu().numpy())

    def variance(self, of: Of, positions: np.ndarray | None = None) -> float:
        """Tell how much samples differ: in their losses, or in their gradients (mean squared distance to the mean)."""
        key = of, b"" if positions is None else positions.tobytes()
        if key not in self._variances:
            self._variances[key] = self._variance(of, positions)
        return self._variances[key]

    def _variance(self, of: Of, positions: np.ndarray | None) -> float:
        if of == "loss":
            return float(self.score_samples(positions).losses.astype(np.float64).var())
        at_head = of == "head-gradient"
        step = self._at_head if at_head and self._is_linear(self._head) else self._each_gradient(at_head)
        size = CHUNK if at_head else max(1, min(CHUNK, GRADIENTS // max(self._space.P, 1)))
        count, squares, total = 0, 0.0, torch.zeros(())
        for x, y in self._samples(positions, size, whole=not at_head):
            square, aggregated = step(x, y)
            count, squares, total = count + len(y), squares + float(square), total.to(aggregated) + aggregated
        mean = squares / count
        spread = mean - float((total / count).square().sum())
        return spread if spread > SAME * mean else 0.0

    @property
    def _head(self) -> nn.Module:
        return self._network.head

    def _is_linear(self, head: nn.Module) -> bool:
        """Say whether the closed form holds: a linear layer, all of which is trained."""
        trained = self._space.head.stop - self._space.head.start
        return isinstance(head, nn.Linear) and trained == sum(p.numel() for p in head.parameters())

    def _at_head(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Sum gradients of the final linear layer, and their squared lengths: each is (p - y) times what went in."""
        features, logits = evaluate_at(self._network, self._space, self._buf.w0, self._buf.b0, x)
        out = (logits.double().softmax(1) - one_hot(y, logits.shape[1])).detach()
        into = features.double()
        if self._head.bias is not None:
            into = torch.cat([into, torch.ones_like(into[:, :1])], 1)
        return (out.square().sum(1) * into.square().sum(1)).sum(), out.T @ into

    def _each_gradient(self, at_head: bool) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Return a function that does the same with exact gradients of any layers, one a sample."""
        space, buf = self._space, self._buf
        rest = {f"module.{p.name}": p.of(buf.b0) for p in space.buffers}
        inside = [p for p in space.params if not at_head or _within(p, space.head)]
        rest |= {f"module.{p.name}": p.of(buf.w0) for p in space.params if p not in inside}
        moved = {f"module.{p.name}": p.of(buf.w0) for p in inside}

        def loss(tensors: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            logits = functional_call(self._network, {**rest, **tensors}, (x[None],))[1]
            return cross_entropy(logits, y[None])

        one = grad(loss)

        def each(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            was = self._network.training
            self._network.eval()
            gradients = vmap(one, (None, 0, 0))(moved, x, y)
            self._network.train(was)
            squares = [torch.linalg.vector_norm(g, dtype=torch.float64).square() for g in gradients.values()]
            return sum(squares[1:], squares[0]), torch.cat(
                [g.sum(0, dtype=torch.float64).flatten() for g in gradients.values()]
            )

        return each

    def _samples(self, positions: np.ndarray | None, size: int, whole: bool = False) -> Iterator[tuple[Tensor, Tensor]]:
        """Return samples and labels, so many at a time; `whole`: they will go back through the model too."""
        buf, rows = self._buf, self._client.rows if positions is None else self._client.rows[positions]
        self._work.samples += len(rows) * (1.0 if whole else 1 / 3)
        for start in range(0, len(rows), size):
            at = torch.from_numpy(rows[start : start + size]).to(buf.x.device)
            yield self._inputs(buf.x.index_select(0, at), buf.w.dtype), buf.y.index_select(0, at)


def evaluate_at(
    network: Network, space: ParameterSpace, params: Tensor, buffers: Tensor, x: Tensor
) -> tuple[Tensor, Tensor]:
    """Return features and logits under other flat weights, in eval mode, without a gradient."""
    was = network.training
    tensors = {f"module.{p.name}": p.of(params) for p in space.params}
    tensors |= {f"module.{p.name}": p.of(buffers) for p in space.buffers}
    network.eval()
    with torch.no_grad():
        features, logits = functional_call(network, tensors, (x,))
    network.train(was)
    return features, logits


def _within(place: Segment, part: slice) -> bool:
    return bool(part.start <= place.start and place.stop <= part.stop)
