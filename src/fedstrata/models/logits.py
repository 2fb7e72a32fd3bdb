"""The logits in what a module gives, however it gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from fedstrata.core.errors import RequestError

LOGITS = "logits"  # what they are called in an answer that holds more


def logits_of(answer: Any) -> Tensor:
    """Return the logits in what a module gives: a tensor, one called `logits`, the first of several, or the only one.

    Examples
    --------
    >>> import torch
    >>> logits = torch.zeros(2, 3)
    >>> all(logits_of(answer) is logits for answer in (logits, {"loss": 0, "logits": logits}, (logits, None), [logits]))
    True
    """
    if isinstance(answer, Tensor):
        return answer
    if hasattr(answer, LOGITS):
        return logits_of(getattr(answer, LOGITS))
    if isinstance(answer, Mapping) and (LOGITS in answer or len(answer) == 1):
        return logits_of(answer.get(LOGITS, next(iter(answer.values()))))
    if isinstance(answer, Sequence) and not isinstance(answer, str) and answer:
        return logits_of(answer[0])
    held = f" of {', '.join(map(str, answer))}" if isinstance(answer, Mapping) else ""
    raise RequestError(
        f"the model gives a {type(answer).__name__}{held}: no logits are found in it; give them as a tensor, as the "
        f"first of a tuple, or called `{LOGITS}`"
    )
